"""ZO-SGD, MeZO's method: two points along a direction, one journal entry (MeZO algorithm 1, ZO2 equations 1, 2); and
its variants that differ in the points, in the parts of the model or in what a direction is multiplied by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from zobench.engine.base import BASE, Entry, PassRecord, Point
from zobench.engine.interface import PartedEngine, lacks
from zobench.methods.base import Direction, StepResult, Taken
from zobench.runspec.kinds import LAWS, Definition, MethodKind, Need, UpdateSize

if TYPE_CHECKING:
    from numpy.random import Generator

    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec


def projected_gradient(plus: float, minus: float, eps: float, device: str) -> float:
    """g = (L+ - L-) / (2 eps), with the roundings of MeZO's program, which works on float32 tensors until the end.

    On a CPU torch divides by the float32 value of ``2 * eps``; on CUDA it multiplies by that value's float32
    reciprocal. With eps = 1e-3 only a third of all g survive a division in float64 (docs/design/METHODS.md, "The MeZO
    step"). A loss that is not finite gives a g that is not finite.
    """
    import numpy as np

    step = np.float32(2 * eps)
    with np.errstate(all="ignore"):
        difference = np.float32(plus) - np.float32(minus)
        return float(difference * (np.float32(1) / step) if device.startswith("cuda") else difference / step)


def drawn(seeds: Generator, count: int) -> list[int]:
    """The next ``count`` seeds of directions, in [0, 1e9) as MeZO's are."""
    return [int(seeds.integers(10**9)) for _ in range(count)]


ONE_DIRECTION = ("lr", "eps", "seed", "weight_decay")
"""The fields of a spec that are constants of a method with one direction a step."""


class ZOSGD:
    """``W -= lr * (ghat + weight_decay * W)``, ghat the mean of g z over ``queries`` directions (ZO-Bench, equation 2).

    An engine with a rule makes of ghat what its rule says: this is the step of ZO-SGD-Sign, ZO-SGD-MMT and ZO-Adam too.
    All directions share one pass over the model. Their seeds, in [0, 1e9), come from the run's own generator. A g that
    is not finite is not applied; ``skipped`` counts steps with one.
    """

    fields: ClassVar[tuple[str, ...]] = (*ONE_DIRECTION, "queries")
    """The constants that are fields of a spec."""
    spec_options: ClassVar[Mapping[str, type]] = {}
    """The constants that are options of a spec, with their types."""
    remembered: ClassVar[Mapping[str, str]] = {}
    """Further state that the next steps need: attributes of JSON types, by their keys in :meth:`state`."""
    extra: float = 0.0
    """The second number of a step's entries (:class:`~zobench.engine.base.Entry`)."""
    law: int = 0
    """The bits that mark the seeds of its directions with the law of their elements."""

    def __init__(
        self, *, lr: float, eps: float = 1e-3, seed: int = 0, weight_decay: float = 0.0, queries: int = 1
    ) -> None:
        import numpy as np

        if not (eps > 0 and lr >= 0 and weight_decay >= 0):
            raise ValueError(
                "`eps > 0`, `lr >= 0` and `weight_decay >= 0` must hold, but got "
                f"eps={eps}, lr={lr}, weight_decay={weight_decay}; MeZO uses eps=1e-3"
            )
        if queries < 1:
            raise ValueError(f"`queries >= 1` must hold, but got queries={queries}; MeZO uses queries=1")
        if queries > 1 and "queries" not in self.fields:
            raise ValueError(f"{type(self).__name__} has one direction, but got queries={queries}; use queries=1")
        self.lr, self.eps, self.weight_decay, self.queries = lr, eps, weight_decay, queries
        self.skipped = 0
        self._step = 0
        self._seeds = np.random.default_rng(seed)

    @classmethod
    def of(cls, spec: RunSpec, **constants: Any) -> Self:
        """The method of ``spec``; ``constants``: those that are neither fields of it nor :attr:`spec_options`."""
        options = {name: kind(spec.option(name)) for name, kind in cls.spec_options.items()}
        method = cls(**{name: getattr(spec, name) for name in cls.fields}, **options, **constants)
        method.law = LAWS[spec.law]
        return method

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``; ``lr`` may be changed between steps."""
        directions = self._directions(engine)
        loss, gradients = self._probe(engine, batch, directions)
        engine.commit(list(self._entries(directions, gradients)))
        return self._finish(loss, directions, gradients)

    def state(self) -> dict[str, Any]:
        """The steps taken and skipped, the state of the generator of seeds, and what is :attr:`remembered`."""
        others = {key: getattr(self, attribute) for key, attribute in self.remembered.items()}
        return {"step": self._step, "skipped": self.skipped, "seeds": dict(self._seeds.bit_generator.state), **others}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._step, self.skipped = state["step"], state["skipped"]
        self._seeds.bit_generator.state = state["seeds"]
        for key, attribute in self.remembered.items():
            setattr(self, attribute, state[key])

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        parts = self._parts(engine)
        directions = tuple(zip(self._draw(len(parts)), parts, strict=True))
        if (taken.step, taken.directions) != (self._step, directions):
            raise ValueError(
                f"a journal must be of this run, but its step {taken.step} went along {taken.directions}, and step "
                f"{self._step} of this run goes along {directions}; remove its folder to begin anew"
            )
        self.lr = taken.lr
        moments = self._moments(taken)
        self._finish(taken.loss, directions, taken.gradients)
        return moments

    def _moments(self, taken: Taken) -> list[PassRecord]:
        """Returns what a step did to the weights, pass by pass."""
        return [PassRecord(points=self._points(taken.directions), entries=taken.entries)]

    def _directions(self, engine: SteppingEngine) -> list[Direction]:
        """This step's, on all ranks those of the first."""
        parts = self._parts(engine)
        return list(zip(engine.shared(self._draw(len(parts))), parts, strict=True))

    def _draw(self, count: int) -> list[int]:
        return [seed | self.law for seed in drawn(self._seeds, count)]

    def _parts(self, engine: SteppingEngine) -> Sequence[int | None]:
        """The part of the model that each direction of a step moves."""
        return [None] * self.queries

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return tuple(Point(seed, scale, part) for seed, part in directions for scale in (self.eps, -self.eps))

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The mean of the losses at both points of all directions; g of each direction."""
        losses = engine.probe(batch, self._points(directions))
        pairs = list(zip(losses[::2], losses[1::2], strict=True))
        loss = sum((plus + minus) / 2 for plus, minus in pairs) / len(pairs)
        return loss, tuple(projected_gradient(plus, minus, self.eps, engine.config.device) for plus, minus in pairs)

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        """An entry for each g that is finite; weight decay once per step and part, whatever the number of directions"""
        decayed: set[int | None] = set()
        for (seed, part), g in zip(directions, gradients, strict=True):
            if math.isfinite(g):
                decay = 0.0 if part in decayed else self.weight_decay
                decayed.add(part)
                yield self._entry(seed, self._coefficient(g) / self.queries, decay, part)

    def _applies(self, gradients: Sequence[float]) -> bool:
        """Whether all of a step is applied."""
        return all(map(math.isfinite, gradients))

    def _coefficient(self, g: float) -> float:
        """Returns the factor of a direction in ghat."""
        return g

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        return Entry(
            step=self._step, seed=seed, g=g, lr=self.lr, weight_decay=weight_decay, part=part, extra=self.extra
        )

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        """Counts the step."""
        applied = self._applies(gradients)
        self.skipped += not applied
        self._step += 1
        seeds, parts = tuple(seed for seed, _ in directions), tuple(part for _, part in directions)
        return StepResult(loss=loss, seeds=seeds, gradients=gradients, applied=applied, parts=parts)


class ZOSGDSignOfG(ZOSGD):
    """ZO-SGD-Sign as its program has it, and as appendix A prints it: ``W -= lr * sign(g) z``; the mean over queries.

    ZO-Bench's equation 2 takes the sign of each element of ghat instead: :class:`zobench.engine.updates.rules.Sign`.
    """

    def _coefficient(self, g: float) -> float:
        return float((g > 0) - (g < 0))


class OneSided(ZOSGD):
    """ZO-SGD with ``g = (L(W + eps z) - L(W)) / eps``: one point more than ``queries``, all in one pass. FZOO, R-AdaZO
    and ZO-Muon estimate so."""

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return (BASE, *(Point(seed, self.eps, part) for seed, part in directions))

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The loss at the weights; the one-sided slope of each direction."""
        base, *losses = engine.probe(batch, self._points(directions))
        return base, tuple((loss - base) / self.eps for loss in losses)


class ZOSGDBlock(ZOSGD):
    """ZO-SGD-Block (ZO-Bench, section 5): each part of the model is estimated by directions of its own.

    All parts are estimated at the same weights and then updated together: section 5 as written. OPT-1.3B has 26 parts:
    its blocks, what is before and what is after them (``Engine.parts``). All pairs of a step share one pass over the
    model, as those of ZO-SGD with as many queries do (table 6): a pass for each part would upload every block as many
    times as there are parts. Device memory holds the hidden states of twice as many copies of the batch as parts.
    """

    def _parts(self, engine: SteppingEngine) -> Sequence[int | None]:
        if not isinstance(engine, PartedEngine):
            raise lacks(engine, "a method that moves parts of a model")
        return [part for part in range(engine.parts) for _ in range(self.queries)]


class ZOSGDCons(ZOSGD):
    """ZO-SGD-Cons: the best of x, x - lr ghat and x + lr ghat by their loss on the same batch (ZO-Bench, appendix A).

    One direction. The three candidates share a second pass over the model; at a tie x stays. The candidates are without
    weight decay, which goes with the one that is taken; x itself stays as it is.
    """

    fields = ONE_DIRECTION

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``, which may leave the weights as they are; ``lr`` may be changed between steps."""
        directions = self._directions(engine)
        loss, gradients = self._probe(engine, batch, directions)
        if math.isfinite(gradients[0]):
            engine.commit(self._best(engine, batch, directions[0][0], gradients[0]))
        return self._finish(loss, directions, gradients)

    def _best(self, engine: SteppingEngine, batch: Batch, seed: int, g: float) -> list[Entry]:
        """The entry of the best candidate; none where that is x. A loss that is not finite is the worst."""
        candidates = _candidates(g)
        losses = engine.probe(batch, self._at(seed, candidates))
        worst_last = [loss if math.isfinite(loss) else math.inf for loss in losses]
        best = candidates[worst_last.index(min(worst_last))]
        return [self._entry(seed, best, self.weight_decay)] if best else []

    def _at(self, seed: int, candidates: Sequence[float]) -> tuple[Point, ...]:
        return tuple(Point(seed, -self.lr * candidate) for candidate in candidates)

    def _moments(self, taken: Taken) -> list[PassRecord]:
        (seed, _), g = taken.directions[0], taken.gradients[0]
        first = PassRecord(points=self._points(taken.directions))
        second = PassRecord(points=self._at(seed, _candidates(g)), entries=taken.entries) if math.isfinite(g) else None
        return [first] if second is None else [first, second]


def _candidates(g: float) -> tuple[float, ...]:
    """Returns the factors that ghat may have: x itself comes first, so that it stays at a tie."""
    return 0.0, g, -g


def make(spec: RunSpec) -> ZOSGD:
    """The method of ``spec``, also of those that only have another rule or sparse directions."""
    return ZOSGD.of(spec)


KIND = MethodKind(
    name="zo-sgd",
    known_as=("mezo",),
    as_written=Definition(
        formula="w -= lr * ghat",
        make="zobench.methods.zo_sgd:make",
        update=UpdateSize.SCALED,
    ),
)
BLOCK = MethodKind(
    name="zo-sgd-block",
    as_written=Definition(
        formula="w -= lr * ghat, ghat of each part along directions of its own; all estimated before any is updated",
        make="zobench.methods.zo_sgd:ZOSGDBlock.of",
    ),
    pairs=lambda spec, layers: spec.queries * (layers + 2),  # of every block, of what is before and what is after them
)
CONS = MethodKind(
    name="zo-sgd-cons",
    as_written=Definition(
        formula="the best of w, w - lr * ghat and w + lr * ghat by the batch's loss",
        make="zobench.methods.zo_sgd:ZOSGDCons.of",
        update=UpdateSize.SCALED,
    ),
    candidates=3,
    draws=7,
    counter_draws=2,
    uploads=2,
    needs=(Need("queries", 1, "it has one direction, or none; use queries=1"),),
)
