"""The work of :mod:`zobench.kernels` in torch operations, for rules other than SGD's and for other directions.

The noise is the same, drawn a piece at a time: z is never stored whole here either. Each product and sum is a separate
operation, because a fused one rounds differently at the ends of a piece than inside it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.directions.noise import CHUNK, MASK
from zobench.engine.directions.shapes import moving, shaping
from zobench.engine.updates.rules import UpdateRule
from zobench.kernels import Span, Update

CUDA_CHUNK = 1 << 24
"""Elements of a piece on a CUDA device, where a launch costs more than the memory of z."""


class General:
    """Passes over the weights with a ``rule`` (None: SGD's) and ``thresholds`` by tensor id (absent: no mask), which a
    rule that shapes directions has its own use for."""

    def __init__(self, rule: UpdateRule | None, thresholds: Mapping[int, float]) -> None:
        self._rule, self._shaping, self._moving, self._thresholds = rule, shaping(rule), moving(rule), thresholds

    def advance(
        self, master: Tensor, span: Span, updates: Sequence[Update], *, states: Sequence[Tensor] = (),
        base: Tensor | None = None, scratch: Tensor | None = None, seed: int = 0, scale: float = 0.0,
    ) -> None:  # fmt: skip
        """As :func:`zobench.kernels.advance`; with a rule, all updates of one step are one application of it.

        ``states``: the rule's, of the same elements as ``master``, updated in place before they shape a direction.
        """
        if master.device.type == "meta":
            return
        flat = [None if tensor is None else tensor.view(-1) for tensor in (master, base, scratch)]
        assert flat[0] is not None
        for piece, piece_span in _pieces(span, flat[0]):
            weights = (flat[0] if flat[1] is None else flat[1])[piece].to(torch.float32, copy=True)
            piece_states = [state.view(-1)[piece] for state in states]
            for _, group in itertools.groupby(updates, key=lambda update: update.step):
                self._update(weights, piece_span, list(group), piece_states)
            if updates or base is not None:
                flat[0][piece] = weights.to(master.dtype)
            if flat[2] is not None:
                z = self._direction(seed, piece_span, weights.numel(), master.device)
                if self._shaping is not None:
                    z = self._shaping.shape(z, flat[0][piece].float(), piece_states, self._limit(piece_span))
                if self._moving is None:
                    z.mul_(scale).add_(flat[0][piece])
                else:
                    z = self._moving(flat[0][piece], z, scale)
                flat[2][piece] = z.to(master.dtype)

    @property
    def is_antithetic(self) -> bool:
        """Whether W - c z is 2 W minus W + c z."""
        return self._moving is None

    def direction(self, seed: int, span: Span, out: Tensor) -> None:
        """Writes the span's elements of the direction to ``out`` (float32, contiguous), which no rule may shape."""
        assert self._shaping is None, "the weights and states that the direction follows from are not here"
        for piece, piece_span in _pieces(span, out.view(-1)):
            out.view(-1)[piece] = self._direction(seed, piece_span, piece.stop - piece.start, out.device)

    def _update(self, weights: Tensor, span: Span, group: Sequence[Update], states: Sequence[Tensor]) -> None:
        """One step: each entry by itself, as the kernels have it, or with a rule their sum."""
        draws = ((update, self._direction(update.seed, span, weights.numel(), weights.device)) for update in group)
        if self._shaping is not None:
            self._shaping.update(weights, draws, states, self._limit(span))
        elif self._rule is None:
            for update, z in draws:
                z.mul_(update.g)
                if update.weight_decay:
                    z.add_(weights * update.weight_decay)
                weights.sub_(z.mul_(update.lr))
        else:
            whole, first = functools.reduce(Tensor.add_, (z.mul_(update.g) for update, z in draws)), group[0]
            self._rule.apply(weights, whole, states, lr=first.lr, weight_decay=first.weight_decay, step=first.step)

    def _limit(self, span: Span) -> float:
        return self._thresholds.get(span.tensor_id, math.inf)

    def _direction(self, seed: int, span: Span, count: int, device: torch.device) -> Tensor:
        """z, or the normal numbers that a rule shapes it of."""
        width = count if span.rows is None else count // len(span.rows)
        z = torch.empty(count // width, width, device=device)
        kernels.normals(seed, span, z)
        if self._shaping is None and span.tensor_id in self._thresholds:
            mask = torch.empty_like(z)
            kernels.normals(seed + MASK, span, mask)
            z.masked_fill_(mask < self._thresholds[span.tensor_id], 0.0)
        return z.view(-1)


def _pieces(span: Span, flat: Tensor) -> Iterator[tuple[slice, Span]]:
    """Pieces of a flat buffer, and the span of each."""
    size = CUDA_CHUNK if flat.is_cuda else CHUNK
    if span.rows is None:
        for start in range(0, flat.numel(), size):
            yield slice(start, min(start + size, flat.numel())), Span(span.tensor_id, span.start + start)
        return
    width = flat.numel() // max(len(span.rows), 1)
    step = max(1, size // max(width, 1))
    for first in range(0, len(span.rows), step):
        rows = span.rows[first : first + step]
        yield slice(first * width, (first + len(rows)) * width), Span(span.tensor_id, rows=rows)
