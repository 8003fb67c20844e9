"""Folding: a call of a module on a batch of k copies becomes k calls, one per point, each with its point's weights.

So the model's own ``forward`` is called once for all points, and no model needs code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Path = tuple[object, ...]
"""Where a tensor is in a module's arguments, ("args" or "kwargs", then numbers and keys), or in its "output"."""


@dataclass(frozen=True, slots=True)
class Follows:
    """How the tensors that a module takes and gives follow the batch: by :data:`Path` the dimension in which the rows
    are, or None for a tensor that is the same for every batch. Nothing is known of a path that is not here."""

    dimensions: Mapping[Path, int | None]

    @property
    def nothing(self) -> bool:
        """Whether it is known that none of them does."""
        return bool(self.dimensions) and all(where is None for where in self.dimensions.values())

    def cut(self, path: Path, tensor: Tensor, copies: int, batch: int) -> list[Tensor] | None:
        """The tensor's part of each copy, or None if all share it.

        What is not known is cut by its size: not below two dimensions, where positions may be as long as the batch.
        """
        guess = 0 if tensor.ndim >= 2 and tensor.shape[0] == copies * batch else None
        where = self.dimensions.get(path, guess)
        return None if where is None else list(tensor.tensor_split(copies, where))

    def whole(self, path: Path, parts: Sequence[Tensor], batch: int) -> Tensor:
        """The copies' tensors as one. One that is the same for every row, but not at every point, as the embedding of
        positions, (1, tokens, width) or (tokens, width), is repeated for each row."""
        where = self.dimensions.get(path, 0)
        if where is not None:
            return torch.cat(list(parts), where)
        rows = [part if part.ndim > 2 and part.shape[0] == 1 else part.unsqueeze(0) for part in parts]
        return torch.cat([row.expand(batch, *row.shape[1:]) for row in rows])


UNKNOWN = Follows({})
"""What is assumed of a module whose arguments nobody looked at."""


def leaves(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in ``value``, and where it is."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from leaves(item, (*path, number))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))


def split(value: Any, copies: int, batch: int, follows: Follows = UNKNOWN, path: Path = ()) -> list[Any]:
    """``value`` once per copy: tensors that follow the batch are cut, all else is shared."""
    if isinstance(value, Tensor):
        return follows.cut(path, value, copies, batch) or [value] * copies
    if isinstance(value, (tuple, list)):
        cut = [split(item, copies, batch, follows, (*path, number)) for number, item in enumerate(value)]
        return [_like(value, [item[copy] for item in cut]) for copy in range(copies)]
    if isinstance(value, dict):
        by_key = {key: split(item, copies, batch, follows, (*path, key)) for key, item in value.items()}
        return [{key: item[copy] for key, item in by_key.items()} for copy in range(copies)]
    if hasattr(value, "rows"):  # a cache of keys and values, of all copies
        return [value.rows(start, start + batch) for start in range(0, copies * batch, batch)]
    return [value] * copies


def join(outputs: Sequence[Any], batch: int = 1, follows: Follows = UNKNOWN, path: Path = ("output",)) -> Any:
    """The k outputs as one: tensors are concatenated, tuples joined item by item."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return follows.whole(path, outputs, batch)
    if isinstance(first, (tuple, list)):
        groups = enumerate(zip(*outputs, strict=True))
        return _like(first, [join(items, batch, follows, (*path, number)) for number, items in groups])
    if isinstance(first, dict):
        return type(first)(
            **{key: join([output[key] for output in outputs], batch, follows, (*path, key)) for key in first}
        )
    if first is None:
        return None
    raise TypeError(f"a folded module must return tensors, tuples, dicts or None, but returned {type(first).__name__}")


def _like(value: Any, items: list[Any]) -> Any:
    """A tuple, named tuple or list of the class of ``value`` with other items."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def fold(
    name: str, forward: Callable[..., Any], copies: int, batch: int, prepare: Callable[[int], None],
    args: tuple[Any, ...], kwargs: dict[str, Any], follows: Follows = UNKNOWN, frozen: bool = False,
) -> Any:  # fmt: skip
    """Calls ``forward`` once per copy, after ``prepare(copy)`` has set that copy's weights; returns the joined output.

    ``frozen``: whether the weights are the same for all copies; then what is the same for every batch is computed once.

    Raises ``ValueError`` if no argument has the batch in its first dimension and nothing is known of the module: then
    the copies cannot be told apart.
    """
    if copies > 1 and not follows.dimensions and not _has_batch(args, kwargs, copies * batch):
        raise ValueError(
            f"{name} must be called on a batch of {copies * batch} rows, but none of its arguments has that many; "
            "pass position_ids of the batch's size to the model"
        )
    if frozen and follows.nothing:
        prepare(0)
        return forward(*args, **kwargs)
    outputs = []
    for copy, (copy_args, copy_kwargs) in enumerate(
        zip(
            split(args, copies, batch, follows, ("args",)),
            split(kwargs, copies, batch, follows, ("kwargs",)),
            strict=True,
        )
    ):
        prepare(copy)
        outputs.append(forward(*copy_args, **copy_kwargs))
    return join(outputs, batch, follows)


def _has_batch(args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> bool:
    tensors = (*leaves(args, ("args",)), *leaves(kwargs, ("kwargs",)))
    return any(tensor.ndim >= 2 and tensor.shape[0] == rows for _, tensor in tensors)
