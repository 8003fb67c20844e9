"""Protocols: methods compared at one budget. Each has a grid of one size, tuned on dev with seeds of its own, which
grows until its best point is interior; that runs with the other seeds and sees the test set."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from zobench.data.tasks.file import task_of
from zobench.machine import reader
from zobench.recipes.growth import neighbours
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec, check_key, check_value, flat, suggestion, value_in

UNITS = ("forwards", "seconds", "gigabytes")
"""The units of a budget: forwards of one batch (a backward pass is two), seconds of predicted steps, 1e9 bytes of
weights that the steps move."""

Price = Callable[[str, RunSpec], tuple[float, float]]
"""The price of a spec's step in a unit of a budget, and that of an evaluation on dev."""

_DECIDED = {"steps": "the budget", "eval_every": "evaluations", "seed": "tuning_seeds and seeds"}
"""Field of a spec -> what of the protocol decides it."""
_TIMES = re.compile(r"x(\d+(?:\.\d+)?(?:e-?\d+)?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One of the methods: ``header`` names it. ``fields``: its own values and the lists that are its grid; "x3" stands
    for three times the value that all methods have in common. ``others``: the values of fields that only other methods
    state."""

    header: str
    fields: Mapping[str, Any]
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(key for key, values in self.fields.items() if isinstance(values, list))

    def meets(self, spec: RunSpec) -> bool:
        """Whether ``spec`` has the values that are given, any on an axis, and leaves the others' as they are."""
        fixed = {key: value for key, value in self.fields.items() if key not in self.axes and _times(value) is None}
        values = {key: check_value(key, value) for key, value in fixed.items()}
        return all(spec.value(key) == value for key, value in {**self.others, **values}.items())


def _seeds(key: str, section: str, seeds: Sequence[int]) -> tuple[int, ...]:
    if len(seeds) < 2 or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"`{key}` in {section} must be two or more that differ, but got {list(seeds)}; "
            f"write {key} = {[0, 1, 2] if key == 'seeds' else [100, 101]}"
        )
    return tuple(check_value("seed", seed) for seed in seeds)


Seeds = Annotated[tuple[int, ...], _seeds]


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """The protocol of a file. Each run's budget is one of ``forwards``, ``seconds`` and ``gigabytes``; each method has
    ``points`` points in its grid and may add ``extra``, which are run with each of ``tuning_seeds``; the winners run
    with ``seeds``. Every run is evaluated on dev before its first step and ``evaluations`` times after it, which the
    budget pays for too."""

    forwards: Annotated[float, reader.positive] | None = None
    seconds: Annotated[float, reader.positive] | None = None
    gigabytes: Annotated[float, reader.positive] | None = None
    points: Annotated[int, reader.positive]
    extra: Annotated[int, reader.not_negative]
    tuning_seeds: Seeds
    seeds: Seeds
    evaluations: Annotated[int, reader.positive]
    contenders: tuple[Contender, ...]

    @property
    def unit(self) -> str:
        """The one of :data:`UNITS` in which the budget is given."""
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def amount(self) -> float:
        """How much of :attr:`unit` the budget is."""
        return float(getattr(self, self.unit))

    def steps(self, spec: RunSpec, price: Price) -> int:
        """The steps that the budget buys of ``spec`` beside its evaluations; 0 if one is too much."""
        step, evaluation = price(self.unit, spec)
        left = max(0.0, self.amount - (self.evaluations + 1) * evaluation)
        return math.floor(min(left / step * (1 + 1e-12), 2**62))

    def contender(self, spec: RunSpec) -> Contender | None:
        """The method of which ``spec`` is a run: of those that it meets the one that says most. None: it meets none."""
        met = [contender for contender in self.contenders if contender.meets(spec)]
        return max(met, key=lambda contender: len(contender.fields), default=None)

    def tuning_runs(self, point: RunSpec) -> tuple[RunSpec, ...]:
        """The runs of a point of a grid, one for each tuning seed."""
        return tuple(point.replace(seed=seed) for seed in self.tuning_seeds)

    def search(self, contender: Contender, points: Sequence[RunSpec], results: Mapping[str, Result]) -> Search:
        """The search over ``points``, each with the first tuning seed, as far as ``results``, by their hash, go."""
        runs = {point: [results.get(run.hash) for run in self.tuning_runs(point)] for point in points}
        search = Search(points=tuple(points))
        if waiting := tuple(point for point, of_point in runs.items() if not all(map(is_done, of_point))):
            return replace(search, waiting=waiting)
        ranks = {point: _rank([run for run in of_point if run]) for point, of_point in runs.items()}
        best = min(ranks, key=ranks.__getitem__, default=None)
        if best is None or math.isinf(ranks[best][0]):
            return search
        whole = [point for point, of_point in runs.items() if all(run and run.is_ok for run in of_point)]
        beyond = tuple(neighbours([*whole, best], best, contender.axes))  # whose run may have been disturbed
        return replace(search, best=best, beyond=beyond)

    def untried(self, contender: Contender, search: Search, price: Price | None) -> list[RunSpec]:
        """The neighbours of the best point that can still be run: the budget, at ``price``, buys a step of them, and
        they are not among the points whose runs ended for lack of memory or time. Without a price any can be paid."""
        tried = {tuple(point.value(key) for key in contender.axes) for point in search.points}
        new = [spec for spec in search.beyond if tuple(spec.value(key) for key in contender.axes) not in tried]
        return new if price is None else [spec for point in new if (spec := _afforded(self, point, price))]


