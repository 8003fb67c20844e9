"""The engine of a spec on a virtual clock: its own schedule, pipeline and arithmetic run on the meta device, where
nothing is computed, and each operation takes the seconds that a GPU would.

:mod:`zobench.cost.gpu` says the same by formulas and a simulation of the schedule, in a thousandth of the time: tests
hold the two together, and ``tools/timelines.py`` runs the savers of checkpoints beside it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tools.operators import Priced
from zobench import methods, models
from zobench.cost import footprint, gpu, seconds, sizes
from zobench.cost.gpu import LONGEST, Costs, Prediction
from zobench.cost.hardware import Gpu
from zobench.cost.simulation import STEPS
from zobench.data.batch import Batch
from zobench.engine import Engine, Entry, Point
from zobench.engine.transfers.lanes import Action
from zobench.engine.transfers.schedule import Event, Op
from zobench.models.weights import RandomWeights
from zobench.parallel.mesh import divided
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import AUTOCASTS, WIRES
from zobench.training.assemble import engine_config


class VirtualLanes:
    """:class:`Lanes` on a clock that only counts: every operation runs at once, in the thread that submits it.

    ``price`` runs the action of an operation and returns the seconds that it takes. A ticket is the time of an
    operation's end. What the caller does between operations takes the compute lane's time by :meth:`spend`.
    """

    def __init__(self, price: Callable[[Op, Action], float]) -> None:
        self._price = price
        self._clock: dict[str, float] = {}
        self._events: list[Event] = []
        self.origin = self.awaited = self._issued = 0.0

    @property
    def now(self) -> float:
        """Where the compute lane is, in seconds since the first operation could begin."""
        return max(self._issued, self._clock.get("compute", 0.0))

    def halt(self, seconds: float) -> None:
        """The host waits until all lanes are idle and then takes so long: what is issued later begins after that."""
        self._issued = max(self._clock.values(), default=self._issued) + seconds

    def spend(self, seconds: float) -> None:
        """The compute lane works so long on what is no operation."""
        self._clock["compute"] = self.now + seconds

    def submit(self, op: Op, action: Action, after: Sequence[float]) -> float:
        seconds = self._price(op, action)
        start = max([self._issued, self._clock.get(op.lane, 0.0), *after])
        self._clock[op.lane] = end = start + seconds
        self._events.append((op.lane, op.kind, op.block, start, end))
        return end

    def wait(self, ticket: float) -> None:
        """Waiting takes no time here, but is noted: ``awaited`` is the latest end that was waited for."""
        self.awaited = max(self.awaited, ticket)

    def drain(self) -> None:
        """See :class:`Lanes`."""

    def close(self) -> None:
        """See :class:`Lanes`."""

    def record(self) -> None:
        self.origin, self._events = self.now, []

    def timeline(self) -> list[Event]:
        """As :class:`Lanes` has it; what takes no time, as an offload of what did not change, is left out."""
        origin, events, self._events = self.origin, self._events, []
        seen = [
            (lane, kind, block, start - origin, end - origin)
            for lane, kind, block, start, end in events
            if start >= origin and end > start
        ]
        return sorted(seen, key=lambda event: event[3])


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualStep:
    """``prediction``: seconds of a step and of its parts, in the mean of the steps from one write-back to the next (of
    more than :data:`LONGEST` of one with as many updates pending as in the mean), and what bounds it; ``timeline`` of
    the last step, as a run records it, empty where nothing is streamed."""

    prediction: Prediction
    timeline: list[Event]


class _VirtualEngine(Engine):
    """One rank's. The losses are made up, because on the meta device there are none: each point has its own."""

    signs = 1

    def probe(self, batch: Batch, points: Sequence[Point], wanted_indices: Sequence[int] | None = None) -> list[float]:
        if self.config.out_of_place:
            super().probe(batch, points[:: self.signs])
        else:
            super().probe(batch, points, wanted_indices if self.signs == 1 else range(0, len(points), self.signs))
        return [1.0 + 1e-3 * number for number, _ in enumerate(points)]


