"""Folding: a call of a module on a batch of k copies becomes k calls, one per point, each with its point's weights.

So the model's own ``forward`` is called once for all points, and no model needs code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def split(value: Any, copies: int, batch: int) -> list[Any]:
    """``value`` once per copy: tensors whose first dimension is ``copies * batch`` are cut, all else is shared.

    One-dimensional tensors are never cut: a vector of positions may be as long as the batch.
    """
    if isinstance(value, Tensor):
        if value.ndim >= 2 and value.shape[0] == copies * batch:
            return [value[start : start + batch] for start in range(0, copies * batch, batch)]
        return [value] * copies
    if isinstance(value, (tuple, list)):
        cut = [split(item, copies, batch) for item in value]
        return [type(value)(item[copy] for item in cut) for copy in range(copies)]
    if isinstance(value, dict):
        by_key = {key: split(item, copies, batch) for key, item in value.items()}
        return [{key: item[copy] for key, item in by_key.items()} for copy in range(copies)]
    if hasattr(value, "rows"):  # a cache of keys and values, of all copies
        return [value.rows(start, start + batch) for start in range(0, copies * batch, batch)]
    return [value] * copies


def join(outputs: Sequence[Any]) -> Any:
    """The k outputs as one: tensors are concatenated, tuples joined item by item."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(outputs))
    if isinstance(first, tuple):
        return tuple(join(items) for items in zip(*outputs, strict=True))
    if first is None:
        return None
    raise TypeError(f"a folded module must return tensors, tuples or None, but returned {type(first).__name__}")


def fold(
    name: str, forward: Callable[..., Any], copies: int, batch: int, prepare: Callable[[int], None],
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Calls ``forward`` once per copy, after ``prepare(copy)`` has set that copy's weights; returns the joined output.

    Raises ``ValueError`` if no argument has the batch in its first dimension: then the copies cannot be told apart.
    """
    if copies > 1 and not any(_is_batched(item, copies * batch) for item in (*args, *kwargs.values())):
        raise ValueError(
            f"{name} must be called on a batch of {copies * batch} rows, but none of its arguments has that many; "
            "pass position_ids of the batch's size to the model"
        )
    outputs = []
    for copy, (own_args, own_kwargs) in enumerate(
        zip(split(args, copies, batch), split(kwargs, copies, batch), strict=True)
    ):
        prepare(copy)
        outputs.append(forward(*own_args, **own_kwargs))
    return join(outputs)


def _is_batched(value: Any, rows: int) -> bool:
    if isinstance(value, Tensor):
        return value.ndim >= 2 and value.shape[0] == rows
    if isinstance(value, (tuple, list)):
        return any(_is_batched(item, rows) for item in value)
    return False
