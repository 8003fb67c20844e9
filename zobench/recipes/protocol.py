"""Protocols: methods compared at one budget. Each has a grid of one size, tuned on dev with a seed of its own; the best
point runs with the other seeds and sees the test set."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zobench.result import Outcome, Result
from zobench.runspec import RunSpec, check_key, check_value, flat, suggestion

UNITS = ("forwards", "seconds", "gigabytes")
"""What a budget can be given in: forwards of one batch (a backward pass is two), seconds of predicted steps, 1e9 bytes
of weights that the steps move."""

Price = Callable[[str, RunSpec], float]
"""What a step of a spec costs in a unit of a budget."""

_NEEDED = ("points", "tuning_seed", "seeds", "evaluations")
_OWN = {"steps": "the budget", "eval_every": "evaluations", "seed": "tuning_seed and seeds"}
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

    def meets(self, spec: RunSpec) -> bool:
        """Whether ``spec`` has one of the values that are given for each field, and leaves the others' as they are."""
        if any(spec.value(key) != value for key, value in self.others.items()):
            return False
        given = ((key, _listed(values)) for key, values in self.fields.items())
        return all(
            any(_times(value) is not None or spec.value(key) == check_value(key, value) for value in values)
            for key, values in given
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """What the file says. ``amount`` of ``unit`` is each run's budget; each method has ``points`` points in its grid,
    which are run with ``tuning_seed``; the winners run with ``seeds``. Every run is evaluated on dev ``evaluations``
    times after its start."""

    unit: str
    amount: float
    points: int
    tuning_seed: int
    seeds: tuple[int, ...]
    evaluations: int
    contenders: tuple[Contender, ...]

    def steps(self, spec: RunSpec, price: Price) -> int:
        """The steps that the budget buys of ``spec``; 0 if one is too much."""
        return math.floor(min(self.amount / price(self.unit, spec) * (1 + 1e-12), 2**62))

    def contender(self, spec: RunSpec) -> Contender | None:
        """The method of which ``spec`` is a run: of those that it meets the one that says most. None: it meets none."""
        met = [one for one in self.contenders if one.meets(spec)]
        return max(met, key=lambda one: len(one.fields), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """A protocol's runs. ``tuning``: header -> a run for each point of the method's grid, in the file's order; none of
    them looks at the test set. ``test_size``: the examples that the winners see of it."""

    protocol: Protocol
    tuning: Mapping[str, tuple[RunSpec, ...]]
    test_size: int

    @property
    def cells(self) -> tuple[RunSpec, ...]:
        """The tuning runs, a point of every method after the other."""
        return tuple(spec for point in zip(*self.tuning.values(), strict=True) for spec in point)

    def is_tuned(self, header: str, results: Mapping[str, Result]) -> bool:
        """Whether ``results``, by their hash, hold a whole run of every point of the method's grid."""
        return all(is_done(results.get(spec.hash)) for spec in self.tuning[header])

    def winner(self, header: str, results: Mapping[str, Result]) -> RunSpec | None:
        """The method's point with the least loss on dev, of equal ones the highest score, then the first. None until
        it is tuned, and if no point's loss is finite."""
        if not self.is_tuned(header, results):
            return None
        runs = (results[spec.hash] for spec in self.tuning[header])
        finished = [run for run in runs if run.rank_on_dev[0] < math.inf]
        return min(finished, key=lambda run: run.rank_on_dev).spec if finished else None

    def finals(self, results: Mapping[str, Result]) -> tuple[RunSpec, ...]:
        """The winners' runs, as far as ``results`` tell the winners: all of one seed, then all of the next."""
        winners = [spec for header in self.tuning if (spec := self.winner(header, results)) is not None]
        return tuple(self.final(spec, seed) for seed in self.protocol.seeds for spec in winners)

    def final(self, spec: RunSpec, seed: int) -> RunSpec:
        """The run of a tuned point with another seed, which looks at the test set."""
        return spec.replace(seed=seed, test_size=self.test_size)


def is_done(run: Result | None) -> bool:
    """Whether a tuning run came to its end, be it a bad one; what is only skipped, partial or failed is run again."""
    return run is not None and run.outcome in (Outcome.OK, Outcome.OOM, Outcome.TIMEOUT) and not run.partial


def read(stated: Mapping[str, Any], methods: list[Any], base: Mapping[str, Any]) -> Protocol:
    """The protocol of ``[protocol]``, ``[[methods]]`` and ``[base]``. Raises ``ValueError`` for what cannot be one."""
    units = [unit for unit in UNITS if unit in stated]
    for key in stated:
        if key not in (known := (*UNITS, *_NEEDED)):
            raise ValueError(f"unknown key {key!r} in [protocol]; {suggestion(key, known)}")
    if len(units) != 1:
        got = " and ".join(units) or "none"
        raise ValueError(f"[protocol] must have one budget, but got {got}; give one of {', '.join(UNITS)}")
    for key in _NEEDED:
        if key not in stated:
            raise ValueError(f"`{key}` must be given in [protocol], but is missing; {_EXAMPLES[key]}")
    seeds = stated["seeds"]
    if not isinstance(seeds, list) or len(seeds) < 2 or len(set(map(repr, seeds))) < len(seeds):
        raise ValueError(f"`seeds` in [protocol] must be two or more that differ, but got {seeds!r}; write [0, 1, 2]")
    numbers = {key: stated[key] for key in (*units, "points", "evaluations")}
    for key, value in numbers.items():
        whole = key in ("points", "evaluations")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
            raise ValueError(
                f"`{key} > 0` must hold in [protocol], but got {value!r}; {_EXAMPLES.get(key, 'raise it')}"
            )
    tuned, *others = (check_value("seed", seed) for seed in (stated["tuning_seed"], *seeds))
    if tuned in others:
        raise ValueError(f"`tuning_seed` must be none of seeds, but got {tuned}; {_EXAMPLES['tuning_seed']}")
    protocol = Protocol(
        unit=units[0], amount=float(stated[units[0]]), points=stated["points"], tuning_seed=tuned, seeds=tuple(others),
        evaluations=stated["evaluations"], contenders=_apart(list(map(_contender, methods)), base),
    )  # fmt: skip
    _check_contenders(protocol)
    return protocol


_EXAMPLES = {
    "points": "write points = 4 for grids of four",
    "tuning_seed": "write tuning_seed = 100",
    "seeds": "write seeds = [0, 1, 2]",
    "evaluations": "write evaluations = 6",
}


def _contender(data: Any) -> Contender:
    if not isinstance(data.get("header"), str) or not data["header"]:
        raise ValueError('`header` must be given in [[methods]], but is missing; write header = "ZO-SGD"')
    fields = flat({key: value for key, value in data.items() if key != "header"})
    for key, values in fields.items():
        check_key(key)
        if key in (*_OWN, "device"):
            raise ValueError(f"`{key}` must not be in [[methods]], but is; {_OWN.get(key, '--device')} decides it")
        for value in _listed(values):
            if _times(value) is None:
                check_value(key, value)
    return Contender(header=data["header"], fields=fields)


def _apart(contenders: Sequence[Contender], base: Mapping[str, Any]) -> tuple[Contender, ...]:
    """Each with the values in ``base``, or else the usual ones, of the fields that only others of them state."""
    usual = RunSpec(model="any")
    stated = {
        key: check_value(key, base.get(key, usual.value(key)))
        for one in contenders for key, values in one.fields.items()
        if not key.startswith("options.") and all(_times(value) is None for value in _listed(values))
    }  # fmt: skip
    return tuple(
        replace(one, others={key: value for key, value in stated.items() if key not in one.fields})
        for one in contenders
    )


def _check_contenders(protocol: Protocol) -> None:
    headers = [one.header for one in protocol.contenders]
    if len(headers) < 2 or len(set(headers)) < len(headers):
        raise ValueError(
            f"[[methods]] must be two or more with headers that differ, but got {', '.join(headers) or 'none'}"
        )
    for one in protocol.contenders:
        points = math.prod(len(_listed(values)) for values in one.fields.values())
        if points != protocol.points:
            raise ValueError(
                f"every method must have {protocol.points} points in its grid, as [protocol] says, but {one.header} "
                f"has {points}; give all as many"
            )


def contest(
    protocol: Protocol, base: Mapping[str, Any], changes: Mapping[str, Any], points: Callable[[Mapping[str, Any]], Any],
    make: Callable[[Mapping[str, Any]], RunSpec], price: Price,
) -> Contest:  # fmt: skip
    """The protocol's runs. ``base``: what all have in common; ``changes`` are made to it. ``points``: the combinations
    of a method's fields; ``make``: the resolved spec of some values.

    Raises ``ValueError`` for a change of what the protocol or its methods state, for equal points, and for a budget
    that buys no step.
    """
    for key in (*base, *changes):
        if key in _OWN:
            raise ValueError(f"`{key}` must be left to a protocol, but is given; {_OWN[key]} in [protocol] decides it")
    for one in protocol.contenders:
        for key in changes:
            if any(_times(value) is None for value in _listed(one.fields.get(key, []))):
                raise ValueError(
                    f"`{key}` must be as the protocol states it for {one.header}, but is changed; leave it out, or "
                    "edit a copy of the file"
                )
    common = {**base, **changes}
    if common.get("task", "none") == "none":
        raise ValueError("a protocol needs a task, but its runs have none; write task in [base]")
    tested = check_value("test_size", common.get("test_size", RunSpec(model="any").test_size))
    if tested < 1:
        raise ValueError("`test_size >= 1` must hold in a protocol, but got test_size=0; its winners see the test set")
    common |= {"seed": protocol.tuning_seed, "test_size": 0}
    tuning = {
        one.header: tuple(
            _bought(protocol, one.header, make({**common, **_resolved(point, common)}), price)
            for point in points(one.fields)
        )
        for one in protocol.contenders
    }
    hashes = [spec.hash for specs in tuning.values() for spec in specs]
    if len(set(hashes)) < len(hashes):
        raise ValueError("the points of all grids must differ, but two are the same run; change one in [[methods]]")
    return Contest(protocol=protocol, tuning=tuning, test_size=tested)


def _resolved(point: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """``point`` with a number for each "x3"."""
    values = dict(point)
    for key, value in point.items():
        if (factor := _times(value)) is not None:
            if not isinstance(common.get(key), (int, float)):
                raise ValueError(f"`{key} = {value!r}` needs a {key} in [base] that it multiplies, but there is none")
            values[key] = float(f"{factor * common[key]:.6g}")
    return values


def _bought(protocol: Protocol, header: str, spec: RunSpec, price: Price) -> RunSpec:
    steps = protocol.steps(spec, price)
    if not steps:
        cost = price(protocol.unit, spec)
        raise ValueError(
            f"a budget must buy a step, but {protocol.amount:g} {protocol.unit} buy none of {header}, which costs "
            f"{cost:.3g} a step; raise it"
        )
    return spec.replace(steps=steps, eval_every=math.ceil(steps / protocol.evaluations))


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _times(value: Any) -> float | None:
    """The factor of "x3"; None for other values."""
    told = _TIMES.fullmatch(value) if isinstance(value, str) else None
    return float(told[1]) if told else None