def _rank(runs: Sequence[Result]) -> tuple[float, float]:
    """The mean loss on dev of a point's runs, infinite if one has none, and their mean first score, negative."""
    losses, scores = zip(*(run.rank_on_dev for run in runs), strict=True)
    return statistics.fmean(losses), statistics.fmean(scores)


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How far the tuning of a method is. ``points``: those of its grid, then those that were added; ``waiting``: those
    that have not run with every tuning seed; ``best``: the one with the least mean loss on dev, of equal ones the
    highest score, then the first; None as long as any waits or if none has a finite loss; ``beyond``: the neighbours of
    the best point that were not evaluated, none if it is interior. A run that ended for lack of memory or time says
    nothing of its point."""

    points: tuple[RunSpec, ...]
    waiting: tuple[RunSpec, ...] = ()
    best: RunSpec | None = None
    beyond: tuple[RunSpec, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """A protocol's runs. ``tuning``: header -> the points of the method's grid with the first tuning seed, in the
    file's order; none of them looks at the test set. ``test_size``: the examples that the winners see of it. ``price``:
    what their steps cost."""

    protocol: Protocol
    tuning: Mapping[str, tuple[RunSpec, ...]]
    test_size: int
    price: Price

    @property
    def cells(self) -> tuple[RunSpec, ...]:
        """The tuning runs of the grids, a point of every method after the other, with one seed and then the next."""
        points = [spec for point in zip(*self.tuning.values(), strict=True) for spec in point]
        return tuple(point.replace(seed=seed) for seed in self.protocol.tuning_seeds for point in points)

    def search(self, header: str, results: Mapping[str, Result]) -> Search:
        """The tuning of a method as far as ``results``, by their hash, tell it: its grid, then the neighbours of the
        best point until it is interior or the protocol's ``extra`` points are used up."""
        [contender] = [contender for contender in self.protocol.contenders if contender.header == header]
        points, most = list(self.tuning[header]), self.protocol.points + self.protocol.extra
        while True:
            state = self.protocol.search(contender, points, results)
            added = self.protocol.untried(contender, state, self.price)[: most - len(points)]
            if not added:
                return state
            points += added

    def added(self, results: Mapping[str, Result]) -> tuple[RunSpec, ...]:
        """The runs of points that were added to grids, as far as ``results`` tell them."""
        more = [self.search(header, results).points[self.protocol.points :] for header in self.tuning]
        return tuple(run for points in more for point in points for run in self.protocol.tuning_runs(point))

    def finals(self, results: Mapping[str, Result]) -> tuple[RunSpec, ...]:
        """The winners' runs, as far as ``results`` tell the winners: all of one seed, then all of the next."""
        winners = [spec for header in self.tuning if (spec := self.search(header, results).best) is not None]
        return tuple(self.final(spec, seed) for seed in self.protocol.seeds for spec in winners)

    def final(self, spec: RunSpec, seed: int) -> RunSpec:
        """The run of a tuned point with another seed, which looks at the test set."""
        return spec.replace(seed=seed, test_size=self.test_size)

    def foreseen(self, results: Mapping[str, Result], unfit: Collection[str] = ()) -> tuple[RunSpec, ...]:
        """All runs as ``results`` let them be foreseen: of a method that is not tuned its first point stands for the
        best one, and points that will be added later are not among them. ``unfit``: hashes of runs that cannot be: a
        method whose grid waits for such has no winner."""
        states = [self.search(header, results) for header in self.tuning]
        untuned = [state.points[0] for state in states if state.waiting and not self._is_barred(state, unfit)]
        likely = [self.final(point, seed) for seed in self.protocol.seeds for point in untuned]
        return (*self.cells, *self.added(results), *self.finals(results), *likely)

    def _is_barred(self, state: Search, unfit: Collection[str]) -> bool:
        """Whether a tuning waits for runs that are ``unfit``, and so never ends."""
        return any(run.hash in unfit for point in state.waiting for run in self.protocol.tuning_runs(point))

    def addable(self, results: Mapping[str, Result], unfit: Collection[str] = ()) -> tuple[RunSpec, ...]:
        """The most runs that grids may add to :meth:`foreseen`: for each its method's first point, as costly as it."""
        runs, most = list[RunSpec](), self.protocol.points + self.protocol.extra
        for header in self.tuning:
            state = self.search(header, results)
            if (state.waiting or state.beyond) and not self._is_barred(state, unfit):
                runs += self.protocol.tuning_runs(state.points[0]) * (most - len(state.points))
        return tuple(runs)


