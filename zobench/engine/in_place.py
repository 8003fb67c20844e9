"""Perturbation with torch noise: MeZO's, +eps z, -2 eps z, +eps z on the weights themselves, rounded each time, with
which losses and weights equal those of the published programs bit for bit; and DistZO2's, which leaves W as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from zobench.engine import perturb
from zobench.engine.base import BASE, Entry, Point, transitions
from zobench.engine.blocks import Field, Memory, Unit
from zobench.engine.head import Head, Picked
from zobench.engine.noise import Noise, ShapedNoise
from zobench.engine.rules import UpdateRule
from zobench.engine.shapes import shaping
from zobench.engine.wire import Wire


class InPlace:
    """MeZO's arithmetic on the weights themselves (docs/design/METHODS.md, "The MeZO step").

    With a ``wire`` a streamed unit is unpacked into ``master`` first and packed again at the end: the low-bit copy is
    what persists, as published (ZO2 D.4). ``route``: all points of the pass, where this device looks at some of them
    only: weights go by way of the others too, so that their roundings are those of one device (DistZO2, section 4).
    """

    points: tuple[Point, ...] = ()
    route: tuple[Point, ...] = ()
    in_place = True

    def __init__(
        self, noise: Noise, journal: Sequence[Entry], wire: Wire | None = None, master: Tensor | None = None,
        rule: UpdateRule | None = None,
    ) -> None:  # fmt: skip
        self.noise = noise
        self._journal, self._wire, self._master, self._rule = journal, wire, master, rule
        self._shaping = shaping(rule)
        if self._shaping is not None and self._shaping.reads_weights:
            raise ValueError(
                f"the rule {type(rule).__name__} needs noise=counter, but got noise=torch, which moves the weights "
                "that its directions follow from; use noise=counter"
            )
        self._turn: Unit | None = None

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        tensors = unit.views(self._begin(unit))
        moved = [tensor for tensor, item in zip(tensors, unit.fields, strict=True) if item.trainable]
        for stop in self.way(unit, point):
            for seed, delta in transitions(unit.at, stop) if moved else ():
                perturb.move(self._noise(unit), seed, unit.index, moved, delta)
                unit.dirty = unit.changed = True
            unit.at = stop
        return tensors

    def way(self, unit: Unit, point: Point) -> list[Point]:
        """The points that the unit goes through from where it is to ``point``, which is the last of them."""
        there, stops = unit.own(point), [unit.own(stop) for stop in self.route]
        if not stops or unit.at == there == BASE:
            return [there]
        here = stops.index(unit.at) if unit.at != BASE else -1
        if there == BASE:  # the end of its turn
            return [*stops[here + 1 :], BASE]
        return stops[here + 1 : stops.index(there) + 1]

    def rest(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self.at(unit, BASE)
        if self._wire is not None and unit.streamed and unit.dirty:
            assert self._master is not None
            assert isinstance(unit.buffer, Tensor)
            self._wire.encode(unit, self._master, unit.buffer)
        self._turn = None

    def close(self) -> None:
        """See :class:`Arithmetic`."""

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """See :class:`Arithmetic`."""
        for point in points:
            self.at(unit, point)
        self.rest(unit)

    def settle(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self.rest(unit)

    def whole(self, unit: Unit) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        return self.at(unit, BASE)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """See :class:`Arithmetic`."""
        return weights

    def state(self, unit: Unit) -> tuple[Sequence[Field], None]:
        """See :class:`Arithmetic`: it rests beside the weights."""
        return (), None

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """See :class:`Arithmetic`."""
        for _, _, piece, z in self.noise.draw(seed, unit.index, out):
            piece.copy_(z)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """See :class:`Arithmetic`.

        The table is left at the first point, where the head takes over; for the other points only the batch's rows are
        moved, in a copy. So a tied table costs the draws of an untied one, every use sees the same chain of roundings,
        and that chain is committed once, by the head. Points that are not looked at here are passed through.
        """
        (table,) = self.at(unit, unit.at)
        gathered: dict[int, Tensor] = {}
        rows: Tensor | None = None
        outputs = []
        for point in points:
            for stop in self.way(unit, point):
                for seed, delta in transitions(unit.at, stop) if unit.fields[0].trainable else ():
                    known = seed in gathered
                    if not known:
                        applied = delta if rows is None else 0.0
                        noise = self._noise(unit)
                        gathered[seed] = perturb.move_and_gather(noise, seed, unit.index, table, applied, ids)
                    if rows is not None:
                        rows.add_(gathered[seed] * delta)
                    elif known:
                        perturb.move(self._noise(unit), seed, unit.index, [table], delta)
                unit.at = stop
            rows = table[ids] if rows is None else rows
            outputs.append(lookup(rows))
        unit.at = unit.own(points[0])
        return outputs

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> list[Picked]:
        """See :class:`Arithmetic`: a few tokens at a time."""
        picked = []
        for point, own in zip(points, states, strict=True):
            self._bind(head, point)
            picked.append(head.picked(own, targets))
        for unit in head.units:
            self.rest(unit)
        return picked

    def _bind(self, head: Head, point: Point) -> None:
        """Makes the head use its units' weights at ``point``."""
        for unit in head.units:
            unit.bind(self.at(unit, point))

    def _begin(self, unit: Unit) -> Memory:
        weights = self._weights(unit)
        if self._turn is not unit:
            self._turn = unit
            if self._wire is not None and unit.streamed:
                assert self._master is not None
                assert isinstance(unit.buffer, Tensor)
                self._wire.decode(unit, unit.buffer, self._master)
            entries = [entry for entry in self._journal[unit.applied :] if unit.moves(entry)]
            if entries and unit.trained:
                self._replay(unit, weights, entries)
                unit.dirty = unit.changed = True
            unit.applied = len(self._journal)
        return weights

    def _noise(self, unit: Unit) -> Noise:
        """What draws the directions of a unit that is on the device."""
        if self._shaping is None:
            return self.noise
        return ShapedNoise(self.noise, self._shaping, self._states(unit, self._weights(unit)))

    def _states(self, unit: Unit, weights: Memory) -> list[list[Tensor]]:
        return [unit.states_of(item, weights) for item in unit.trainable]

    def _replay(self, unit: Unit, weights: Memory, entries: Sequence[Entry]) -> None:
        tensors = [item.view(weights) for item in unit.trainable]
        if self._rule is None:
            for entry in entries:
                perturb.update(self.noise, entry, unit.index, tensors, unit.decayed)
            return
        states = self._states(unit, weights)
        for _, group in itertools.groupby(entries, key=lambda entry: entry.step):
            step = list(group)
            if self._shaping is None:
                perturb.apply_rule(self.noise, self._rule, step, unit.index, tensors, states, unit.decayed)
            else:
                perturb.apply_shaped(self.noise, self._shaping, step, unit.index, tensors, states, unit.decayed)

    def _weights(self, unit: Unit) -> Memory:
        if self._wire is not None and unit.streamed:
            assert self._master is not None
            return self._master
        assert unit.buffer is not None, f"{unit.name} is not on the device"
        return unit.buffer


