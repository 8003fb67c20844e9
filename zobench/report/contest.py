"""The table of a protocol: its recipe, and how each method came out of the stored runs, per machine and model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from zobench import models, recipes
from zobench.cost import budget, footprint, sizes
from zobench.machine.reader import checked, read
from zobench.recipes import matrix
from zobench.recipes.protocol import Contender, Protocol, Search, is_done
from zobench.report.table import Claim, check_bounds, check_header
from zobench.result import Outcome, Result
from zobench.runspec import DECLARED, RunSpec
from zobench.stats.intervals import wilson_interval
from zobench.store import place_of
from zobench.store.measured import seconds_until, step_at
from zobench.store.query import grouped


@dataclass(frozen=True, kw_only=True, slots=True)
class ContestTable:
    """One table. ``runner``: the matrix whose ``protocol`` it shows; ``baseline``: the header of the method that others
    are held against; ``target``: the share on dev whose costs are shown; ``claims``: of two headers each."""

    name: str
    title: str
    runner: str
    caption: str = ""
    baseline: str
    target: float
    protocol: Protocol
    claims: tuple[Claim, ...] = ()
    paper: str = ""
    is_figure: ClassVar[bool] = False


def parse(name: str, data: Mapping[str, Any]) -> ContestTable:
    """The table in ``data``. Raises ``ValueError`` for a key or a header that is not known."""
    keys: dict[str, Any] = dict.fromkeys(("kind", "title", "runner", "baseline", "caption"), str)
    keys |= {"target": float, "claims": list[dict[str, Any]]}
    stated = checked(data, keys, "the table", ("title", "runner", "baseline", "target"))
    del stated["kind"]
    protocol = matrix.protocol_of(recipes.find("runners", stated["runner"]))
    if protocol is None:
        raise ValueError(f"`runner` must be a matrix with a [protocol], but {stated['runner']} has none; name another")
    headers = [contender.header for contender in protocol.contenders]
    if not 0 < stated["target"] < 1:
        raise ValueError(f"`0 < target < 1` must hold, but got {stated['target']}; write target = 0.75")
    claims = tuple(read(_claim, claim, "[[claims]]") for claim in stated.pop("claims", ()))
    for header in (stated["baseline"], *(header for claim in claims for header in claim.ratio)):
        check_header(f"a table of {stated['runner']} needs headers of its methods", header, headers)
    return ContestTable(name=name, protocol=protocol, claims=claims, **stated)


def _claim(
    text: str, source: str, metric: Literal["accuracy", "forwards", "step_time", "memory"], of: tuple[str, str],
    at_least: float | None = None, at_most: float | None = None,
) -> Claim:  # fmt: skip
    """The claim of a ``source`` on two methods: the difference of their test accuracies, or the ratio of their forwards
    to the target, seconds of a step, or memory."""
    check_bounds(text, at_least, at_most)
    return Claim(text=f"{text} ({source})", metric=metric, ratio=of, at_least=at_least, at_most=at_most)


@dataclass(frozen=True, kw_only=True)
class MethodStanding:
    """One method. ``tuned``: the runs of its grid and of points that were added, the best first; ``search``: what they
    say; ``most``: the points that it may have; ``runs``: those of its best point, by seed, once it is tuned;
    ``elsewhere``: their machine, where it is another than the ranking's, whose times and memory do not count."""

    contender: Contender
    most: int
    target: float
    tuned: tuple[Result, ...]
    search: Search
    runs: tuple[Result, ...]
    elsewhere: str = ""

    @property
    def header(self) -> str:
        """The method's name in the table."""
        return self.contender.header

    @cached_property
    def scores(self) -> tuple[float, float, float] | None:
        """The mean share on test over the seeds, and the ends of its 95 % interval by Wilson's score: all seeds answer
        the same examples, which count once. None before any run of the best point."""
        if not self.runs:
            return None
        tests = [run.evaluation["test"] for run in self.runs]
        mean = statistics.fmean(test[self.runs[0].scores[0]] for test in tests)
        return mean, *wilson_interval(mean, min(test["count"] for test in tests))

    @property
    def chosen(self) -> str:
        """The best point, in what the grid varies: ``lr 0.0006``."""
        axes = self.contender.axes
        return ", ".join(f"{key} {self.runs[0].spec.value(key):g}" for key in axes) if self.runs else ""

    @property
    def is_edge(self) -> bool:
        """Whether its best point has a neighbour that was not tried, so that nothing is claimed of the method."""
        return bool(self.search.beyond)

    @property
    def loss(self) -> float | None:
        """The mean loss on test over the seeds; None where a seed has a loss that is not finite."""
        losses = [run.evaluation["test"]["loss"] for run in self.runs]
        return None if None in losses else average(losses)

    @property
    def dev(self) -> float | None:
        """The best evaluation's share on dev, the mean over seeds."""
        return average([run.evaluation["best"][run.scores[0]] for run in self.runs])

    @property
    def spec(self) -> RunSpec | None:
        """The spec of the first of its runs; None before any."""
        return self.runs[0].spec if self.runs else None

    @cached_property
    def forwards(self) -> float | None:
        """Forward passes of one step, by :func:`zobench.cost.budget.forwards`; None before any run."""
        return budget.forwards(sized(self.runs[0].spec)) if self.runs else None

    @cached_property
    def moved(self) -> float | None:
        """Bytes of weights that a run moves; None where the sizes of its model are not known."""
        spec = self.spec
        return budget.moved_bytes(spec) * spec.steps if spec and footprint.is_sized(spec) else None

    @property
    def step_times(self) -> list[float]:
        """Median seconds of a step, of each seed."""
        return [seconds for run in self._local_runs if (seconds := run.step_seconds) is not None]

    @property
    def memories(self) -> list[float]:
        """The device's peak bytes of each seed that knows them."""
        peaks = [run.memory.get("device_peak_bytes") for run in self._local_runs]
        return [float(peak) for peak in peaks if peak is not None]

    @property
    def _local_runs(self) -> tuple[Result, ...]:
        """The runs whose times and memory are of the ranking's machine."""
        return () if self.elsewhere else self.runs

    @cached_property
    def reached(self) -> list[tuple[Result, int]]:
        """The seeds that reached the target on dev, each with the step of the first evaluation that did."""
        steps = [(run, step_at(run, self.target)) for run in self.runs]
        return [(run, step) for run, step in steps if step is not None]

    @property
    def forwards_to_target(self) -> list[float]:
        """Forward passes up to the first evaluation at the target, of each seed that reached it."""
        return [step * budget.forwards(sized(run.spec)) for run, step in self.reached]

    @property
    def forwards_before_target(self) -> list[float]:
        """Forward passes up to the evaluation before that, of each seed: the target was reached between the two."""
        return [
            max((row[0] for row in run.evaluation["curve"] if row[0] < step), default=0)
            * budget.forwards(sized(run.spec))
            for run, step in self.reached
        ]

    @property
    def seconds_to_target(self) -> list[float]:
        """Seconds of steps, without evaluations, of each seed that reached it and whose steps were all timed."""
        return [seconds for _, seconds in self._timed]

    @property
    def _timed(self) -> list[tuple[Result, float]]:
        spent = [(run, seconds_until(run, step)) for run, step in self.reached if not self.elsewhere]
        return [(run, seconds) for run, seconds in spent if seconds is not None]

    @property
    def joules_to_target(self) -> list[float]:
        """Energy of these seconds at the run's mean power, of each seed whose power was measured."""
        powers = [(seconds, run.power.get("mean_power_watts")) for run, seconds in self._timed]
        return [seconds * power for seconds, power in powers if power is not None]


