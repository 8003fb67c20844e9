"""The word embedding: only the rows that the batch uses are perturbed, in a copy, because a forward reads no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zobench.engine.blocks import Unit


def check(module: nn.Module, units: Sequence[Unit]) -> nn.Embedding:
    """``module`` if its rows can be perturbed alone; ``ValueError`` if they cannot."""
    if not isinstance(module, nn.Embedding) or len(units) != 1 or len(units[0].fields) != 1:
        raise ValueError(
            f"a module tied to the head must be an embedding, but got {type(module).__name__}; build the model untied"
        )
    return module


def lookup(
    module: nn.Embedding, forward: Callable[..., Tensor], ids: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any],
    rows: Tensor,
) -> Tensor:  # fmt: skip
    """The embedding's own forward on a table that holds just this batch's rows, in order."""
    whole, padding = module._parameters["weight"], module.padding_idx
    module._parameters["weight"] = nn.Parameter(rows.clone(), requires_grad=False)
    module.padding_idx = None  # it names a row of the whole table, and matters only to gradients
    try:
        return forward(torch.arange(ids.numel(), device=ids.device).view(ids.shape), *args, **kwargs)
    finally:
        module._parameters["weight"], module.padding_idx = whole, padding