class OutOfPlace(InPlace):
    """DistZO2's arithmetic of a rank that needs one sign (section 4.2): ``W + c z`` is written into ``scratch``, and W
    moves by ``W -= lr g z`` alone: of a pair two draws of z where MeZO's arithmetic takes four.

    So W has the same bits on all ranks whatever their signs, and no pass rounds it. ``scratch``, uint8, holds what is
    trained of the largest unit, and of all units of the head, which are used together.
    """

    def __init__(
        self, noise: Noise, journal: Sequence[Entry], scratch: Tensor, wire: Wire | None = None,
        master: Tensor | None = None, rule: UpdateRule | None = None,
    ) -> None:  # fmt: skip
        super().__init__(noise, journal, wire, master, rule)
        self._scratch = scratch

    def at(self, unit: Unit, point: Point, first: int = 0) -> list[Tensor]:
        """See :class:`Arithmetic`. The tensors begin at byte ``first`` of the scratch, valid until the next call."""
        weights = self._begin(unit)
        there = unit.own(point)
        if there.seed is None or not there.scale or not unit.trained:
            return unit.views(weights)
        scratch = self._scratch[first : first + unit.trained]
        moved, made = ([item.view(buffer) for item in unit.trainable] for buffer in (weights, scratch))
        perturb.write(self._noise(unit), there.seed, unit.index, moved, there.scale, made)
        return [item.view(scratch if item.trainable else weights) for item in unit.fields]

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """See :class:`Arithmetic`: no point touches the weights."""
        self.rest(unit)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """See :class:`Arithmetic`: of each point only the batch's rows are made."""
        (table,) = unit.views(self._begin(unit))
        outputs = []
        for there in map(unit.own, points):
            rows = table[ids]
            if there.seed is not None and there.scale and unit.trained:
                z = perturb.move_and_gather(self._noise(unit), there.seed, unit.index, table, 0.0, ids)
                rows += z.mul_(there.scale)
            outputs.append(lookup(rows))
        return outputs

    def _bind(self, head: Head, point: Point) -> None:
        """Its units lie one after another in the scratch."""
        for number, unit in enumerate(head.units):
            unit.bind(self.at(unit, point, sum(before.trained for before in head.units[:number])))
