"""Evaluates weights as they are, without a step: a model's own, or those that a fine-tuning run has kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench import models
from zobench.models import tokenizers
from zobench.result import Result
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import TIERS
from zobench.runspec.registries import scheme_of
from zobench.stats.intervals import wilson_interval
from zobench.store import reading
from zobench.training.assemble import Tuner, planned, tuner
from zobench.training.callbacks import Evaluation
from zobench.training.evaluate import evaluate
from zobench.training.examine import MODEL, best_weights
from zobench.training.run import RESULT, task_data

SPLITS = ("test", "dev")


@dataclass(frozen=True, slots=True)
class Assessed:
    """What the weights of ``spec`` came to on a split of its task. ``majority``: the accuracy of always giving the
    most frequent answer, None where answers are free; ``facts``: of the data."""

    spec: RunSpec
    seen: Evaluation
    majority: float | None
    facts: dict[str, Any]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of an accuracy; None of another score."""
        seen = self.seen
        return wilson_interval(seen.accuracy, seen.count) if seen.names[0] == "accuracy" else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON; what is not finite is null."""
        numbers = {key: value if math.isfinite(value) else None for key, value in self.seen.point.items()}
        return {
            "model": self.spec.model, "task": self.spec.task, "split": self.seen.split, **numbers,
            "interval": self.interval, "majority": self.majority, "data": self.facts, "spec": self.spec.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended: its ``folder`` and ``result``."""

    folder: Path
    result: Result

    @classmethod
    def of(cls, folder: Path) -> EndedRun:
        """The run in ``folder``. Raises ``ValueError``, one line, unless it has ended and its weights can be had."""
        if not (folder / RESULT).is_file() or not (folder / MODEL).is_dir():
            raise ValueError(
                f"`RUN` must be the folder of a fine-tuning run that has ended, but {folder} has no {RESULT} or no "
                f"{MODEL}; name another, or a model with --model"
            )
        kept = cls(folder, reading.read(folder / RESULT))
        if not kept.has_whole_model and METHODS.get(kept.result.spec.method).backpropagates:
            raise ValueError(
                f"`RUN` must have saved a whole model or a journal of updates, but {folder} holds an adapter that "
                f"{kept.result.spec.method} trained; merge it into a model with peft, and name that with --model"
            )
        return kept

    @property
    def has_whole_model(self) -> bool:
        """Whether what it saved is a model, and not an adapter."""
        return scheme_of(self.result.spec).adapter is None

    @property
    def spec(self) -> RunSpec:
        """The run's spec, of the weights that it has saved where these are a whole model: as they are, since packing
        them in a wire's format would round the updates away that a journal kept."""
        spec = self.result.spec
        if not self.has_whole_model:
            return spec
        if not TIERS[spec.tier].is_filled:  # the base weights' own file, which the saved ones are not in
            spec = spec.replace(tier="disk")
        saved = str((self.folder / MODEL).resolve())
        where = {"model_path": saved, "weights_hash": ""} if spec.config_hash else {"weights_path": saved}
        return spec.replace(weights="pretrained", wire="none", **where)  # whatever the run began from


def assess(
    spec: RunSpec, split: str = "test", *, run: EndedRun | None = None, data_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Assessed:  # fmt: skip
    """Evaluates the pretrained weights of ``spec`` (resolved), or the best ones of ``run``, on ``split`` of its task.

    The weights of an adapter are had from the run's journal, on its base weights. Raises ``ValueError``, one line, for
    data, a tokenizer or a base that will not do, and for a split without examples.
    """
    words, where = tokenizers.load(spec)
    say(where)
    data = task_data(spec, words, data_dir)
    if not data.splits[split]:
        raise ValueError(f"`{split}_size >= 1` must hold, but {split} has no examples; add --set {split}_size=500")
    with _weights(models.checked(spec, spec.device), run, say) as built:
        seen = evaluate(built.engine, data, split, 0)
    return Assessed(spec, seen, data.majority(split), data.facts)


def _weights(spec: RunSpec, run: EndedRun | None, say: Callable[[str], None]) -> AbstractContextManager[Tuner]:
    if run is None or run.has_whole_model:
        return tuner(planned(spec.alone())[0])
    spec_of_run = run.result.spec.replace(device=spec.device)
    return best_weights(spec_of_run, run.folder, int(run.result.evaluation["best"]["step"]), say)