class VirtualRun:
    """Steps of ``spec`` (resolved) on ``device``, ``disk`` bytes/s being those of a tier on one; a context manager.
    With several ``gpus`` they are one rank's: the others' take as long, and the exchange of losses no time.

    Raises ``ValueError`` for what has no steps of points alone.
    """

    def __init__(self, spec: RunSpec, device: Gpu, disk: float = 0.0) -> None:
        self.spec = spec = footprint.fit(spec)[0]
        check(spec)
        self.priced = Priced(device, sizes.rows_at_once(spec) * spec.seq_len, tf32=AUTOCASTS[spec.autocast].is_tf32)
        self.lanes = VirtualLanes(self._operation)
        self.device = device
        self._costs = Costs(spec, device, disk)
        self._spent, self._steps, self._links = 0.0, 0, dict[str, float]()
        architecture, tied, positions = models.variant(spec)
        model = models.build(architecture, spec.dtype, tied, positions)
        config = engine_config(spec)
        changes: dict[str, Any] = {"device": "meta", "tier": "pageable", "compile": False, "shared_blocks": None}
        if AUTOCASTS[spec.autocast].is_tf32:
            changes["autocast"] = "none"
        if config.writeback_every == "inf":  # which on the meta device is another number than on its own
            changes["consolidate_after"] = int(config.keep_steps)
        self.engine = _VirtualEngine(
            model, dataclasses.replace(config, **changes), weights=RandomWeights(model, 0), lanes=self.lanes,
            rule=methods.rule(spec), directions=methods.directions(spec),
        )  # fmt: skip
        self.engine.signs = divided(spec)[1]
        forwards = self.engine.forwards
        forwards.judge = self.priced.judging()(forwards.judge)  # type: ignore[method-assign]
        self._method = methods.make(spec)
        self._period = self.engine.config.keep_steps if self._costs.kept else LONGEST + 1
        ids = torch.zeros(sizes.rows(spec), spec.seq_len, dtype=torch.long)
        self._batch = Batch(ids, ids)
        pipeline = self.engine.pipeline
        self._sizes, self._written = ((), ()) if pipeline is None else (pipeline.sizes, pipeline.written)
        if self._period > LONGEST:
            middle = max(0, round(seconds.pending(spec)) - STEPS)
            self.engine.commit([Entry(step=0, seed=seed, g=1.0, lr=1e-7) for seed in range(middle * spec.queries)])

    def step(self) -> float:
        """Takes a step, and returns its seconds."""
        began, period = self.lanes.now, self._period
        writes = period == 1 or (period <= LONGEST and self._steps > 0 and self._steps % period == 0)
        self._links = self._costs.lanes(writes=writes) if self._sizes else {}
        with self.priced.running():
            self._method.step(self.engine, self._batch)
        self._steps += 1
        return self.now - began

    def settled(self) -> VirtualStep:
        """The steps from one write-back to the next, once each such group takes as long as the one before."""
        period = int(self._period) if self._period <= LONGEST else 1
        for _ in range(-(-STEPS // period) * period + (period > 1)):  # the first step has nothing to write back
            self.step()
        before = dict(self.priced.seconds)
        taken = [self.step() for _ in range(period - 1)]
        self.lanes.record()
        mean = sum([*taken, self.step()]) / period
        parts = {name: (total - before[name]) / period for name, total in self.priced.seconds.items()}
        parts |= self._costs.moving()
        predicted = gpu.predict(self.spec, self._costs.gpu, self._costs.disk)
        return VirtualStep(
            prediction=dataclasses.replace(predicted, step_seconds=mean, parts=parts), timeline=self.lanes.timeline()
        )  # fmt: skip

    @property
    def now(self) -> float:
        """Where the compute lane is, with all that was issued."""
        self.lanes.spend(self._issued())
        return self.lanes.now

    def __enter__(self) -> VirtualRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def _issued(self) -> float:
        """Seconds of what was issued since this was last asked."""
        issued, self._spent = self.priced.total - self._spent, self.priced.total
        return issued

    def _operation(self, op: Op, action: Action) -> float:
        self.lanes.spend(self._issued())
        dirty = self.engine.blocks[op.block].dirty
        action()
        if op.kind == "upload" and self._costs.malloc:
            self.lanes.halt(self._costs.malloc)
        if op.kind not in self._links:
            return self._issued()
        if op.kind == "offload" and not dirty:
            return 0.0
        moved = self._sizes if op.kind == "upload" else self._written  # its unit's share of all that the lane moves
        return self._links[op.kind] * moved[op.block] / sum(moved)


def check(spec: RunSpec) -> None:
    """Raises ``ValueError`` for a spec whose steps are more than points."""
    kind = METHODS.get(spec.method)
    wants = {
        "task=none": spec.task == "none", "scheme=full": spec.scheme == "full",
        "a method without a backward pass": not kind.backpropagates and not kind.tangents,
        "a method without thresholds": kind.thresholds is None,
        "wire=none": not WIRES[spec.wire].is_packed or not (WIRES[spec.wire].is_scaled or WIRES[spec.wire].bits),
    }  # fmt: skip
    if lacking := [name for name, holds in wants.items() if not holds]:
        raise ValueError(
            f"the engine on a virtual clock needs {lacking[0]}, but got {spec.label}; zobench.cost.gpu predicts it too"
        )


@functools.lru_cache(maxsize=8)
def virtual_step(spec: RunSpec, device: Gpu, disk: float = 0.0) -> VirtualStep:
    with VirtualRun(spec, device, disk) as run:
        return run.settled()
