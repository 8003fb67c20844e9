"""The arithmetic of a population: many points at once, each with a direction of low rank for itself.

All points share ``x W^T``; a batch of small products adds ``c (x V) U^T`` to the rows of each. No W + c U V^T is made,
and U and V are drawn where a tensor is used, and let go of after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zobench.data.batch import IGNORED
from zobench.engine.apart import Ways
from zobench.engine.base import BASE, Point
from zobench.engine.basis import ALL
from zobench.engine.blocks import Unit
from zobench.engine.factored import Factored, Place
from zobench.engine.head import Head, Picked
from zobench.engine.logits import finished
from zobench.engine.loss import RunningLoss, Targets
from zobench.engine.thin import add_each


class RowFactored(Factored):
    """As :class:`Factored`, for points of which hardly two share a subspace."""

    _ways: Ways | None = None

    def product(
        self, weight: Place, bias: Place | None, x: Tensor, points: Sequence[Point], *, transposed: bool = False,
        rows: slice = ALL,
    ) -> Tensor:  # fmt: skip
        """``x W^T + b`` of a linear layer, each of ``points`` on its part of ``x`` (points * n, ..., inputs)."""
        y = super().product(weight, bias, x, (BASE,), transposed=transposed, rows=rows)
        ways = self._ways_of(points, y.device)
        each = y.view(ways.count, -1, y.shape[-1])
        columns = [*self._matrix(ways, weight, x, each, transposed, rows), *self._shift(ways, bias, each, rows)]
        if columns:
            thin, left = (torch.cat(parts, dim) for parts, dim in zip(zip(*columns, strict=True), (2, 1), strict=True))
            add_each(each, thin, left)
        return y

    def _matrix(
        self, ways: Ways, place: Place, x: Tensor, y: Tensor, transposed: bool, rows: slice
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What a matrix's directions add to ``x W^T``, as a thin product: (g, n, rank) and (g, rank, outputs)."""
        unit, number = place
        item = unit.fields[number]
        if item.trainable and ways.moves(unit):
            u, v = ways.left(item, ALL if transposed else rows).to(y.dtype), ways.right(item).to(y.dtype)
            inner, outer = (u, v) if transposed else (v, u)
            thin = x.reshape(ways.count, -1, x.shape[-1]).to(y.dtype) @ inner.transpose(1, 2)
            yield thin * self._scales(ways, unit, thin), outer

    def _shift(self, ways: Ways, place: Place | None, y: Tensor, rows: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """What a bias's directions add, in the same form."""
        if place is not None and place[0].fields[place[1]].trainable and ways.moves(place[0]):
            yield (
                self._scales(ways, place[0], y),
                ways.vectors(place[0].fields[place[1]], rows).to(y.dtype).unsqueeze(1),
            )

    def vectors(self, place: Place, points: Sequence[Point]) -> Tensor:
        """A vector at each of ``points``, in W's dtype, (points, n)."""
        turn, number = self._held(place)
        own, ways = turn.vector(number, BASE), self._ways_of(points, turn.tensors[number].device)
        item = turn.unit.fields[number]
        if item.trainable and ways.moves(turn.unit):
            own = own + ways.scales(turn.unit) * ways.vectors(item, ALL).unsqueeze(1)
        return own.to(turn.tensors[number].dtype).expand(ways.count, ways.each, -1).reshape(len(points), -1)

    # --- tables -------------------------------------------------------------------------------------------------------

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it, but ``ids`` (points * n,) are those of all points; the output is one."""
        (rows,) = super().embed(unit, ids, (BASE,), lambda rows: rows, tied)
        ways, item = self._ways_of(points, rows.device), unit.fields[0]
        if item.trainable and ways.moves(unit):
            each = rows.view(ways.count, -1, rows.shape[-1])
            thin = ways.left_of(item, ids).to(rows.dtype)
            add_each(each, thin * self._scales(ways, unit, thin), ways.right(item).to(rows.dtype))
        return [lookup(rows)]

    def looked_up(self, place: Place, lookup: Callable[[Tensor], Tensor], points: Sequence[Point], rows: int) -> Tensor:
        """A table of positions, or another that is not the words', looked up for ``rows`` rows at each of ``points``.

        ``lookup(table)`` is the module's own forward with another table, whatever its columns: (points * rows, tokens,
        columns), or without the first dimension, or 1 in it, what all rows share.
        """
        turn, number = self._held(place)
        item, ways = turn.unit.fields[number], self._ways_of(points, turn.tensors[number].device)
        total, y = len(points) * rows, _with_rows(lookup(turn.made(number, BASE)))
        shared, tokens = y.shape[0] != total, y.shape[1]
        y = y.expand(total, -1, -1).contiguous() if shared else y
        if item.trainable and ways.moves(turn.unit):
            left = ways.left(item, ALL).flatten(0, 1).T.contiguous().to(y.dtype)
            u = _with_rows(lookup(left)).unflatten(2, (ways.count, -1))
            if shared:
                thin = u.permute(2, 0, 1, 3).expand(-1, total // ways.count, -1, -1)
            else:
                own = torch.arange(ways.count, device=u.device).repeat_interleave(total // ways.count)
                thin = u[torch.arange(total, device=u.device), :, own]
            thin = thin.reshape(ways.count, -1, thin.shape[-1])
            each = y.view(ways.count, total // ways.count * tokens, -1)
            add_each(each, thin * self._scales(ways, turn.unit, thin), ways.right(item).to(y.dtype))
        return y

    # --- head ---------------------------------------------------------------------------------------------------------

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> list[Picked]:  # type: ignore[override]
        """See :class:`Arithmetic`."""
        return self.judge_each(head, states, [targets] * len(states), points)

    def judge_each(
        self, head: Head, states: Sequence[Tensor], targets: Sequence[Tensor], points: Sequence[Point]
    ) -> list[Picked]:
        """The same of points that have each their own ``targets``: those of unequal number are padded."""
        together = pad_sequence(list(states), batch_first=True)
        wanted = pad_sequence(list(targets), batch_first=True, padding_value=IGNORED)
        running = RunningLoss(Targets(wanted.flatten()))
        for first, logits in self._logits(head, together.flatten(0, 1), points):
            running.add(logits, first)
        picked = running.log_probabilities().view_as(wanted)
        return [Picked(own[: len(mine)], mine) for own, mine in zip(picked, targets, strict=True)]

    def logits(self, head: Head, states: Tensor, points: Sequence[Point]) -> Tensor:
        """The model's logits of ``states`` (points * n, width), float32 (points * n, vocabulary)."""
        return torch.cat([own for _, own in self._logits(head, states, points)], 1)

    def _logits(self, head: Head, states: Tensor, points: Sequence[Point]) -> Iterator[tuple[int, Tensor]]:
        """The same for a few vocabulary rows at a time, and the first of them. It is the head's last use in a pass."""
        for unit in head.units:
            self.begin(unit)
        places = {key: (unit, unit.fields.index(item)) for key, (unit, item) in head.tensors().items()}
        turn, number = self._held(places["weight"])
        vocabulary, step = len(turn.tensors[number]), max(1, head.logits_bytes // (4 * len(states)))
        for first in range(0, vocabulary, step):
            rows = slice(first, min(first + step, vocabulary))
            product = self.product(places["weight"], places.get("bias"), states, points, rows=rows)
            yield first, finished(product, head.notes).float()
        for unit in head.units:
            self.rest(unit)

    def _ways_of(self, points: Sequence[Point], device: torch.device) -> Ways:
        """Their directions: those of the last points that were asked for are known."""
        if self._ways is None or self._ways.points is not points:
            self._ways = Ways(self._directions, points, device)
        return self._ways

    def _scales(self, ways: Ways, unit: Unit, like: Tensor) -> Tensor:
        """(g, n, 1) for what has the shape (g, n, ...), in its dtype."""
        return ways.scales(unit, like.shape[1] // ways.each).to(like.dtype)


def _with_rows(looked: Tensor) -> Tensor:
    """What a table gives, with a dimension for rows."""
    return looked if looked.ndim == 3 else looked.unsqueeze(0)