def is_done(run: Result | None) -> bool:
    """Whether a tuning run came to its end, be it a bad one; what is only skipped or partial is run again."""
    return run is not None and run.outcome != Outcome.SKIPPED and not run.partial


def read(stated: Mapping[str, Any], methods: list[Any], base: Mapping[str, Any]) -> Protocol:
    """The protocol of ``[protocol]``, ``[[methods]]`` and ``[base]``. Raises ``ValueError`` for what cannot be one."""
    contenders = _with_others(list(map(_contender, methods)), base)
    protocol = reader.read(Protocol, stated, "[protocol]", contenders=contenders)
    units = [unit for unit in UNITS if unit in stated]
    if len(units) != 1:
        got = " and ".join(units) or "none"
        raise ValueError(f"[protocol] must have one budget, but got {got}; give one of {', '.join(UNITS)}")
    if shared := set(protocol.tuning_seeds) & set(protocol.seeds):
        free = max(protocol.seeds) + 1
        raise ValueError(
            f"`tuning_seeds` must be none of seeds, but both have {min(shared)}; "
            f"write tuning_seeds = [{free}, {free + 1}]"
        )
    _check_contenders(protocol)
    return protocol


def _contender(data: Any) -> Contender:
    if not isinstance(data.get("header"), str) or not data["header"]:
        raise ValueError('`header` must be given in [[methods]], but is missing; write header = "ZO-SGD"')
    fields = flat({key: value for key, value in data.items() if key != "header"})
    for key, values in fields.items():
        check_key(key)
        if key in (*_DECIDED, "device"):
            raise ValueError(f"`{key}` must not be in [[methods]], but is; {_DECIDED.get(key, '--device')} decides it")
        for value in _listed(values):
            if _times(value) is None and isinstance(check_value(key, value), (bool, str)) and isinstance(values, list):
                raise ValueError(
                    f"`{key}` in [[methods]] must list numbers, which a grid can go beyond, but got {value!r}; give "
                    "each its own [[methods]]"
                )
    return Contender(header=data["header"], fields=fields)


def _with_others(contenders: Sequence[Contender], base: Mapping[str, Any]) -> tuple[Contender, ...]:
    """Each with the values in ``base``, or else the usual ones, of the fields that only others of them state."""
    stated = {
        key: value_in(base, key)
        for contender in contenders for key, values in contender.fields.items()
        if not key.startswith("options.") and all(_times(value) is None for value in _listed(values))
    }  # fmt: skip
    return tuple(
        replace(contender, others={key: value for key, value in stated.items() if key not in contender.fields})
        for contender in contenders
    )


def _check_contenders(protocol: Protocol) -> None:
    headers = [contender.header for contender in protocol.contenders]
    if len(headers) < 2 or len(set(headers)) < len(headers):
        raise ValueError(
            f"[[methods]] must be two or more with headers that differ, but got {', '.join(headers) or 'none'}"
        )
    for contender in protocol.contenders:
        points = math.prod(len(_listed(values)) for values in contender.fields.values())
        if points != protocol.points:
            raise ValueError(
                f"every method must have {protocol.points} points in its grid, as [protocol] says, but "
                f"{contender.header} has {points}; give all as many"
            )


