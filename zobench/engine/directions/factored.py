"""The arithmetic of low-rank directions: W + c A F B is never made, but added to the products that W is used in.

Where ``x W^T`` is needed at several points, W is multiplied once by all of them. :class:`Factored` adds to each point's
part what ``A (P + c F) B`` adds, as two narrow products: P holds the updates that are pending in the subspace of A and
B, so that W at rest changes only when its subspace does, and then once. :class:`RowFactored` serves a population, whose
points have each a direction for themselves: a batch of small products adds ``c (x V) U^T`` to the rows of each, and U
and V are drawn where a tensor is used, and let go of after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from zobench import kernels
from zobench.data.batch import IGNORED
from zobench.engine.base import BASE, Entry, Point
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.factor_rules import ALL, add_each
from zobench.engine.directions.factors import LowRank, subspace_of, whole
from zobench.engine.directions.low_rank_unit import Located, LowRankUnit, correct
from zobench.engine.passes.drive import finished
from zobench.engine.passes.head import Head, Picked
from zobench.engine.passes.loss import RunningLoss, Targets
from zobench.engine.updates.pending import PendingUpdates
from zobench.engine.weights.blocks import Field, Unit
from zobench.engine.weights.wire import DeviceWeights
from zobench.kernels import Span
from zobench.models.weights import Weights

CACHED = 2 << 20
"""Bytes of float32 logits that stay in a processor's cache while their maximum and sum are taken."""
TensorRef = tuple[Unit, int]
"""A tensor: the number of a field of its unit."""


