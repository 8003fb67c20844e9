"""MeZO's in-place perturbation: moves ``W += delta * z``, updates ``W -= lr * (g * z + wd * W)``, its roundings.

Every product and sum is a separate rounding in the tensor's dtype, in MeZO's order: in 16 bits the weights drift, and
that drift is part of what parity means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zobench.engine.base import Entry
from zobench.engine.directions.noise import Noise
from zobench.engine.directions.shapes import shaping
from zobench.engine.updates.rules import UpdateRule
from zobench.kernels import Update


def move(noise: Noise, seed: int, unit: int, tensors: Sequence[Tensor], delta: float) -> None:
    """``W += delta * z(seed)`` on the unit's tensors, in place."""
    for _, _, weight, z in noise.draw(seed, unit, tensors):
        weight.add_(z.mul_(delta))


def write(noise: Noise, seed: int, unit: int, tensors: Sequence[Tensor], delta: float, out: Sequence[Tensor]) -> None:
    """``out = W + delta * z(seed)`` of the unit's tensors W, rounded as :func:`move` does; W stays."""
    for index, start, weight, z in noise.draw(seed, unit, tensors):
        torch.add(weight, z.mul_(delta), out=out[index].view(-1)[start : start + len(weight)])


def move_and_gather(noise: Noise, seed: int, unit: int, table: Tensor, delta: float, rows: Tensor) -> Tensor:
    """``table += delta * z(seed)`` in place, and the rows of z that belong to ``rows``; delta 0 only gathers.

    ``table`` is the unit's only tensor, of shape (vocabulary, width); ``rows`` a 1-D tensor of indices into it.
    Returns (len(rows), width) in the table's dtype.
    """
    width = table.shape[1]
    gathered = torch.empty(rows.numel(), width, dtype=table.dtype, device=table.device)
    for _, start, weight, z in noise.draw(seed, unit, [table]):
        if z.numel() == table.numel():
            torch.index_select(z.view(-1, width), 0, rows, out=gathered)
        else:
            first, last = start // width, (start + z.numel()) // width
            inside = (rows >= first) & (rows < last)
            gathered[inside] = z.view(-1, width)[rows[inside] - first]
        if delta:
            weight.add_(z.mul_(delta))
    return gathered


def update(noise: Noise, entry: Entry, unit: int, tensors: Sequence[Tensor], decayed: Sequence[bool]) -> None:
    """Replays one journal entry on the unit's tensors, in place; weight decay only where ``decayed``."""
    for index, _, weight, z in noise.draw(entry.seed, unit, tensors):
        z.mul_(entry.g)
        if entry.weight_decay and decayed[index]:
            z.add_(weight * entry.weight_decay)
        weight.sub_(z.mul_(entry.lr))


def apply_rule(
    noise: Noise, rule: UpdateRule, entries: Sequence[Entry], unit: int, tensors: Sequence[Tensor],
    states: Sequence[Sequence[Tensor]], decayed: Sequence[bool],
) -> None:  # fmt: skip
    """The update of one step by ``rule``, in place, rounded once: ``entries`` are all of that step's, ``states`` each
    tensor's. A rule that shapes directions shapes what ``noise`` draws."""
    draws = [noise.draw(entry.seed, unit, tensors, lane) for lane, entry in enumerate(entries)]
    first, shapes = entries[0], shaping(rule)
    for pieces in zip(*draws, strict=True):
        index, start, weights, _ = pieces[0]
        inside = [state.view(-1)[start : start + weights.numel()] for state in states[index]]
        decay = [entry.weight_decay if decayed[index] else 0.0 for entry in entries]
        if shapes is None:
            estimate = torch.zeros(weights.numel(), device=weights.device)
            for entry, (_, _, _, z) in zip(entries, pieces, strict=True):
                estimate.add_(z.float().mul_(entry.g))  # not alpha=: a fused sum rounds differently at a piece's ends
            rule.apply(weights, estimate, inside, lr=first.lr, weight_decay=decay[0], step=first.step)
            continue
        updates = (Update(e.seed, e.g, e.lr, d, e.step, e.extra) for e, d in zip(entries, decay, strict=True))
        wide = weights.float()
        shapes.update(wide, zip(updates, (u.float() for *_, u in pieces), strict=True), inside, math.inf)
        if wide is not weights:
            weights.copy_(wide)


def is_decayed(name: str) -> bool:
    """MeZO's rule: weight decay skips parameters whose name has bias, layer_norm or layernorm."""
    return not any(word in name for word in ("bias", "layer_norm", "layernorm"))
