"""Evaluates weights as they are, without a step: a model's own, or those that a fine-tuning run has kept; and verifies
such a run: its journal is replayed on its base weights, which are then evaluated again.

No direction is searched: a replay needs no forward. What is compared is exact. The result holds the SHA-256 of its
journal, each record of the journal continues the checksum of the one before it, its header names the base weights, each
step's seeds must be those that the run's own seed gives, and its updates go along these seeds alone. That g was
measured by forward passes a replay cannot show: docs/verify.md says what to do about it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench import kernels, models
from zobench.durable import journal, replay
from zobench.durable.journal import EvaluationItem, Item
from zobench.machine.device import choose_device
from zobench.machine.texts import reporting
from zobench.methods.base import learning_rate
from zobench.models import tokenizers
from zobench.result import Result, finite
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import NOISES, TIERS, WIRES
from zobench.runspec.registries import scheme_of
from zobench.stats import significance
from zobench.stats.intervals import wilson_interval
from zobench.store import reading
from zobench.store.files import JOURNAL as ENDING
from zobench.store.files import RESULT
from zobench.training import origin
from zobench.training.assemble import Tuner, empty_model, planned, tuner
from zobench.training.callbacks import Evaluation
from zobench.training.evaluate import evaluate
from zobench.training.examine import MODEL, best_weights, up_to
from zobench.training.keeper import Record
from zobench.training.origin import JOURNAL
from zobench.training.run import sealed, task_data
from zobench.version import __version__


@dataclass(frozen=True, slots=True)
class Assessed:
    """The evaluation of the weights of ``spec`` on a split of its task. ``majority``: the accuracy of always giving the
    most frequent answer, None where answers are free; ``facts``: of the data."""

    spec: RunSpec
    seen: Evaluation
    majority: float | None
    facts: dict[str, Any]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of an accuracy; None of another score."""
        evaluation = self.seen
        return wilson_interval(evaluation.accuracy, evaluation.count) if evaluation.names[0] == "accuracy" else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON; what is not finite is null."""
        return {
            "model": self.spec.model, "task": self.spec.task, "split": self.seen.split, **finite(self.seen.point),
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
        kept = cls(folder, _stored(folder / RESULT))
        if not kept.has_whole_model and METHODS.get(kept.result.spec.method).backpropagates:
            raise ValueError(
                f"`RUN` must have saved a whole model or a journal of updates, but {folder} holds an adapter that "
                f"{kept.result.spec.method} trained; merge it into a model with peft, and name that with --model"
            )
        if not kept.has_whole_model and not (folder / JOURNAL).is_file():
            raise ValueError(
                f"`RUN` must have the journal of its adapter's updates, but {folder} has no {JOURNAL}; take another "
                "copy, or merge the adapter into a model with peft, and name that with --model"
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
        if TIERS[spec.tier].is_pinned:  # which only a CUDA device takes
            spec = spec.replace(tier="auto")
        if not self.has_whole_model:
            return spec
        if not TIERS[spec.tier].is_filled:  # the base weights' own file, which the saved ones are not in
            spec = spec.replace(tier="disk")
        saved = str((self.folder / MODEL).resolve())
        location = {"model_path": saved, "weights_hash": ""} if spec.config_hash else {"weights_path": saved}
        return spec.replace(weights="pretrained", wire="none", **location)  # whatever the run began from


def assess(
    spec: RunSpec, split: str = "test", *, run: EndedRun | None = None, data_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Assessed:  # fmt: skip
    """Evaluates the pretrained weights of ``spec`` (resolved), or the best ones of ``run``, on ``split`` of its task.

    The weights of an adapter are had from the run's journal, on its base weights. Raises ``ValueError``, one line, for
    data, a tokenizer or a base that will not do, and for a split without examples.
    """
    words, note = tokenizers.load(spec)
    say(note)
    data = task_data(spec, words, data_dir)
    if not data.splits[split]:
        raise ValueError(f"`{split}_size >= 1` must hold, but {split} has no examples; add --set {split}_size=500")
    step = 0 if run is None else int(run.result.evaluation["best"]["step"])
    with _weights(models.checked(spec, spec.device), run, step, say) as built:
        evaluation = evaluate(built.engine, data, split, step)
    return Assessed(spec, evaluation, data.majority(split), data.facts)


def _weights(
    spec: RunSpec, run: EndedRun | None, step: int, say: Callable[[str], None]
) -> AbstractContextManager[Tuner]:
    if run is None or run.has_whole_model:
        return tuner(planned(spec.alone())[0])
    return best_weights(run.result.spec, run.folder, step, say, _placed(run.result.spec, "", spec.device))


WANTED = 0.01
"""The probability below which a target counts as exceeded."""
LOSS_TOLERANCE = 1e-3
"""The share by which a loss may differ: another processor rounds a forward pass otherwise."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A run whose stored evaluations were had again. ``result``: as stored; ``seen``: on dev and, if it has one, on
    test, with the best weights; ``seconds``: of the steps up to these by the journal, without evaluations."""

    result: Result
    seen: tuple[Evaluation, ...]
    seconds: float

    @property
    def lines(self) -> list[str]:
        """Lines on what was checked, with the outcome."""
        evaluation, facts = self.result.evaluation, self.result.environment
        stamp = f"SHA-256 {facts.journal_sha256}" if facts.journal_sha256 else "no SHA-256 was kept"
        lines = [f"journal: {self.result.spec.steps} steps, whole, {stamp}"]
        for seen in self.seen:
            stored = evaluation["best" if seen.split == "dev" else seen.split]
            scores = ", ".join(f"{name.replace('_', ' ')} {value!r}, as stored" for name, value in seen.scores.items())
            lines.append(
                f"{seen.split} after step {seen.step}: {scores}; loss {_text(seen.loss)} (stored "
                f"{_text(stored['loss'])}), {seen.count} examples"
            )
        machine = facts.description or "a machine that is not known"
        return [*lines, f"its steps up to there took {self.seconds:.1f} s on {machine}, by the journal"]

    def exceeds(self, target: float) -> tuple[bool, str]:
        """Whether the test set shows an accuracy above ``target``, a share, and a line that says so. Raises
        ``ValueError`` for a run without such an accuracy."""
        tests = [each for each in self.seen if each.split == "test" and each.names[0] == "accuracy"]
        if not tests:
            raise ValueError("`--target` needs an accuracy on a test set, but the run has none; leave --target out")
        count, right = tests[0].count, round(tests[0].accuracy * tests[0].count)
        p = significance.exceeds(right, count, target)
        verdict = "exceeded" if p < WANTED else f"not shown, which needs p < {WANTED}"
        score = f"{right} of {count} test examples right, one-sided binomial p = {p:.2g}"
        return p < WANTED, f"target {target:.1%}: {score}: {verdict}"


def verify(
    folder: Path, *, model: str = "", task_file: str = "", device: str = "auto", data_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Verified:  # fmt: skip
    """Verifies the run in ``folder``, of which result.json and journal.bin are needed, or, given the file of a stored
    result, the run whose journal is kept beside it.

    ``model`` and ``task_file``: where its base weights and the file of its task lie, if that is not where the result
    says. ``device``: "auto" is the run's own.
    Raises ``ValueError``, one line, for a run that has not ended, a journal that was changed, other base weights, other
    data, and for an evaluation that is not the stored one: scores must be equal to the last digit, losses up to
    :data:`LOSS_TOLERANCE`.
    """
    result_path, path = (
        (folder, folder.with_suffix(ENDING)) if os.path.isfile(folder) else (folder / RESULT, folder / JOURNAL)
    )
    result, header, items = _sound(result_path, path)
    chosen, why = choose_device(result.spec.device if device == "auto" else device)
    say(f"device: {chosen}, the run's" if device == "auto" else why)
    spec = _placed(result.spec, model, chosen).replace(task_file=task_file or result.spec.task_file)
    if task_file and not spec.task_file:
        raise ValueError(f"`--task` is for a task of a file, but the run has task={spec.task}; leave it out")
    numerics = origin.same_sums(spec, path, say)
    step = int(result.evaluation["best"]["step"])
    words, _ = tokenizers.load(spec)
    data = task_data(spec, words, data_dir)
    _check_data(result.evaluation["task"], json.loads(json.dumps(data.facts)))
    base_model = empty_model(spec)
    _check_base(spec, header, origin.base_of(spec, base_model))
    if not NOISES[spec.noise].in_place:
        kernels.prepare(spec.device)
    splits = [split for split in ("dev", "test") if split == "dev" or split in result.evaluation]
    before, evaluations = up_to(path, items, step), list[Evaluation]()
    # the first pass after an update has it as it is, later ones as a wire rounds it: each evaluation begins with one
    for together in [[split] for split in splits] if WIRES[spec.wire].is_packed else [splits]:
        empty = empty_model(spec) if evaluations else base_model
        with tuner(planned(spec.alone(), numerics)[0], model=empty, ran=spec, numerics=numerics) as built:
            with reporting(say, f"replaying the updates of {step} steps"):
                replay.bring(built.engine, built.method, before, None)
            with reporting(say, "evaluating"):
                evaluations += [evaluate(built.engine, data, split, step) for split in together]
    for evaluation in evaluations:
        _check_same(evaluation, result.evaluation["best" if evaluation.split == "dev" else evaluation.split])
    seconds = math.fsum(item.seconds for item in before if not isinstance(item, EvaluationItem))
    return Verified(result, tuple(evaluations), seconds)


def _sound(result_path: Path, path: Path) -> tuple[Result, dict[str, Any], list[Item]]:
    """Returns the result in ``result_path`` and the header and items of the journal in ``path``. Raises ``ValueError``
    unless both have the same run, steps, curve and g."""
    for needed in (path, result_path):
        if not os.path.isfile(needed):  # also of a name that is too long
            raise ValueError(
                f"`RUN` must be the folder of a run that has ended, or a stored result with its journal, but {needed} "
                "is not there; name another"
            )
    result = _stored(result_path)
    if METHODS.get(result.spec.method).backpropagates or "best" not in result.evaluation:
        raise ValueError(
            f"`RUN` must be of a zeroth-order method on a task, but {result_path} has method={result.spec.method}, "
            f"task={result.spec.task_name}: no journal tells its weights; name another"
        )
    header, items = journal.read(path)
    record = Record(names=tuple(result.scores))
    for item in items:
        record.add(item)
    for name, stored, journal_value in (
        ("SHA-256", result.environment.journal_sha256 or sealed(path), sealed(path)),
        ("run", result.spec.hash, header["run"]),
        ("steps", result.spec.steps, record.step),
        ("curve on dev", result.evaluation["curve"], record.curve),
        ("best step on dev", result.evaluation["best"]["step"], None if record.best is None else int(record.best[0])),
        ("g of each step", result.samples.get("projected_grad"), record.samples["projected_grad"]),
    ):
        if finite(stored) != finite(journal_value):
            raise ValueError(
                f"`{path}` must have the {name} that its result says, but has another: one of the two was changed; "
                "take another copy"
            )
    if "test" in result.evaluation and result.evaluation["test"]["step"] != result.evaluation["best"]["step"]:
        raise ValueError(
            f"{result_path} must have its test of the best step on dev, but has one of another; take another copy"
        )
    _check_updates(path, result.spec, items)
    return result, header, items


def _stored(path: Path) -> Result:
    """The result in ``path``. Raises ``ValueError``, one line that names the file, for one that is damaged."""
    try:
        return reading.read(path)
    except ValueError as error:
        why = str(error).partition("; ")[0]
        raise ValueError(f"{path} must be a result, but cannot be read ({why}); take another copy") from error


def _check_updates(path: Path, spec: RunSpec, items: Sequence[Item]) -> None:
    """Raises ``ValueError`` unless every update is of its own step and learning rate, along directions of this or an
    earlier step."""
    drawn, kind = set[int](), METHODS.get(spec.method)
    for item in items:
        if isinstance(item, EvaluationItem):
            continue
        drawn.update(kind.moved_along(spec, item.step, seed) for seed, _ in item.directions)
        if any(entry.step != item.step or entry.seed not in drawn for entry in item.entries):
            raise ValueError(
                f"`{path}` must have updates along its own directions, but those of step {item.step} have another seed "
                "or step: it was changed; take another copy"
            )
        rate = learning_rate(spec, item.step, spec.steps)
        if not all(math.isclose(lr, rate, rel_tol=1e-9) for lr in (item.lr, *(entry.lr for entry in item.entries))):
            raise ValueError(
                f"`{path}` must have the learning rates of its run, but step {item.step} has not {rate:g}: it was "
                "changed; take another copy"
            )


def _placed(spec: RunSpec, model: str, device: str) -> RunSpec:
    """``spec`` with its base weights in ``model``, if that is given, to be evaluated on ``device``."""
    if model:
        location = models.place_of(model)
        spec = spec.replace(model_path=location) if spec.config_hash else spec.replace(weights_path=location)
    tier = "pageable" if TIERS[spec.tier].is_pinned and not device.startswith("cuda") else spec.tier
    return models.checked(spec.replace(device=device, tier=tier), device)


def _check_data(stored: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` where the data are others than the result says; a result that was packed says less."""
    for name in ("task", "counts", "labels", "longest"):
        if name in stored and stored[name] != facts.get(name):
            raise ValueError(
                f"the task's data must be those of the run, but its {name} are {facts.get(name)} and not "
                f"{stored[name]}; give its files with --data-dir"
            )


