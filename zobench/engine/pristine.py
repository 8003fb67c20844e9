"""Perturbation with counter noise: W + c z is written into a scratch buffer, and only updates change W.

z is drawn once per pair of points. Any number of pending journal entries is applied in float32 with one rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine import head as heads
from zobench.engine.base import BASE, Entry, Point
from zobench.engine.blocks import Field, Memory, Pieces, Unit
from zobench.engine.general import General
from zobench.engine.head import Head
from zobench.engine.loss import RunningLoss, Targets
from zobench.engine.perturb import is_decayed
from zobench.engine.wire import Wire, is_read_only
from zobench.kernels import Flat, Segment, Span, Update


@dataclass(frozen=True, eq=False, slots=True)
class _Bound:
    """A unit's tensors as the model takes them, at W, which is in ``flat``, and as ``made`` at a point in the scratch;
    ``runs``: its tensors of one dtype each, whole in W and in the scratch."""

    flat: Memory
    weights: list[Tensor]
    made: list[Tensor]
    runs: list[tuple[Tensor, Tensor]]


class Pristine:
    """W + c z made fresh in ``scratch``; the opposite point is 2W - S, exactly antithetic and without a second draw.

    Entries that are not applied yet are replayed into W when a unit's turn begins, in float32 with one rounding. They
    stay from ``writeback_every`` steps on (docs/design/METHODS.md, "Counter noise and pristine weights"); until then W
    is made anew at each turn, in the slot, which its next upload overwrites, or in ``master``, and the base is never
    written.
    ``keeps``: whether a streamed unit is in the same slot at each turn, so that its tensors there are made once.
    ``route``: see :class:`~zobench.engine.in_place.InPlace`; here it decides only which point of a pair is
    drawn and which one is flipped.
    """

    points: tuple[Point, ...] = ()
    route: tuple[Point, ...] = ()
    in_place = False

    def __init__(
        self, journal: Sequence[Entry], writeback_every: float, scratch: Tensor, wire: Wire | None = None,
        master: Tensor | None = None, general: General | None = None, keeps: bool = True,
    ) -> None:  # fmt: skip
        self._journal, self._every, self._wire, self._general = journal, writeback_every, wire, general
        self._scratch, self._master, self._keeps = scratch, master, keeps
        self._turn: Unit | None = None
        self._flat: Tensor | Pieces = scratch
        self._here = _Bound(scratch, [], [], [])
        self._held: Point | None = None
        self._layouts: dict[int, tuple[tuple[slice, Flat], ...]] = {}
        self._bound: dict[int, _Bound] = {}
        self._seen = 0
        self._updates: dict[tuple[int, int | None, bool], tuple[Update, ...]] = {}

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        if (before := self._drawn_before(point)) is not None and self._held != unit.own(before):
            self.at(unit, before)
        begins = self._turn is not unit
        base = self._begin(unit) if begins else None
        there = unit.own(point)
        if unit.trained:
            self._move(unit, there, begins, base)
        self._held = there
        if begins and self.is_due(unit):
            self._keep(unit)
        return self._here.made if there.scale else self._here.weights  # W itself needs no copy

    def rest(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self._turn = self._held = None
        if not self._keeps:
            self.close()

    def close(self) -> None:
        """See :class:`Arithmetic`."""
        self._bound.clear()
        self._flat, self._here = self._scratch, _Bound(self._scratch, [], [], [])

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """See :class:`Arithmetic`: no point touches the weights, but what is due is applied at every turn."""
        if self.is_due(unit):
            self.at(unit, BASE)
            self.rest(unit)

    def settle(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        if not self.pending(unit) or is_read_only(unit, self._wire):
            return
        every, self._every = self._every, 0.0
        try:
            self.at(unit, BASE)
        finally:
            self._every = every
            self.rest(unit)

    def whole(self, unit: Unit) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        if unit.streamed:
            return self.at(unit, BASE)
        if self.is_due(unit):
            self.settle(unit)
        assert isinstance(unit.buffer, Tensor)
        return unit.views(self.caught_up(unit, unit.buffer))

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """See :class:`Arithmetic`: in a copy they stay pending for the unit itself."""
        if not self.pending(unit):
            return weights
        own = weights.clone() if weights is unit.buffer else weights
        for item in unit.trainable:
            updates, states = self.pending(unit, is_decayed(item.name)), unit.states_of(item, own)
            self._advance(item.view(own), Span(item.tensor_id, item.start), updates, states)
        return own

    def state(self, unit: Unit) -> tuple[Sequence[Field], None]:
        """See :class:`Arithmetic`: it rests beside the weights."""
        return (), None

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """See :class:`Arithmetic`."""
        general = self._general or General(None, {})
        for item, direction in zip(unit.trainable, out, strict=True):
            z = direction if direction.dtype == torch.float32 else torch.empty_like(direction, dtype=torch.float32)
            general.direction(seed, Span(item.tensor_id, item.start), z)
            direction.copy_(z)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """See :class:`Arithmetic`: the table itself is not touched; a tied one is settled by the head."""
        outputs = [lookup(own) for own in self.rows(unit, unit.fields[0], ids, points)]
        if not tied and self.is_due(unit):
            self.settle(unit)
        return outputs

    def judge(
        self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]
    ) -> list[RunningLoss]:
        """See :class:`Arithmetic`: a few vocabulary rows at a time, so that neither the head's perturbed weights nor
        the logits ever exist whole."""
        where, shared = head.tensors(), Targets(targets)
        losses = [RunningLoss(shared) for _ in states]
        vocabulary, step = where["weight"][1].shape[0], head.rows(len(targets))
        for first in range(0, vocabulary, step):
            last = min(first + step, vocabulary)
            weights = self.part(*where["weight"], first, last, points)
            place = heads.HEAD_BYTES - heads.BIAS_BYTES
            biases = self.part(*where["bias"], first, last, points, place) if "bias" in where else None
            for own, running, weight in zip(states, losses, weights, strict=True):
                bias = None if biases is None else next(biases)
                running.add(head.logits(own, weight, bias).float(), first)
        for unit in head.units:
            self.keep_parts(unit)
        return losses

    def is_due(self, unit: Unit) -> bool:
        """Whether the unit's pending entries are to stay: they span ``writeback_every`` steps."""
        if unit.applied == len(self._journal) or not unit.trained or is_read_only(unit, self._wire):
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
        """Chosen rows of a resident matrix at each point, (len(rows), width), made in a copy; valid until the next."""
        assert unit.buffer is not None
        copy = item.view(unit.buffer)[rows]
        if not item.trainable:
            return iter([copy] * len(points))
        updates, span = self.pending(unit, is_decayed(item.name)), Span(item.tensor_id, rows=rows)
        states = [state[rows] for state in unit.states_of(item, unit.buffer)]
        return self._walk(unit, copy, torch.empty_like(copy), span, points, updates, None, states)

    def part(
        self, unit: Unit, item: Field, first: int, last: int, points: Sequence[Point], place: int = 0
    ) -> Iterator[Tensor]:
        """Rows [first, last) of a resident tensor at each point, valid until the next, made at byte ``place`` of the
        scratch. After the last part of the last tensor, :meth:`keep_parts` ends the unit's turn."""
        assert unit.buffer is not None
        whole = item.view(unit.buffer)[first:last]
        if not item.trainable:
            return iter([whole] * len(points))
        updates = self.pending(unit, is_decayed(item.name))
        scratch, weights, base = _like(self._scratch[place:], whole), whole, None
        if updates and not self.is_due(unit):
            assert self._master is not None
            weights, base = _like(self._master[place:], whole), whole
        span = Span(item.tensor_id, item.start + first * item.shape[1:].numel())
        states = [state[first:last] for state in unit.states_of(item, unit.buffer)]
        return self._walk(unit, weights, scratch, span, points, updates, base, states)

    def keep_parts(self, unit: Unit) -> None:
        """Notes that all parts of a resident unit were visited, so that entries that were due have been applied."""
        if self.is_due(unit):
            unit.applied = len(self._journal)
            unit.changed = True

    def _flips(self, here: Point | None, there: Point) -> bool:
        """Whether 2 W minus one of them is the other."""
        if self._general is not None and not self._general.is_antithetic:
            return False
        return here is not None and here.seed == there.seed and here.scale == -there.scale

    def _drawn_before(self, point: Point) -> Point | None:
        """The point that ``point`` is flipped from where one device looks at both, if this one does not."""
        place = self.route.index(point) if point.scale and point in self.route else 0
        before = self.route[place - 1] if place else None
        return before if before is not None and (before.seed, before.scale) == (point.seed, -point.scale) else None

    def _begin(self, unit: Unit) -> Tensor | None:
        """Decides where W is in this turn; returns what it is to be made from if that is elsewhere."""
        assert unit.buffer is not None, f"{unit.name} is not on the device"
        self._turn, self._held = unit, None
        self._flat = unit.buffer
        if unit.streamed and self._wire is not None:
            assert self._master is not None
            assert isinstance(unit.buffer, Tensor)
            self._wire.decode(unit, unit.buffer, self._master)
            self._flat = self._master
        base = None
        if not unit.streamed and self.pending(unit) and not self.is_due(unit):
            assert self._master is not None
            assert isinstance(unit.buffer, Tensor)
            base, self._flat = unit.buffer, self._master
        self._here = self._bindings(unit)
        return base

    def _bindings(self, unit: Unit) -> _Bound:
        """Kept as long as W stays in the same memory."""
        known = self._bound.get(id(unit))
        if known is None or known.flat is not self._flat:
            with torch.inference_mode(False):  # they outlive the mode
                frozen = unit.buffer if self._wire is None or not unit.streamed else self._flat
                assert frozen is not None
                weights = [item.bound(self._flat if item.trainable else frozen) for item in unit.fields]
                made, runs = weights, list[tuple[Tensor, Tensor]]()
                if unit.trained <= self._scratch.numel():  # a table is never perturbed whole
                    pairs = zip(unit.fields, weights, strict=True)
                    made = [item.bound(self._scratch) if item.trainable else own for item, own in pairs]
                    runs = [
                        (flat.whole(self._flat[place]), flat.whole(self._scratch[place]))
                        for place, flat in self._layout(unit)
                    ]
            self._bound[id(unit)] = known = _Bound(self._flat, weights, made, runs)
        return known

    def _layout(self, unit: Unit) -> tuple[tuple[slice, Flat], ...]:
        if id(unit) not in self._layouts:
            pieces = unit.cuts if isinstance(self._flat, Pieces) else [(0, unit.nbytes)]
            self._layouts[id(unit)] = tuple(_layout(unit, pieces))
        return self._layouts[id(unit)]

    def _move(self, unit: Unit, there: Point, begins: bool, base: Tensor | None) -> None:
        """Makes the unit's tensors at ``there``; when its turn ``begins``, first W, with what is pending."""
        scratch = self._scratch if there.scale else None
        if scratch is not None and self._flips(self._held, there):
            for weights, moved in self._here.runs:
                kernels.flip(weights, moved)
        elif self._general is None:
            updates = self.pending(unit) if begins else ()
            for place, flat in self._layout(unit):
                parts = [None if memory is None else memory[place] for memory in (base, scratch)]
                kernels.advance_flat(
                    self._flat[place], flat, updates, base=parts[0], scratch=parts[1], seed=there.seed or 0,
                    scale=there.scale,
                )  # fmt: skip
        elif scratch is not None or base is not None or (begins and self.pending(unit)):
            self._generally(self._general, unit, there, begins, base)

    def _generally(self, general: General, unit: Unit, there: Point, begins: bool, base: Tensor | None) -> None:
        """As :meth:`_move`, tensor by tensor."""
        for item, decayed in zip(unit.trainable, unit.decayed, strict=True):
            updates = self.pending(unit, decayed) if begins else ()
            states = unit.states_of(item, unit.buffer) if unit.buffer is not None else []
            general.advance(
                item.view(self._flat), Span(item.tensor_id, item.start), updates, states=states,
                base=None if base is None else item.view(base),
                scratch=item.view(self._scratch) if there.scale else None, seed=there.seed or 0, scale=there.scale,
            )  # fmt: skip

    def _keep(self, unit: Unit) -> None:
        """The replayed entries stay: ``unit.buffer`` becomes what its tier must get."""
        unit.applied = len(self._journal)
        unit.dirty = unit.changed = True
        if unit.streamed and self._wire is not None:
            assert isinstance(unit.buffer, Tensor)
            assert self._master is not None
            self._wire.encode(unit, self._master, unit.buffer)

    def _walk(
        self, unit: Unit, weights: Tensor, scratch: Tensor, span: Span, points: Iterable[Point],
        updates: Sequence[Update], base: Tensor | None, states: Sequence[Tensor],
    ) -> Iterator[Tensor]:  # fmt: skip
        here: Point | None = None
        for point in points:
            before, there = self._drawn_before(point), unit.own(point)
            for stop in (there,) if before is None or here == unit.own(before) else (unit.own(before), there):
                reached = self._reach(weights, scratch, span, here, stop, updates, base, states)
                here, updates, base = stop, (), None
            yield reached

    def _reach(
        self, weights: Tensor, scratch: Tensor | None, span: Span, here: Point | None, there: Point,
        updates: Sequence[Update], base: Tensor | None, states: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        """The tensor at the point ``there``, after ``updates``, in one pass over it; ``scratch`` holds the point
        ``here``. ``base``: what ``weights`` is made from, if not from itself."""
        if there.seed is None or there.scale == 0.0:
            if updates or base is not None:
                self._advance(weights, span, updates, states, base=base)
            return weights
        assert scratch is not None
        if self._flips(here, there):
            kernels.flip(weights, scratch)
        else:
            self._advance(
                weights, span, updates, states, base=base, scratch=scratch, seed=there.seed, scale=there.scale
            )
        return scratch

    def _advance(
        self, weights: Tensor, span: Span, updates: Sequence[Update], states: Sequence[Tensor], *,
        base: Tensor | None = None, scratch: Tensor | None = None, seed: int = 0, scale: float = 0.0,
    ) -> None:  # fmt: skip
        if self._general is None:
            kernels.advance(weights, span, updates, base=base, scratch=scratch, seed=seed, scale=scale)
        else:
            self._general.advance(
                weights, span, updates, states=states, base=base, scratch=scratch, seed=seed, scale=scale
            )


def _layout(unit: Unit, pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, Flat]]:
    """Where the unit's trained tensors lie in each of its ``pieces`` of memory, one run for each change of dtype."""
    for first, last in pieces:
        inside = [pair for pair in zip(unit.trainable, unit.decayed, strict=True) if first <= pair[0].offset < last]
        for dtype, run in itertools.groupby(inside, key=lambda pair: pair[0].dtype):
            places = [((item.offset - first) // dtype.itemsize, item, decayed) for item, decayed in run]
            segments = [
                Segment(one.tensor_id, one.start, at, one.shape.numel(), decayed) for at, one, decayed in places
            ]
            yield slice(first, last), Flat(dtype, segments)


def _like(buffer: Tensor, tensor: Tensor) -> Tensor:
    """The beginning of a flat uint8 buffer, as a tensor like this one."""
    return buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