def average(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodRanking:
    """A protocol's runs of one model on one machine; ``standings``: a method each, the least loss on test first, then
    those without one in the protocol's order. ``spec``: a run, for what they have in common."""

    machine: str
    spec: RunSpec
    description: str
    standings: tuple[MethodStanding, ...]

    @property
    def finished(self) -> list[MethodStanding]:
        """The methods whose best point has run."""
        return [standing for standing in self.standings if standing.scores is not None]


EDGE = "Edge: its best point is an end of what was tried, so nothing is claimed of this method."
"""The remark on a :class:`MethodStanding` whose best point is an end."""
BUSY = "Other processes kept the machine busy during some of the runs: their times may not count."
"""The remark beside times of a ranking of which :func:`is_disturbed`."""


def is_disturbed(ranking: MethodRanking) -> bool:
    """Whether some of the runs that it shows were disturbed."""
    return any(run.disturbances for method in ranking.standings if not method.elsewhere for run in method.runs)


def is_of(protocol: Protocol, spec: RunSpec) -> bool:
    """Whether ``spec`` is a run of one of the protocol's stages: its seed, its steps, and a method's fields. Where the
    sizes of a stored run's model are not known, nobody can say what its steps cost but in forwards, and where the file
    of its task is gone, not what its evaluations do."""
    tuning = spec.seed in protocol.tuning_seeds and spec.test_size == 0
    if spec.task == "none" or not (tuning or (spec.seed in protocol.seeds and spec.test_size)):
        return False
    if (
        protocol.contender(spec) is None
        or not sizes.has_task(spec)
        or (protocol.unit != "forwards" and not footprint.is_sized(spec))
    ):
        return False
    return protocol.unit not in budget.PRICES or spec.steps == protocol.steps(sized(spec), budget.price)


def sized(spec: RunSpec) -> RunSpec:
    """``spec``, or where the sizes of its model are not known (its package is not installed) the same run of OPT-125M:
    forward passes do not depend on a model's size, but for methods that take layers apart."""
    if models.is_known(spec):
        return spec
    return spec.replace(model="OPT-125M", model_path="", name="", config_hash="", weights_hash="")


_ROWS = ("packed", "attention")
"""Fields that say how a batch's rows are computed and not what of: not every method takes them."""


def rankings(table: ContestTable, results: Sequence[Result]) -> list[MethodRanking]:
    """How the methods came out, for each machine and model (and all else that the methods' own fields leave open)."""
    varied = {key.partition(".")[0] for contender in table.protocol.contenders for key in contender.fields}
    common = [
        name for name, field in DECLARED.items()
        if not field.unhashed
        and name not in (*varied, *_ROWS, "steps", "seed", "eval_every", "test_size", "weights_path")
    ]  # fmt: skip
    groups = grouped(
        (result for result in results if is_of(table.protocol, result.spec)),
        key=lambda result: (place_of(result), *(str(getattr(result.spec, name)) for name in common)),
    )
    alone = [(settings, _ranking(table, machine, runs)) for (machine, *settings), runs in groups.items()]
    if table.protocol.unit not in budget.PRICES:  # seconds buy other steps on another machine
        return [ranking for _, ranking in alone]
    return [
        _with_baseline(table, ranking, [other for others, other in alone if others == settings])
        for settings, ranking in alone
    ]


def _with_baseline(table: ContestTable, ranking: MethodRanking, alike: Sequence[MethodRanking]) -> MethodRanking:
    """The ranking. If its machine has not run the baseline to the end, another's of ``alike``, which ran the same
    settings, stands in for it: seeds, batches and directions are the same there, and rounding is not."""
    if not ranking.finished or any(method.header == table.baseline for method in ranking.finished):
        return ranking
    size = ranking.finished[0].runs[0].spec.test_size
    measured = [
        replace(method, elsewhere=other.machine)
        for other in alike for method in other.finished
        if method.header == table.baseline and method.runs[0].spec.test_size == size
    ]  # fmt: skip
    if not measured:
        return ranking
    best = max(measured, key=lambda method: len(method.runs))
    others = (method for method in ranking.standings if method.header != table.baseline)
    return replace(ranking, standings=_ordered([best, *others]))


def _ordered(standings: Iterable[MethodStanding]) -> tuple[MethodStanding, ...]:
    return tuple(sorted(standings, key=lambda item: math.inf if item.loss is None else item.loss))


def _ranking(table: ContestTable, machine: str, results: Sequence[Result]) -> MethodRanking:
    """The ranking of one machine's ``results``. Of final runs those with the largest test set count."""
    largest = max(result.spec.test_size for result in results)
    runs = [(table.protocol.contender(run.spec), run) for run in results if run.spec.test_size in (0, largest)]
    by_method = [(item, [run for of, run in runs if of == item]) for item in table.protocol.contenders]
    return MethodRanking(
        machine=machine, spec=results[0].spec, description=results[0].environment.description,
        standings=_ordered(standing_of(table, item, tried) for item, tried in by_method),
    )  # fmt: skip


def standing_of(table: ContestTable, contender: Contender, results: Sequence[Result]) -> MethodStanding:
    """How a method stands by its ``results``. It has no ``runs`` until its grid, with what is added, is tuned."""
    protocol, most = table.protocol, table.protocol.points + table.protocol.extra
    first = protocol.tuning_seeds[0]
    done = {run.spec.hash: run for run in results if run.spec.test_size == 0 and is_done(run)}
    ok = [run for run in results if run.outcome is Outcome.OK and "test" in run.evaluation]
    finals = {run.spec.replace(seed=first, test_size=0).hash for run in ok}
    points = {run.spec.replace(seed=first).hash: run.spec.replace(seed=first) for run in done.values()}
    # of points that are equally good the sweep took the first of the grid, which has final runs
    search = protocol.search(contender, sorted(points.values(), key=lambda spec: spec.hash not in finals), done)
    price = (lambda unit, spec: budget.price(unit, sized(spec))) if protocol.unit in budget.PRICES else None
    is_ended = len(points) >= most or not protocol.untried(contender, search, price)
    runs = []
    if search.best and len(points) >= protocol.points and is_ended:
        runs = [run for run in ok if run.spec.replace(seed=first, test_size=0).hash == search.best.hash]
    return MethodStanding(
        contender=contender, most=most, target=table.target, search=search,
        tuned=tuple(sorted(done.values(), key=lambda run: (run.rank_on_dev, run.spec.hash))),
        runs=tuple(sorted(runs, key=lambda run: run.spec.seed)),
    )  # fmt: skip