def _check_base(spec: RunSpec, header: Mapping[str, Any], base: str) -> None:
    if base != header["base"]:
        raise ValueError(
            f"the base weights must be those that the journal began from ({header['base']}), but these are others "
            f"({base}); name their folder with --model"
        )
    begun = header.get("zobench", "0.1.0")
    if spec.weights != "pretrained" and begun != __version__:
        raise ValueError(
            f"a run from random weights must be verified by the zobench that began it, {begun}, because versions draw "
            f"them otherwise, but this is {__version__}; install that one"
        )


def _check_same(evaluation: Evaluation, stored: Mapping[str, Any]) -> None:
    equal = all(finite(value) == stored.get(name) for name, value in evaluation.scores.items() if name != "perplexity")
    if not equal or evaluation.count != stored["count"] or not _is_close(evaluation.loss, stored["loss"]):
        scores = ", ".join(
            f"{name} {value!r} (stored {stored.get(name)!r})" for name, value in evaluation.scores.items()
        )
        raise ValueError(
            f"the evaluation on {evaluation.split} must be the stored one, but after step {evaluation.step} it has "
            f"{scores}, loss {_text(evaluation.loss)} (stored {_text(stored['loss'])}); this result is not that of its "
            "journal, or this processor rounds otherwise than the run's"
        )


def _text(loss: float | None) -> str:
    """A loss as it is shown; of one that is not finite None is stored."""
    return f"{math.nan if loss is None else loss:.6f}"


def _is_close(loss: float, stored: float | None) -> bool:
    """Whether a loss is the ``stored`` one up to :data:`LOSS_TOLERANCE`; of one that is not finite None is stored."""
    if stored is None or not math.isfinite(loss):
        return stored is None and not math.isfinite(loss)
    return abs(loss - stored) <= LOSS_TOLERANCE * abs(stored)
