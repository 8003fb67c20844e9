"""Perturbation with counter noise: W + c z is written into a scratch buffer, and only updates change W.

z is drawn once per pair of points. Any number of pending journal entries is applied in float32 with one rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.base import BASE, Entry, Point
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.general import General
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.passes import head as heads
from zobench.engine.passes.head import Head, Judged, Picked
from zobench.engine.passes.loss import RunningLoss, Targets
from zobench.engine.weights.blocks import Field, Memory, Pieces, Unit
from zobench.engine.weights.wire import DeviceWeights, is_read_only
from zobench.kernels import Flat, Segment, Span, Update


@dataclass(frozen=True, eq=False, slots=True)
class _Bound:
    """A unit's tensors as the model takes them: at W, which is in ``flat``, at the point that was drawn in the scratch,
    and at its ``opposite`` point. ``runs``: stretches of W and of the scratch, of one dtype each, for the tensors that
    the scratch holds at one point at a time; ``halved``: for each of the others, the scratch at both points."""

    flat: Memory
    weights: list[Tensor]
    drawn: list[Tensor]
    opposite: list[Tensor]
    runs: list[tuple[Tensor, Tensor]]
    halved: list[tuple[Tensor, Tensor]]


class Pristine(Arithmetic):
    """S = W + c z, written into ``scratch``; the opposite point is 2W - S, exactly antithetic, without a second draw.

    Entries that are not applied yet are replayed into W when a unit's turn begins, in float32 with one rounding. They
    are written into W for good once they span ``writeback_every`` steps (docs/design/METHODS.md, "Counter noise and
    pristine weights"); until then W is made anew at each turn, in the slot, which its next upload overwrites, or in
    ``weights.master``, and the base is never written.
    ``keeps``: whether a streamed unit is in the same slot at each turn, so that its tensors there are made once.
    ``cast``: the 16-bit dtype to which autocast casts the float32 matrices of products; the scratch then holds them so,
    with the same bits, at both points of a pair, and no product casts them again.
    ``route``: see :class:`~zobench.engine.directions.in_place.InPlace`; here it decides only which point of a pair is
    drawn and which one is flipped.
    """

    in_place = False

    def __init__(
        self, journal: Sequence[Entry], writeback_every: float, scratch: Tensor, weights: DeviceWeights,
        general: General | None = None, keeps: bool = True, cast: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self._journal, self._every, self._weights, self._general = journal, writeback_every, weights, general
        self._advance = _advance if general is None else general.advance
        self._scratch, self._keeps, self._cast = scratch, keeps, cast
        self._turn: Unit | None = None
        self._flat: Tensor | Pieces = scratch
        self._current = _Bound(scratch, [], [], [], [], [])
        self._in_scratch: Point | None = None  # the point that the scratch holds
        self._is_flipped = False  # whether that is the opposite of the point that was drawn
        self._layouts: dict[int, tuple[tuple[slice, Flat], ...]] = {}
        self._halves: dict[int, list[tuple[Field, bool]]] = {}
        self._bound: dict[int, _Bound] = {}
        self._seen = 0
        self._updates: dict[tuple[int, int | None, bool], tuple[Update, ...]] = {}

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        if (before := self._drawn_before(point)) is not None and self._in_scratch != unit.target(before):
            self.at(unit, before)
        begins = self._turn is not unit
        base = self._begin(unit) if begins else None
        target = unit.target(point)
        if unit.trained:
            self._move(unit, target, begins, base)
        self._in_scratch = target
        if begins and self.is_due(unit):  # the replayed entries stay: the buffer becomes what the tier must get
            unit.applied = len(self._journal)
            unit.dirty = unit.changed = True
            self._weights.pack(unit)
        if not target.scale:
            return self._current.weights  # W itself needs no copy
        return self._current.opposite if self._is_flipped else self._current.drawn

    def finish(self, unit: Unit) -> None:
        self._turn = self._in_scratch = None
        if not self._keeps:
            self.close()

    def close(self) -> None:
        self._bound.clear()
        self._flat, self._current = self._scratch, _Bound(self._scratch, [], [], [], [], [])

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """As :class:`Arithmetic` has it: no point touches the weights, but what is due is applied at every turn."""
        if self.is_due(unit):
            self.at(unit, BASE)
            self.finish(unit)

    def settle(self, unit: Unit) -> None:
        if not self.pending(unit) or is_read_only(unit, self._weights.wire):
            return
        every, self._every = self._every, 0.0
        try:
            self.at(unit, BASE)
        finally:
            self._every = every
            self.finish(unit)

    def whole(self, unit: Unit) -> list[Tensor]:
        if unit.streamed:
            return self.at(unit, BASE)
        if self.is_due(unit):
            self.settle(unit)
        assert isinstance(unit.buffer, Tensor)
        return unit.views(self.caught_up(unit, unit.buffer))

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """As :class:`Arithmetic` has it: in a copy they stay pending for the unit itself."""
        if not self.pending(unit):
            return weights
        current = weights.clone() if weights is unit.buffer else weights
        for item in unit.trainable:
            updates, states = self.pending(unit, is_decayed(item.name)), unit.states_of(item, current)
            self._advance(item.view(current), Span(item.tensor_id, item.start), updates, states=states)
        return current

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        general = self._general or General(None, {})
        for item, direction in zip(unit.trainable, out, strict=True):
            z = direction if direction.dtype == torch.float32 else torch.empty_like(direction, dtype=torch.float32)
            general.direction(seed, Span(item.tensor_id, item.start), z)
            direction.copy_(z)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it: the table itself is not touched; a tied one is settled by the head."""
        outputs = [lookup(rows) for rows in self.rows(unit, unit.fields[0], ids, points)]
        if not tied and self.is_due(unit):
            self.settle(unit)
        return outputs

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> Sequence[Judged]:
        """As :class:`Arithmetic` has it: a few vocabulary rows at a time, so that neither the head's perturbed weights
        nor the logits ever exist whole."""
        if head.compared is not None:
            return self._compared(head, head.compared.tokens, states, targets, points)
        tensors, shared = head.tensors(), Targets(targets)
        losses = [RunningLoss(shared) for _ in states]
        vocabulary, step = tensors["weight"][1].shape[0], head.rows(len(targets))
        for first in range(0, vocabulary, step):
            last = min(first + step, vocabulary)
            weights = self.part(*tensors["weight"], first, last, points)
            offset = heads.HEAD_BYTES - heads.BIAS_BYTES
            biases = self.part(*tensors["bias"], first, last, points, offset) if "bias" in tensors else None
            for at_point, running, weight in zip(states, losses, weights, strict=True):
                bias = None if biases is None else next(biases)
                running.add(head.logits(at_point, weight, bias).float(), first)
        for unit in head.units:
            self.keep_parts(unit)
        return losses

    def _compared(
        self, head: Head, tokens: Tensor, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]
    ) -> list[Picked]:
        """As :meth:`judge`, from the rows of ``tokens`` alone: the others are not perturbed, but what is due stays."""
        for unit in head.units:
            if self.is_due(unit):
                self.settle(unit)
        rows = {key: self.rows(unit, item, tokens, points) for key, (unit, item) in head.tensors().items()}
        biases = rows.get("bias")
        return [
            head.differing(state, weight, None if biases is None else next(biases).squeeze(1), targets)
            for state, weight in zip(states, rows["weight"], strict=True)
        ]

    def is_due(self, unit: Unit) -> bool:
        """Whether the unit's pending entries are to stay: they span ``writeback_every`` steps."""
        if unit.applied == len(self._journal) or not unit.trained or is_read_only(unit, self._weights.wire):
            return False
        return self._journal[-1].step - self._journal[unit.applied].step + 1 >= self._every

    def pending(self, unit: Unit, decayed: bool = True) -> tuple[Update, ...]:
        """The entries that the unit's weights at rest lack; without their weight decay if not ``decayed``."""
        if not unit.trained:
            return ()
        if self._seen != len(self._journal):
            self._seen = len(self._journal)
            self._updates.clear()
        for part in (None, unit.part):
            if (key := (unit.applied, part, decayed)) in self._updates:
                return self._updates[key]
        entries = self._journal[unit.applied :]
        named = any(entry.part is not None for entry in entries)
        self._updates[unit.applied, unit.part if named else None, decayed] = updates = tuple(
            Update(e.seed, e.g, e.lr, e.weight_decay if decayed else 0.0, e.step, e.extra)
            for e in entries
            if unit.moves(e)
        )
        return updates

    def rows(self, unit: Unit, item: Field, rows: Tensor, points: Sequence[Point]) -> Iterator[Tensor]:
        """Chosen rows of a resident matrix at each point, (len(rows), width), made in a copy; valid until the next. Of
        a vector, (len(rows), 1)."""
        assert unit.buffer is not None
        copy = item.view(unit.buffer)[rows].view(len(rows), -1)
        if not item.trainable:
            return iter([copy] * len(points))
        updates, span = self.pending(unit, is_decayed(item.name)), Span(item.tensor_id, rows=rows)
        states = [state[rows].view(len(rows), -1) for state in unit.states_of(item, unit.buffer)]
        return self._walk(unit, copy, torch.empty_like(copy), span, points, updates, None, states)

    def part(
        self, unit: Unit, item: Field, first: int, last: int, points: Sequence[Point], offset: int = 0
    ) -> Iterator[Tensor]:
        """Rows [first, last) of a resident tensor at each point, valid until the next, made at byte ``offset`` of the
        scratch. After the last part of the last tensor, :meth:`keep_parts` ends the unit's turn."""
        assert unit.buffer is not None
        whole = item.view(unit.buffer)[first:last]
        if not item.trainable:
            return iter([whole] * len(points))
        updates = self.pending(unit, is_decayed(item.name))
        scratch, weights, base = _like(self._scratch[offset:], whole), whole, None
        if updates and not self.is_due(unit):
            assert self._weights.master is not None
            weights, base = _like(self._weights.master[offset:], whole), whole
        span = Span(item.tensor_id, item.start + first * item.shape[1:].numel())
        states = [state[first:last] for state in unit.states_of(item, unit.buffer)]
        return self._walk(unit, weights, scratch, span, points, updates, base, states)

    def keep_parts(self, unit: Unit) -> None:
        """Notes that all parts of a resident unit were visited, so that entries that were due have been applied."""
        if self.is_due(unit):
            unit.applied = len(self._journal)
            unit.changed = True

    def _flips(self, first: Point | None, second: Point) -> bool:
        """Whether 2 W minus the weights at one of the points is those at the other."""
        if self._general is not None and not self._general.is_antithetic:
            return False
        return first is not None and first.seed == second.seed and first.scale == -second.scale

    def _drawn_before(self, point: Point) -> Point | None:
        """On a rank that evaluates one point of a pair: the other, if one device would draw that first, so that the
        bits are the same; None elsewhere."""
        number = self.route.index(point) if point.scale and point in self.route else 0
        before = self.route[number - 1] if number else None
        return before if before is not None and (before.seed, before.scale) == (point.seed, -point.scale) else None

    def _begin(self, unit: Unit) -> Tensor | None:
        """Decides where W is in this turn; returns what it is to be made from if that is elsewhere."""
        self._turn, self._in_scratch = unit, None
        self._flat = self._weights.unpacked(unit)
        base: Tensor | None = None
        if not unit.streamed and self.pending(unit) and not self.is_due(unit):
            assert self._weights.master is not None
            assert isinstance(unit.buffer, Tensor)
            base, self._flat = unit.buffer, self._weights.master
        self._current = self._bindings(unit)
        return base

    def _bindings(self, unit: Unit) -> _Bound:
        """Kept as long as W stays in the same memory."""
        bound = self._bound.get(id(unit))
        if bound is None or bound.flat is not self._flat:
            with torch.inference_mode(False):  # they outlive the mode
                frozen = self._weights.of(unit)
                weights = [item.bound(self._flat if item.trainable else frozen) for item in unit.fields]
                bound = _Bound(self._flat, weights, weights, weights, [], [])
                if unit.trained <= self._scratch.numel():  # a table is never perturbed whole
                    bound = self._perturbed(unit, weights)
            self._bound[id(unit)] = bound
        return bound

    def _perturbed(self, unit: Unit, weights: list[Tensor]) -> _Bound:
        """As :meth:`_bindings`, of a unit that is perturbed whole."""
        halves = {item.key: item.halves(self._scratch, self._cast) for item, _ in self._halved(unit) if self._cast}
        pairs = [
            halves.get(item.key) or (item.bound(self._scratch) if item.trainable else tensor,) * 2
            for item, tensor in zip(unit.fields, weights, strict=True)
        ]
        drawn, opposite = map(list, zip(*pairs, strict=True))
        runs = [(flat.whole(self._flat[part]), flat.whole(self._scratch[part])) for part, flat in self._layout(unit)]
        return _Bound(self._flat, weights, drawn, opposite, runs, list(halves.values()))

    def _halved(self, unit: Unit) -> list[tuple[Field, bool]]:
        """The tensors that the scratch holds at both points of a pair, in half the bits each, with whether each is
        decayed."""
        if id(unit) not in self._halves:
            is_whole = self._cast is not None and unit.trained <= self._scratch.numel()
            pairs = zip(unit.trainable, unit.decayed, strict=True)
            self._halves[id(unit)] = [(item, decayed) for item, decayed in pairs if is_whole and item.is_factor]
        return self._halves[id(unit)]

    def _layout(self, unit: Unit) -> tuple[tuple[slice, Flat], ...]:
        if id(unit) not in self._layouts:
            pieces = unit.cuts if isinstance(self._flat, Pieces) else [(0, unit.nbytes)]
            self._layouts[id(unit)] = tuple(_layout(unit, pieces, {item.key for item, _ in self._halved(unit)}))
        return self._layouts[id(unit)]

    def _move(self, unit: Unit, point: Point, begins: bool, base: Tensor | None) -> None:
        """Makes the unit's tensors at ``point``; when its turn ``begins``, first W, with what is pending."""
        scratch = self._scratch if point.scale else None
        if scratch is not None and self._flips(self._in_scratch, point):
            self._is_flipped = not self._is_flipped
            for weights, moved in self._current.runs:
                kernels.flip(weights, moved)
            return
        self._is_flipped = False
        if self._general is None:
            updates = self.pending(unit) if begins else ()
            for part, flat in self._layout(unit):
                parts = [None if memory is None else memory[part] for memory in (base, scratch)]
                kernels.advance_flat(
                    self._flat[part], flat, updates, base=parts[0], scratch=parts[1], seed=point.seed or 0,
                    scale=point.scale,
                )  # fmt: skip
            self._halve(unit, point, begins, base)
        elif scratch is not None or base is not None or (begins and self.pending(unit)):
            for item, decayed in zip(unit.trainable, unit.decayed, strict=True):
                updates = self.pending(unit, decayed) if begins else ()
                states = unit.states_of(item, unit.buffer) if unit.buffer is not None else []
                self._general.advance(
                    item.view(self._flat), Span(item.tensor_id, item.start), updates, states=states,
                    base=None if base is None else item.view(base),
                    scratch=item.view(self._scratch) if point.scale else None, seed=point.seed or 0, scale=point.scale,
                )  # fmt: skip

    def _halve(self, unit: Unit, point: Point, begins: bool, base: Tensor | None) -> None:
        """As :meth:`_move`, of the tensors that the scratch holds at both points of a pair, from one draw."""
        for (item, decayed), pair in zip(self._halved(unit), self._current.halved, strict=True):
            drawn, opposite = pair if point.scale else (None, None)
            kernels.advance(
                item.view(self._flat), Span(item.tensor_id, item.start), self.pending(unit, decayed) if begins else (),
                base=None if base is None else item.view(base), scratch=drawn, mirror=opposite, seed=point.seed or 0,
                scale=point.scale,
            )  # fmt: skip

    def _walk(
        self, unit: Unit, weights: Tensor, scratch: Tensor, span: Span, points: Iterable[Point],
        updates: Sequence[Update], base: Tensor | None, states: Sequence[Tensor],
    ) -> Iterator[Tensor]:  # fmt: skip
        """The tensor at each point, in ``weights`` or in ``scratch``; ``base``: what ``weights`` is made from, if not
        from itself."""
        reached: Point | None = None
        for point in points:
            before, target = self._drawn_before(point), unit.target(point)
            for stop in (
                (target,) if before is None or reached == unit.target(before) else (unit.target(before), target)
            ):
                moved = scratch if stop.scale else None
                if moved is not None and self._flips(reached, stop):
                    kernels.flip(weights, moved)
                elif moved is not None or updates or base is not None:
                    self._advance(
                        weights, span, updates, states=states, base=base, scratch=moved, seed=stop.seed or 0,
                        scale=stop.scale,
                    )  # fmt: skip
                reached, updates, base = stop, (), None
            yield weights if moved is None else moved


def _layout(unit: Unit, pieces: Sequence[tuple[int, int]], halved: Collection[str]) -> Iterator[tuple[slice, Flat]]:
    """Where the unit's trained tensors but the ``halved`` lie in each of its ``pieces`` of memory: those that follow
    one another in one dtype together."""
    for first, last in pieces:
        inside = [pair for pair in zip(unit.trainable, unit.decayed, strict=True) if first <= pair[0].offset < last]
        for dtype, run in itertools.groupby(inside, lambda pair: None if pair[0].key in halved else pair[0].dtype):
            if dtype is None:
                continue
            segments = [
                Segment(
                    item.tensor_id, item.start, (item.offset - first) // dtype.itemsize, item.shape.numel(), decayed
                )
                for item, decayed in run
            ]
            yield slice(first, last), Flat(dtype, segments)


def _advance(*what: Any, states: Sequence[Tensor], **others: Any) -> None:
    """:func:`zobench.kernels.advance`, called as :meth:`General.advance` is: SGD keeps no ``states``."""
    kernels.advance(*what, **others)


def _like(buffer: Tensor, tensor: Tensor) -> Tensor:
    """The beginning of a flat uint8 buffer, as a tensor like this one."""
    return buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
