"""Perturbation with torch noise: MeZO's, +eps z, -2 eps z, +eps z on the weights themselves, rounded each time, with
which losses and weights equal those of the published programs bit for bit; and DistZO2's, which leaves W as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from zobench.engine.base import BASE, Entry, Point, transitions
from zobench.engine.directions import perturb
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.noise import Noise, ShapedNoise
from zobench.engine.directions.shapes import shaping
from zobench.engine.passes.head import Head, Picked
from zobench.engine.updates.rules import UpdateRule
from zobench.engine.weights.blocks import Memory, Unit
from zobench.engine.weights.wire import DeviceWeights


class InPlace(Arithmetic):
    """MeZO's arithmetic on the weights themselves (docs/design/METHODS.md, "The MeZO step").

    A streamed unit in a wire's format is unpacked first (``weights``) and packed again at the end: the low-bit copy is
    what persists, as published (ZO2 D.4). ``route``: all points of the pass, where this device looks at some of them
    only: weights go by way of the others too, so that their roundings are those of one device (DistZO2, section 4).
    """

    in_place = True

    def __init__(
        self, noise: Noise, journal: Sequence[Entry], weights: DeviceWeights, rule: UpdateRule | None = None
    ) -> None:
        self.noise = noise
        self._journal, self._weights, self._rule = journal, weights, rule
        self._shaping = shaping(rule)
        if self._shaping is not None and self._shaping.reads_weights:
            raise ValueError(
                f"the rule {type(rule).__name__} needs noise=counter, but got noise=torch, which moves the weights "
                "that its directions follow from; use noise=counter"
            )
        self._turn: Unit | None = None

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        tensors = unit.views(self._begin(unit))
        moved = [tensor for tensor, item in zip(tensors, unit.fields, strict=True) if item.trainable]
        for stop in self.route_to(unit, point):
            for seed, delta in transitions(unit.at, stop) if moved else ():
                perturb.move(self._noise(unit), seed, unit.index, moved, delta)
                unit.dirty = unit.changed = True
            unit.at = stop
        return tensors

    def route_to(self, unit: Unit, point: Point) -> list[Point]:
        """The points that the unit goes through from where it is to ``point``, which is the last of them."""
        target, stops = unit.target(point), [unit.target(stop) for stop in self.route]
        if not stops or unit.at == target == BASE:
            return [target]
        passed = stops.index(unit.at) + 1 if unit.at != BASE else 0
        if target == BASE:  # the end of its turn
            return [*stops[passed:], BASE]
        return stops[passed : stops.index(target) + 1]

    def finish(self, unit: Unit) -> None:
        self.at(unit, BASE)
        if unit.dirty:
            self._weights.pack(unit)
        self._turn = None

    def close(self) -> None:
        """As :class:`Arithmetic` has it: there is nothing to let go of."""

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        for point in points:
            self.at(unit, point)
        self.finish(unit)

    def settle(self, unit: Unit) -> None:
        self.finish(unit)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        return weights

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        for _, _, piece, z in self.noise.draw(seed, unit.index, out):
            piece.copy_(z)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it.

        The table is left at the first point, where the head takes over; for the other points only the batch's rows are
        moved, in a copy. So a tied table costs the draws of an untied one, every use sees the same chain of roundings,
        and that chain is committed once, by the head. Points that are not looked at here are passed through.
        """
        (table,) = self.at(unit, unit.at)
        gathered: dict[int, Tensor] = {}
        rows: Tensor | None = None
        outputs = []
        for point in points:
            for stop in self.route_to(unit, point):
                for seed, delta in transitions(unit.at, stop) if unit.fields[0].trainable else ():
                    is_drawn = seed in gathered
                    if not is_drawn:
                        applied = delta if rows is None else 0.0
                        noise = self._noise(unit)
                        gathered[seed] = perturb.move_and_gather(noise, seed, unit.index, table, applied, ids)
                    if rows is not None:
                        rows.add_(gathered[seed] * delta)
                    elif is_drawn:
                        perturb.move(self._noise(unit), seed, unit.index, [table], delta)
                unit.at = stop
            rows = table[ids] if rows is None else rows
            outputs.append(lookup(rows))
        unit.at = unit.target(points[0])
        return outputs

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> list[Picked]:
        """As :class:`Arithmetic` has it: a few tokens at a time."""
        picked = []
        for point, at_point in zip(points, states, strict=True):
            self._bind(head, point)
            picked.append(head.picked(at_point, targets))
        for unit in head.units:
            self.finish(unit)
        return picked

    def _bind(self, head: Head, point: Point) -> None:
        """Makes the head use its units' weights at ``point``."""
        for unit in head.units:
            unit.bind(self.at(unit, point))

    def _begin(self, unit: Unit) -> Memory:
        weights = self._weights.of(unit)
        if self._turn is not unit:
            self._turn = unit
            self._weights.unpacked(unit)
            entries = [entry for entry in self._journal[unit.applied :] if unit.moves(entry)]
            if entries and unit.trained:
                self._replay(unit, weights, entries)
                unit.dirty = unit.changed = True
            unit.applied = len(self._journal)
        return weights

    def _noise(self, unit: Unit) -> Noise:
        """Returns the noise that draws the directions of a unit which is on the device."""
        if self._shaping is None:
            return self.noise
        return ShapedNoise(self.noise, self._shaping, self._states(unit, self._weights.of(unit)))

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
            perturb.apply_rule(self.noise, self._rule, list(group), unit.index, tensors, states, unit.decayed)