def contest(
    protocol: Protocol, base: Mapping[str, Any], changes: Mapping[str, Any], points: Callable[[Mapping[str, Any]], Any],
    make: Callable[[Mapping[str, Any]], RunSpec], price: Price, headers: Sequence[str] | None = None,
) -> Contest:  # fmt: skip
    """The protocol's runs, or those of the methods ``headers`` alone. ``base``: what all have in common; ``changes``
    are made to it. ``points``: the combinations of a method's fields; ``make``: the resolved spec of some values.

    Raises ``ValueError`` for a change of what the protocol or its methods state (but for the base of a grid's
    multiples, of which a grid of numbers takes no notice), for equal points, for a budget that
    buys no step, and for a header that is none's.
    """
    by_header = {contender.header: contender for contender in protocol.contenders}
    for header in headers or ():
        if header not in by_header:
            raise ValueError(f"a protocol has no method {header!r}; {suggestion(header, by_header)}")
    for key in (*base, *changes):
        if key in _DECIDED:
            raise ValueError(
                f"`{key}` must be left to a protocol, but is given; {_DECIDED[key]} in [protocol] decides it"
            )
    fields = [field for contender in protocol.contenders for field in contender.fields.items()]
    multiplied = {key for key, values in fields if _times(_listed(values)[0])}
    for contender in protocol.contenders:
        for key in set(changes) - multiplied:
            if any(_times(value) is None for value in _listed(contender.fields.get(key, []))):
                raise ValueError(
                    f"`{key}` must be as the protocol states it for {contender.header}, but is changed; leave "
                    "it out, or edit a copy of the file"
                )
    common = {**base, **changes}
    if common.get("task", "none") == "none":
        raise ValueError("a protocol needs a task, but its runs have none; write task in [base]")
    asked = RunSpec(model="any", task=common["task"])
    if (score := task_of(asked).goal.scores[0]) != "accuracy":
        raise ValueError(
            f"a protocol needs a task that is judged by accuracy, but {asked.task_name} is judged by {score}; choose "
            "another task"
        )
    tested = value_in(common, "test_size")
    if tested < 1:
        raise ValueError("`test_size >= 1` must hold in a protocol, but got test_size=0; its winners see the test set")
    common |= {"seed": protocol.tuning_seeds[0], "test_size": 0}
    tuning = {
        contender.header: tuple(
            _bought(protocol, contender.header, make({**common, **_resolved(point, common)}), price)
            for point in points(contender.fields)
        )
        for contender in (by_header[header] for header in (by_header if headers is None else headers))
    }
    hashes = [spec.hash for specs in tuning.values() for spec in specs]
    if len(set(hashes)) < len(hashes):
        raise ValueError("the points of all grids must differ, but two are the same run; change one in [[methods]]")
    return Contest(protocol=protocol, tuning=tuning, test_size=tested, price=price)


def _resolved(point: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """``point`` with a number for each "x3"."""
    values = dict(point)
    for key, value in point.items():
        if (factor := _times(value)) is not None:
            if not isinstance(common.get(key), (int, float)):
                raise ValueError(f"`{key} = {value!r}` needs a {key} in [base] that it multiplies, but there is none")
            values[key] = float(f"{factor * common[key]:.6g}")
    return values


def _afforded(protocol: Protocol, spec: RunSpec, price: Price) -> RunSpec | None:
    """``spec`` with the steps that the budget buys; None if it buys none."""
    steps = protocol.steps(spec, price)
    return spec.replace(steps=steps, eval_every=math.ceil(steps / protocol.evaluations)) if steps else None


def _bought(protocol: Protocol, header: str, spec: RunSpec, price: Price) -> RunSpec:
    new = _afforded(protocol, spec, price)
    if new is None:
        step, evaluation = price(protocol.unit, spec)
        raise ValueError(
            f"a budget must buy a step, but {protocol.amount:g} {protocol.unit} buy none of {header}, which costs "
            f"{step:.3g} a step and {evaluation:.3g} for each of {protocol.evaluations + 1} evaluations; raise it"
        )
    return new


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _times(value: Any) -> float | None:
    """The factor of "x3"; None for other values."""
    match = _TIMES.fullmatch(value) if isinstance(value, str) else None
    return float(match[1]) if match else None
