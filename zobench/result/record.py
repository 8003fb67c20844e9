"""Result: what one cell of a matrix came to; its JSON form is the store's file format.

1   The first version.
2   Adds `trace`: the process's memory over time. Version 1 recorded none, so there it is {}.
3   Adds `evaluation`: what a fine-tuning run came to. Version 2 had no such runs, so there it is {}.

`partial` and `round` came without a version: they stand only where they say something.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zobench.result.facts import Facts
from zobench.runspec import RunSpec

DISTURBED, FEWER, DOUBTFUL = "other processes kept ", "threads: ", "the times may not count: "
"""How warnings begin of runs whose times may be too long: others had some of the cores, or cores were left to them; or
the GPU of a training run, which is kept all the same, was shared or throttled, or its machine swapped."""

_LAST_SECOND = 2**35  # seconds since 1970, in the year 3058: no run began later

SCHEMA_VERSION = 3
"""The version that is written. A change of the format is a line above, a step below, and one more here."""
STEPS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    lambda values: {**values, "trace": {}},
    lambda values: {**values, "evaluation": {}},
)
"""The steps in order: the one at index i makes version i + 2 of version i + 1."""

HOST_OOM = "host memory ran out"
"""How the reason of an ``oom`` begins where it was the host's memory, not the device's."""


class Outcome(enum.StrEnum):
    """How a cell ended. Exactly one holds; every one but ``ok`` carries a reason."""

    OK = "ok"
    OOM = "oom"  # device or host memory ran out; the reason says which
    TIMEOUT = "timeout"
    FAILED = "failed"  # the reason is the error, `traceback` the rest
    SKIPPED = "skipped"  # cannot fit, or the budget was used up first; the reason says what it needs
    CONTAMINATED = "contaminated"  # measured while something else disturbed the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """When a run was taken: round ``number`` (from 0) of a sweep ``began`` at that time (seconds since 1970), and this
    was turn ``place`` (from 0) of its ``cells``, which ``seed`` and number shuffled. Runs of one number and beginning
    are pairs."""

    number: int
    began: float
    place: int
    cells: int
    seed: int

    @classmethod
    def from_dict(cls, values: Any) -> Round:
        """The inverse of ``dataclasses.asdict``. Raises ``ValueError`` for anything else."""
        names = set(cls.__dataclass_fields__)
        whole = isinstance(values, Mapping) and set(values) == names
        if whole:
            began, counts = values["began"], [values[name] for name in names - {"began"}]
            whole = all(type(count) is int and 0 <= count < 2**63 for count in counts)
            whole = whole and type(began) in (int, float) and 0 <= began < _LAST_SECOND
        if not whole or values["place"] >= values["cells"]:
            raise ValueError(f"`round` must hold {', '.join(sorted(names))}, whole and 0 or more, but does not")
        return cls(**values)


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """One cell: its spec, how it ended, and every sample in base units (bytes, seconds, tokens, joules);
    docs/result.md.

    ``samples`` holds lists of equal length, one item per measured step: ``step_seconds``, ``loss`` (mean of the two
    losses), ``projected_grad``; ``warmup`` the same for the steps before. ``memory`` and ``power``: name to number,
    None where it is not available. ``parts``: seconds of transfers alone and compute alone
    (:func:`zobench.measure.observe.alone`), and ``update_survival``, a share. ``evaluation``: what
    :mod:`zobench.training` found with a task. ``timeline``: [lane, kind, block, start_s, end_s] of the last step, of
    the last two in a run with checkpoints. ``trace``: the process's memory over time
    (:func:`zobench.measure.observe.memory_over_time`). ``partial``: whether a budget ended it before its last step.
    ``round``: of a run that was repeated, which repeat it is. ``repeats``: of a cell that has several runs, all that
    ended ok; this result is the first, with the warnings of all (:func:`zobench.result.repeats.folded`).
    """

    spec: RunSpec
    outcome: Outcome
    reason: str = ""
    environment: Facts = field(default_factory=Facts)
    samples: dict[str, list[float | None]] = field(default_factory=dict)
    warmup: dict[str, list[float | None]] = field(default_factory=dict)
    memory: dict[str, int | None] = field(default_factory=dict)
    power: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    timeline: list[list[Any]] = field(default_factory=list)
    trace: dict[str, list[float | None]] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    skipped_updates: int = 0
    partial: bool = False
    traceback: str = ""
    round: Round | None = None
    repeats: tuple[Result, ...] = ()

    def __post_init__(self) -> None:
        if type(self.environment) is not Facts:
            kind = type(self.environment).__name__
            raise TypeError(f"`environment` must be Facts, but got a {kind}; write Facts(machine=...)")

    def __repr__(self) -> str:
        """One line: the cell, how it ended and how fast it was; everything else is in its attributes."""
        step, rate = self.step_seconds, self.tokens_per_second
        words = [str(self.outcome), f"{rate:.4g} tokens/s" if rate else "", f"{step:.3g} s a step" if step else ""]
        words += [self.reason, f"{len(self.runs)} processes" if self.repeats else ""]
        return f"Result({self.spec.label}: {', '.join(filter(None, words))})"

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a batch over the median step; None without a step, and of a task, whose tokens are not counted."""
        step = self.step_seconds
        return self.tokens_per_step / step if step and self.spec.task == "none" else None

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one batch."""
        return self.spec.tokens_per_step

    @property
    def is_ok(self) -> bool:
        """Whether it ended well."""
        return self.outcome is Outcome.OK

    @property
    def runs(self) -> tuple[Result, ...]:
        """The cell's repeats; of a cell that ran once, the result itself."""
        return self.repeats or (self,)

    @property
    def measured_seconds(self) -> list[float]:
        """Seconds of each measured step of this run."""
        return [seconds for seconds in self.samples.get("step_seconds", []) if seconds is not None]

    @functools.cached_property
    def step_seconds(self) -> float | None:
        """The median step in seconds, of repeats the median of their medians; None if no step was measured."""
        return statistics.median(self.run_seconds) if self.run_seconds else None

    @functools.cached_property
    def run_seconds(self) -> list[float]:
        """The median step of each run, which is one process, in the order of their rounds."""
        return [statistics.median(run.measured_seconds) for run in self.runs if run.measured_seconds]

    @functools.cached_property
    def disturbances(self) -> list[str]:
        """The warnings that say that its times may be too long."""
        return [text for text in self.warnings if text.startswith((DISTURBED, FEWER, DOUBTFUL))]

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of a task's scores; the first stands for the task. Results from before had accuracies."""
        return tuple(self.evaluation.get("scores", ("accuracy",)))

    @property
    def rank_on_dev(self) -> tuple[float, float]:
        """The key by which runs are sorted: least loss on dev, then highest first score; a loss that is not finite is
        last."""
        best = self.evaluation.get("best", {})
        loss = best.get("loss")
        is_finite = loss is not None and math.isfinite(loss)
        return (float(loss) if is_finite else math.inf), -(best.get(self.scores[0]) or 0.0)

    @property
    def ending(self) -> str:
        """How it ended, as it is shown: of a training run that ended well, but has no finite loss, ``diverged``."""
        is_lost = self.is_ok and "best" in self.evaluation and math.isinf(self.rank_on_dev[0])
        return "diverged" if is_lost else str(self.outcome)

    def with_facts(self, **facts: Any) -> Result:
        """The result with these ``facts`` in its environment, in place of those that it had under their names."""
        return dataclasses.replace(self, environment=dataclasses.replace(self.environment, **facts))

    def to_dict(self) -> dict[str, Any]:
        """JSON types only; non-finite floats become None, so that the text is valid JSON and floats round-trip.

        Of a cell with repeats, the first run alone.
        """
        if self.repeats:
            return self.repeats[0].to_dict()
        body = {name: finite(getattr(self, name)) for name in _BODY}
        return {
            "schema_version": SCHEMA_VERSION,
            "spec": self.spec.to_dict(),
            "spec_hash": self.spec.hash,
            "outcome": str(self.outcome),
            "reason": self.reason,
            "environment": finite(self.environment.to_dict()),
            **body,
            "tokens_per_step": self.tokens_per_step,
            "skipped_updates": self.skipped_updates,
            **({"partial": True} if self.partial else {}),
            **({"round": dataclasses.asdict(self.round)} if self.round else {}),
            "traceback": self.traceback,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_dict`, of any schema version. Raises ``ValueError`` for a newer one or a missing
        part."""
        values = upgraded(values)
        for key in ("spec", "outcome"):
            if key not in values:
                raise ValueError(f"`{key}` must be present, but is missing; this file is not a zobench result")
        names = set(cls.__dataclass_fields__) - {"spec", "outcome", "repeats"}
        rest = {key: value for key, value in values.items() if key in names}
        if "environment" in rest:
            rest["environment"] = Facts.from_dict(rest["environment"])
        if rest.get("round") is not None:
            rest["round"] = Round.from_dict(rest["round"])
        return cls(spec=RunSpec.from_stored(values["spec"]), outcome=Outcome(values["outcome"]), **rest)


_BODY = ("samples", "warmup", "memory", "power", "parts", "timeline", "trace", "evaluation", "warnings")


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` of a result file of any version as the current one has them; the file itself stays as it is. Raises
    ``ValueError`` for a version that is newer than this zobench, or none."""
    version = values.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= SCHEMA_VERSION:
        why = "this file is not a zobench result"
        if type(version) is int and version > SCHEMA_VERSION:
            why = "a newer zobench wrote this file: upgrade zobench to read it"
        raise ValueError(f"`schema_version` must be 1 to {SCHEMA_VERSION}, but got {version!r}; {why}")
    current = dict(values)
    for step in STEPS[version - 1 :]:
        current = step(current)
    return {**current, "schema_version": SCHEMA_VERSION}


def finite(value: Any) -> Any:
    """``value`` with None for numbers that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
