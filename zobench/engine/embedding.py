"""The word embedding: only the rows of the batch are moved, in a copy, because no others are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zobench.engine import perturb
from zobench.engine.arithmetic import InPlace, Pristine
from zobench.engine.base import Point, transitions
from zobench.engine.blocks import Unit


def forward_tied(
    unit: Unit, module: nn.Embedding, forward: Callable[..., Tensor], in_place: InPlace, points: Sequence[Point],
    ids: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The embeddings of ``ids`` (batch, tokens) at each point, concatenated: (len(points) * batch, tokens, width).

    The table is left at the first point, where the head takes over; for the other points only the batch's rows are
    moved, in a copy. So a tied table costs the draws of an untied one, every use sees the same chain of roundings, and
    that chain is committed once, by the head. Points of the pass that are not looked at here are passed through.
    """
    noise, (table,), flat = in_place.noise, in_place.at(unit, unit.at), ids.reshape(-1)
    gathered: dict[int, Tensor] = {}
    rows: Tensor | None = None
    outputs = []
    for point in points:
        for stop in in_place.way(unit, point):
            for seed, delta in transitions(unit.at, stop) if unit.fields[0].trainable else ():
                known = seed in gathered
                if not known:
                    applied = delta if rows is None else 0.0
                    gathered[seed] = perturb.move_and_gather(noise, seed, unit.index, table, applied, flat)
                if rows is not None:
                    rows.add_(gathered[seed] * delta)
                elif known:
                    perturb.move(noise, seed, unit.index, [table], delta)
            unit.at = stop
        rows = table[flat] if rows is None else rows
        outputs.append(_lookup(module, forward, rows, ids, args, kwargs))
    unit.at = unit.own(points[0])
    return torch.cat(outputs)


def forward_rows(
    unit: Unit, module: nn.Embedding, forward: Callable[..., Tensor], pristine: Pristine, points: Sequence[Point],
    ids: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The embeddings of ``ids`` (batch, tokens) at each point, concatenated; the table itself is not touched."""
    rows = pristine.rows(unit, unit.fields[0], ids.reshape(-1), points)
    return torch.cat([_lookup(module, forward, own, ids, args, kwargs) for own in rows])


def check(module: nn.Module, units: Sequence[Unit]) -> nn.Embedding:
    """``module`` if its rows can be moved alone; ``ValueError`` if they cannot."""
    if not isinstance(module, nn.Embedding) or len(units) != 1 or len(units[0].fields) != 1:
        raise ValueError(
            f"a module tied to the head must be an embedding, but got {type(module).__name__}; build the model untied"
        )
    return module


def _lookup(
    module: nn.Embedding, forward: Callable[..., Tensor], rows: Tensor, ids: Tensor, args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The embedding's own forward on a table that holds just this batch's rows, in order."""
    whole, padding = module._parameters["weight"], module.padding_idx
    module._parameters["weight"] = nn.Parameter(rows.clone(), requires_grad=False)
    module.padding_idx = None  # it names a row of the whole table, and matters only to gradients
    try:
        return forward(torch.arange(ids.numel(), device=ids.device).view(ids.shape), *args, **kwargs)
    finally:
        module._parameters["weight"], module.padding_idx = whole, padding