class Factored(Arithmetic):
    """Directions of low rank, added to products. Pending entries stay beside the weights (:class:`PendingUpdates`).

    ``points``: all of a pass: once one of them leaves a subspace, what is pending in it is written into W.
    """

    in_place = False

    def __init__(
        self, directions: LowRank, journal: Sequence[Entry], writeback_every: float, device: str,
        weights: DeviceWeights, state: Weights | None = None,
    ) -> None:  # fmt: skip
        self._directions, self._weights = directions, weights
        self._updates = PendingUpdates(directions, journal, writeback_every, device, weights, state)
        self._on_device: dict[int, LowRankUnit] = {}

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin(self, unit: Unit) -> list[Tensor]:
        """Begins the unit's turn, if it has not begun: what is due is written into W. Returns W, one tensor for each of
        its fields, for :meth:`product` alone."""
        if id(unit) not in self._on_device:
            self._on_device[id(unit)] = self._begun(unit, self.points)
        return self._on_device[id(unit)].tensors

    def _begun(self, unit: Unit, points: Sequence[Point]) -> LowRankUnit:
        weights = self._weights.unpacked(unit)
        if due := self._updates.due(unit, points):
            self._updates.write(unit, weights, due)
        return LowRankUnit(unit, unit.views(weights), *self._updates.terms(unit), self._updates)

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """As :class:`Arithmetic` has it: what the point changes is made anew, W itself as it will be written."""
        self.begin(unit)
        low_rank = self._on_device[id(unit)]
        if point == BASE and low_rank.pending:
            return unit.views(self._updates.caught_up(unit, self._weights.of(unit)))
        return [low_rank.made(number, point) for number in range(len(unit.fields))]

    def finish(self, unit: Unit) -> None:
        self._on_device.pop(id(unit), None)
        self._updates.forget(unit, self.points)
        if not unit.streamed and not unit.is_tile and unit.buffer is not None:
            unit.bind(unit.views(unit.buffer))

    def close(self) -> None:
        self._on_device.clear()
        self._updates.close()

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """As :class:`Arithmetic` has it: no point touches the weights, but leaving a subspace does."""
        if self._updates.due(unit, points):
            self._begun(unit, points)

    def settle(self, unit: Unit) -> None:
        self._updates.settle(unit)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        current = self._updates.caught_up(unit, weights)
        assert isinstance(current, Tensor)
        return current

    def state(self, unit: Unit) -> tuple[Sequence[Field], Tensor | None]:
        return self._updates.state(unit)

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """As :class:`Arithmetic` has it: of a direction that shares its subspace with no other."""
        for item, z in zip(unit.trainable, out, strict=True):
            self._directions.direction(item, seed, seed, z)

    # --- what W is used in --------------------------------------------------------------------------------------------

    def product(
        self, weight: TensorRef, bias: TensorRef | None, x: Tensor, points: Sequence[Point], *,
        transposed: bool = False, rows: slice = ALL,
    ) -> Tensor:  # fmt: skip
        """``x W^T + b`` of a linear layer, each of ``points`` on its part of ``x`` (points * n, ..., inputs).

        ``transposed``: W is (inputs, outputs), as GPT-2 has it. ``rows``: only these outputs.
        """
        unit, number = located = self._located(weight)
        shift = None if bias is None else self._located(bias)
        matrix = unit.tensors[number] if transposed else unit.tensors[number][rows]
        if not any(owner.is_moved(index, points) for owner, index in (located, shift or located)):
            vector = None if shift is None else shift[0].tensors[shift[1]][rows]
            return functional.linear(x, matrix.T if transposed else matrix, vector)
        flat = x.reshape(-1, x.shape[-1])
        y = flat @ matrix if transposed else functional.linear(flat, matrix)
        size, first = len(flat) // len(points), 0
        for _, same in itertools.groupby(points, lambda point: [term[0] for term in unit.terms(number, point)]):
            group = list(same)  # points of the same subspaces
            inside = slice(first * size, (first + len(group)) * size)
            correct(located, shift, flat[inside], y[inside], group, transposed, rows)
            first += len(group)
        return y.view(*x.shape[:-1], y.shape[-1])

    def made(self, ref: TensorRef, point: Point) -> Tensor:
        """A tensor at a point; W itself where that is the same."""
        low_rank, number = self._located(ref)
        return low_rank.made(number, point)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it: the rows of W are gathered once."""
        (table,) = self.begin(unit)
        low_rank, gathered = self._on_device[id(unit)], table[ids]
        moved = (low_rank.rows(0, p, gathered, ids) if low_rank.is_moved(0, (p,)) else gathered for p in points)
        outputs = [lookup(rows) for rows in moved]
        self.finish(unit)
        return outputs

    def judge(
        self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]
    ) -> Sequence[RunningLoss | Picked]:
        """As :class:`Arithmetic` has it: a few vocabulary rows at a time, all points at once."""
        together, shared = torch.cat(list(states)), Targets(targets)
        losses = [RunningLoss(shared) for _ in states]
        room = min(head.logits_bytes, CACHED) if together.is_cpu else head.logits_bytes
        for first, logits in self._logits(head, together, points, room):
            for running, part in zip(losses, logits.chunk(len(states)), strict=True):
                running.add(part, first)
        return losses

    def _logits(self, head: Head, states: Tensor, points: Sequence[Point], nbytes: int) -> Iterator[tuple[int, Tensor]]:
        """(first vocabulary row, float32 logits (n, rows)) of ``states`` (n, width), of which each point has a part;
        ``nbytes`` of logits at a time. It is the head's last use in a pass."""
        for unit in head.units:
            self.begin(unit)
        refs = {key: (unit, unit.fields.index(item)) for key, (unit, item) in head.tensors().items()}
        low_rank, number = self._located(refs["weight"])
        vocabulary, step = len(low_rank.tensors[number]), max(1, nbytes // (4 * len(states)))
        for first in range(0, vocabulary, step):
            rows = slice(first, min(first + step, vocabulary))
            output = self.product(refs["weight"], refs.get("bias"), states, points, rows=rows)
            yield first, finished(output, head.notes).float()
        for unit in head.units:
            self.finish(unit)

    def _located(self, ref: TensorRef) -> Located:
        return self._on_device[id(ref[0])], ref[1]


class DirectionBatch:
    """The directions of some points, one for each run of ``each`` neighbours: antithetic pairs share theirs.

    All that it draws is float32 with one row for each direction. ``count`` directions serve the points; those that are
    W itself have the scale 0.
    """

    def __init__(self, directions: LowRank, points: Sequence[Point], device: torch.device | str) -> None:
        self._rank, self._root, self._device = directions.rank, math.sqrt(directions.rank), device
        self.points = points
        keys = [(0, 0) if point.seed is None else (point.seed, subspace_of(point)) for point in points]
        firsts = [number for number, key in enumerate(keys) if not number or key != keys[number - 1]]
        lengths = {after - before for before, after in zip(firsts, [*firsts[1:], len(keys)], strict=True)}
        self.each = lengths.pop() if len(lengths) == 1 else 1
        self._seeds, self._subspaces = zip(*keys[:: self.each], strict=True)
        self.count = len(self._seeds)

    def moves(self, unit: Unit, number: int) -> bool:
        """Whether the tensor of a unit's field is another than W at one of the points."""
        return unit.fields[number].trainable and any(unit.target(point).scale for point in self.points)

    def scales(self, unit: Unit, like: Tensor | None = None) -> Tensor:
        """How far each point's rows go, (directions, n, 1): for what is ``like`` (directions, n, ...), in its dtype; by
        default one row for each point, float32."""
        scales = torch.tensor([unit.target(point).scale for point in self.points], device=self._device)
        if like is not None:
            scales = scales.repeat_interleave(like.shape[1] // self.each).to(like.dtype)
        return scales.view(self.count, -1, 1)

    def left(self, item: Field, rows: slice) -> Tensor:
        """U^T of a matrix, (directions, rank, rows), of some of the rows that the field holds."""
        first, last, _ = rows.indices(item.shape[0])
        span = Span(item.tensor_id, (item.first + first) * self._rank)
        return self._drawn(self._seeds, span, last - first, self._rank).transpose(1, 2).contiguous()

    def left_of(self, item: Field, rows: Tensor) -> Tensor:
        """U of a matrix's rows ``rows`` (n,), those of each direction in turn: (directions, n / directions, rank)."""
        drawn = torch.empty(self.count, len(rows) // self.count, self._rank, device=self._device)
        for seed, part, out in zip(self._seeds, rows.chunk(self.count), drawn, strict=True):
            kernels.normals(seed, Span(item.tensor_id, rows=part.contiguous()), out)
        return drawn

    def right(self, item: Field) -> Tensor:
        """V^T of a matrix, (directions, rank, columns)."""
        rows, columns = whole(item)
        drawn = self._drawn(self._subspaces, Span(item.tensor_id, rows * self._rank), self._rank, columns)
        return drawn.div_(self._root)

    def vectors(self, item: Field, rows: slice) -> Tensor:
        """z of a vector, (directions, rows), of some of the elements that the field holds."""
        first, last, _ = rows.indices(item.shape[0])
        return self._drawn(self._seeds, Span(item.tensor_id, item.start + first), last - first)

    def _drawn(self, seeds: Sequence[int], span: Span, *shape: int) -> Tensor:
        out = torch.empty(len(seeds), *shape, device=self._device)
        kernels.normals_each(seeds, span, out)
        return out


class RowFactored(Factored):
    """As :class:`Factored`, for points of which hardly two share a subspace."""

    _batch: DirectionBatch | None = None

    def product(
        self, weight: TensorRef, bias: TensorRef | None, x: Tensor, points: Sequence[Point], *,
        transposed: bool = False, rows: slice = ALL,
    ) -> Tensor:  # fmt: skip
        """As :meth:`Factored.product`."""
        y = super().product(weight, bias, x, (BASE,), transposed=transposed, rows=rows)
        batch = self._batch_of(points, y.device)
        outputs = y.view(batch.count, -1, y.shape[-1])
        terms = list[tuple[Tensor, Tensor]]()  # of the weight and of the bias: (g, n, rank) and (g, rank, outputs)
        (unit, number), item = weight, weight[0].fields[weight[1]]
        if batch.moves(unit, number):
            u, v = batch.left(item, ALL if transposed else rows).to(y.dtype), batch.right(item).to(y.dtype)
            inner, outer = (u, v) if transposed else (v, u)
            narrow = x.reshape(batch.count, -1, x.shape[-1]).to(y.dtype) @ inner.transpose(1, 2)
            terms.append((narrow * batch.scales(unit, narrow), outer))
        if bias is not None and batch.moves(*bias):
            vectors = batch.vectors(bias[0].fields[bias[1]], rows).to(y.dtype)
            terms.append((batch.scales(bias[0], outputs), vectors.unsqueeze(1)))
        if terms:
            narrows, lefts = zip(*terms, strict=True)
            add_each(outputs, torch.cat(narrows, 2), torch.cat(lefts, 1))
        return y

    def vectors(self, ref: TensorRef, points: Sequence[Point]) -> Tensor:
        """A vector at each of ``points``, in W's dtype, (points, n)."""
        low_rank, number = self._located(ref)
        vectors, dtype = low_rank.vector(number, BASE), low_rank.tensors[number].dtype
        batch = self._batch_of(points, low_rank.tensors[number].device)
        if batch.moves(low_rank.unit, number):
            drawn = batch.vectors(low_rank.unit.fields[number], ALL).unsqueeze(1)
            vectors = vectors + batch.scales(low_rank.unit) * drawn
        return vectors.to(dtype).expand(batch.count, batch.each, -1).reshape(len(points), -1)

    # --- tables -------------------------------------------------------------------------------------------------------

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it, but ``ids`` (points * n,) are those of all points; the output is one."""
        (rows,) = super().embed(unit, ids, (BASE,), lambda rows: rows, tied)
        batch, item = self._batch_of(points, rows.device), unit.fields[0]
        if batch.moves(unit, 0):
            outputs = rows.view(batch.count, -1, rows.shape[-1])
            narrow = batch.left_of(item, ids).to(rows.dtype)
            add_each(outputs, narrow * batch.scales(unit, narrow), batch.right(item).to(rows.dtype))
        return [lookup(rows)]

    def embedded(
        self, ref: TensorRef, lookup: Callable[[Tensor], Tensor], points: Sequence[Point], rows: int
    ) -> Tensor:
        """A table of positions, or another that is not the words', looked up for ``rows`` rows at each of ``points``.

        ``lookup(table)`` is the module's own forward with another table, whatever its columns: (points * rows, tokens,
        columns), or without the first dimension, or 1 in it, what all rows share.
        """
        low_rank, number = self._located(ref)
        item, batch = low_rank.unit.fields[number], self._batch_of(points, low_rank.tensors[number].device)
        total, y = len(points) * rows, _with_rows(lookup(low_rank.made(number, BASE)))
        shared, tokens = y.shape[0] != total, y.shape[1]
        y = y.expand(total, -1, -1).contiguous() if shared else y
        if batch.moves(low_rank.unit, number):
            left = batch.left(item, ALL).flatten(0, 1).T.contiguous().to(y.dtype)
            u = _with_rows(lookup(left)).unflatten(2, (batch.count, -1))
            if shared:
                narrow = u.permute(2, 0, 1, 3).expand(-1, total // batch.count, -1, -1)
            else:
                direction = torch.arange(batch.count, device=u.device).repeat_interleave(total // batch.count)
                narrow = u[torch.arange(total, device=u.device), :, direction]
            narrow = narrow.reshape(batch.count, -1, narrow.shape[-1])
            outputs = y.view(batch.count, total // batch.count * tokens, -1)
            add_each(outputs, narrow * batch.scales(low_rank.unit, narrow), batch.right(item).to(y.dtype))
        return y

    # --- head ---------------------------------------------------------------------------------------------------------

    def judge(
        self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]
    ) -> Sequence[RunningLoss | Picked]:
        return self.judge_each(head, states, [targets] * len(states), points)

    def judge_each(
        self, head: Head, states: Sequence[Tensor], targets: Sequence[Tensor], points: Sequence[Point]
    ) -> list[Picked]:
        """As :meth:`judge`, of points that have each their own ``targets``: those of unequal number are padded."""
        together = pad_sequence(list(states), batch_first=True)
        wanted = pad_sequence(list(targets), batch_first=True, padding_value=IGNORED)
        running = RunningLoss(Targets(wanted.flatten()))
        for first, logits in self._logits(head, together.flatten(0, 1), points, head.logits_bytes):
            running.add(logits, first)
        picked = running.log_probabilities().view_as(wanted)
        return [Picked(values[: len(row)], row) for values, row in zip(picked, targets, strict=True)]

    def logits(self, head: Head, states: Tensor, points: Sequence[Point]) -> Tensor:
        """The model's logits of ``states`` (points * n, width), float32 (points * n, vocabulary)."""
        return torch.cat([part for _, part in self._logits(head, states, points, head.logits_bytes)], 1)

    def _batch_of(self, points: Sequence[Point], device: torch.device) -> DirectionBatch:
        """Their directions; those of the last points that were asked for are kept."""
        if self._batch is None or self._batch.points is not points:
            self._batch = DirectionBatch(self._directions, points, device)
        return self._batch


def _with_rows(output: Tensor) -> Tensor:
    """Returns the output of a table's forward with a dimension for rows."""
    return output if output.ndim == 3 else output.unsqueeze(0)