class OutOfPlace(InPlace):
    """DistZO2's arithmetic of a rank that needs one sign (section 4.2): ``W + c z`` is written into ``scratch``, and W
    moves by ``W -= lr g z`` alone: of a pair two draws of z where MeZO's arithmetic takes four.

    So W has the same bits on all ranks whatever their signs, and no pass rounds it. ``scratch``, uint8, holds what is
    trained of the largest unit, and of all units of the head, which are used together.
    """

    def __init__(
        self, noise: Noise, journal: Sequence[Entry], scratch: Tensor, weights: DeviceWeights,
        rule: UpdateRule | None = None,
    ) -> None:  # fmt: skip
        super().__init__(noise, journal, weights, rule)
        self._scratch = scratch

    def at(self, unit: Unit, point: Point, first: int = 0) -> list[Tensor]:
        """As :class:`Arithmetic` has it. The tensors begin at byte ``first`` of the scratch and are valid until the
        next call."""
        weights = self._begin(unit)
        target = unit.target(point)
        if target.seed is None or not target.scale or not unit.trained:
            return unit.views(weights)
        scratch = self._scratch[first : first + unit.trained]
        moved, perturbed = ([item.view(buffer) for item in unit.trainable] for buffer in (weights, scratch))
        perturb.write(self._noise(unit), target.seed, unit.index, moved, target.scale, perturbed)
        return [item.view(scratch if item.trainable else weights) for item in unit.fields]

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """As :class:`Arithmetic` has it: no point touches the weights."""
        self.finish(unit)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """As :class:`Arithmetic` has it: of each point only the batch's rows are made."""
        (table,) = unit.views(self._begin(unit))
        outputs = []
        for target in map(unit.target, points):
            rows = table[ids]
            if target.seed is not None and target.scale and unit.trained:
                z = perturb.move_and_gather(self._noise(unit), target.seed, unit.index, table, 0.0, ids)
                rows += z.mul_(target.scale)
            outputs.append(lookup(rows))
        return outputs

    def _bind(self, head: Head, point: Point) -> None:
        """As :meth:`InPlace._bind`; the head's units lie one after another in the scratch."""
        for number, unit in enumerate(head.units):
            unit.bind(self.at(unit, point, sum(before.trained for before in head.units[:number])))
