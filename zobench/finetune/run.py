"""One fine-tuning run: train, choose on dev, look at test once, save what was chosen."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench import kernels, methods, models, snapshot
from zobench.assemble import disk_dir, empty_model, planned, tuner
from zobench.caution import cautions, empty
from zobench.data.tasks import TaskData
from zobench.finetune import journal, tokenizer
from zobench.finetune.evaluate import evaluate
from zobench.finetune.progress import Evaluation, Progress
from zobench.finetune.record import Record
from zobench.finetune.seal import Seal
from zobench.finetune.stop import Interrupted, Stop
from zobench.finetune.training import JOURNAL, Training, open_journal, resumed
from zobench.measure.environment import environment
from zobench.measure.observe import Observation, Observer
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RESULT, MODEL = "result.json", "model"
SAMPLE_SECONDS = 0.5
"""Between two looks at the machine: a run of many hours keeps all of them until its end."""


def run(
    spec: RunSpec, *, folder: Path, data_dir: Path | None = None, progress: Progress | None = None,
    seal: Seal | None = None, examine: bool = True,
) -> Result:  # fmt: skip
    """Fine-tunes as ``spec`` (resolved) says, with everything that it keeps in ``folder``, and returns what came of it.

    Goes on from the newest snapshot of the same run there; a finished run is only read. ``evaluation`` of the result:
    ``curve``, rows of [step, loss, accuracy] on dev; ``start`` and ``best`` of them; ``test``, looked at once, with the
    weights of the best row; ``majority``, the accuracy of always giving the most frequent answer; ``task``,
    ``definition`` and ``tokenizer``: facts. ``examine`` False leaves the test set alone, until a later call with True;
    ``seal`` is shared by runs that may look at it once together. Samples are as in
    :class:`zobench.result.Result`, over all steps; peaks are of this process, so of a resumed run since its resumption.

    Raises ``ValueError``, one line, for data, a tokenizer or a folder that will not do, and :class:`Interrupted`.
    """
    progress, seal = progress or Progress(), seal or Seal()
    result = _finished(spec, folder)
    if result is not None and ("test" in result.evaluation or not examine):
        return result
    words, where = tokenizer.load(spec)
    data = _data(spec, words, data_dir)
    for text in (where, *_sizes(data)):
        progress.say(text)
    folder.mkdir(parents=True, exist_ok=True)
    with Stop() as stop:
        if result is None:
            result = _trained(spec, folder, data, where, progress, stop)
            _keep(folder, result)
        if examine:
            seal.break_for(spec.label)
            result = _examined(result, folder, data, words, progress, stop)
            _keep(folder, result)
            snapshot.prune(folder, ())
    return result


def cell(spec: RunSpec) -> Result:
    """A run as a cell of a sweep: its data are in ``ZOBENCH_DATA_DIR`` or on the hub; only the result stays."""
    with tempfile.TemporaryDirectory(prefix="zobench-run-", dir=disk_dir()) as folder:
        return run(spec, folder=Path(folder), data_dir=usual_data_dir())


def usual_data_dir() -> Path | None:
    """The folder of the tasks' files where no other is named: ``ZOBENCH_DATA_DIR``, or None for the hub."""
    named = os.environ.get("ZOBENCH_DATA_DIR")
    return Path(named) if named else None


def _finished(spec: RunSpec, folder: Path) -> Result | None:
    """The run's own result, if it is trained. Raises ``ValueError`` if the folder is another run's."""
    if not (folder / JOURNAL).exists():
        return None
    header, _ = journal.read(folder / JOURNAL)
    if header["run"] != spec.hash:
        other = RunSpec.from_dict(header["spec"]).label
        raise ValueError(
            f"`--out` must be a new folder or this run's own, but {folder} holds another run ({other}); name another"
        )
    path = folder / RESULT
    return Result.from_dict(json.loads(path.read_text())) if path.exists() else None


def _data(spec: RunSpec, words: PreTrainedTokenizerBase, data_dir: Path | None) -> TaskData:
    masked = models.get(spec.model).model_type == "roberta"
    return TaskData.load(spec, words, positions=models.position_count(spec), masked=masked, data_dir=data_dir)


def _sizes(data: TaskData) -> list[str]:
    """What the splits came to, and why where that is not what was asked for; how many texts had to be cut."""
    counts, sources, cut = data.facts["counts"], data.facts["sources"], data.facts["truncated"]
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    lines = [f"{data.spec.task}: {told} examples, from {sources['train']} and {sources['test']}", *data.facts["notes"]]
    if any(cut.values()):
        told = ", ".join(f"{count} {name}" for name, count in cut.items())
        lines.append(f"truncate: {told} texts lost tokens; the longest has {data.facts['longest']}")
    return lines


def _trained(spec: RunSpec, folder: Path, data: TaskData, where: str, progress: Progress, stop: Stop) -> Result:
    """Everything but the test set. What is imported and compiled before the observer starts is its baseline."""
    chosen, plan = planned(spec)
    model = empty_model(spec)
    if spec.noise == "counter":
        kernels.prepare(spec.device)
    for note in () if (nothing := empty(spec)) is None else (f"warning: {nothing}",):
        progress.say(note)
    facts = environment(spec.device) | plan
    record, path = resumed(spec, folder)
    if path is not None:
        progress.say(f"goes on after step {record.step}, from {path}")
    observer, begin = Observer(spec.device, SAMPLE_SECONDS), time.monotonic()
    try:
        with open_journal(spec, folder, record) as kept, tuner(chosen, path, model) as built:
            at_rest = built.engine.bytes_at_rest
            Training(spec, folder, built, data, record, kept, progress, stop).go()
            skipped = built.method.skipped
    finally:
        seen = observer.stop((begin, time.monotonic()))
    return _result(spec, record, data, where, facts, seen, at_rest, skipped)


def _without_folders(where: str) -> str:
    """``tokenizer.load``'s line without the folders of this machine, because results are published."""
    place, _, why = where.removeprefix("tokenizer: ").rpartition(", ")
    return f"{Path(place).name if Path(place).is_dir() else place}, {why}"


def _result(
    spec: RunSpec, record: Record, data: TaskData, where: str, facts: dict[str, Any], seen: Observation,
    at_rest: int, skipped: int,
) -> Result:  # fmt: skip
    """Disturbances are only told: they make a time doubtful, but not an accuracy."""
    disturbed = [f"the times may not count: {seen.disturbed}"] if seen.disturbed else []
    told = cautions(spec, record.samples["projected_grad"], skipped)
    assert record.best is not None
    return Result(
        spec=spec, outcome=Outcome.OK, environment=facts, samples=record.samples, power=seen.power, trace=seen.trace,
        memory={**seen.memory, "blocks_at_rest_bytes": at_rest},
        warnings=[*models.differences(spec), *told, *disturbed, *seen.warnings], skipped_updates=skipped,
        evaluation={
            "curve": record.curve, "start": _point(record.at(0)), "best": _point(record.at(int(record.best[0]))),
            "majority": {name: data.majority(name) for name in ("dev", "test")},
            "task": data.facts, "definition": methods.definition(spec), "tokenizer": _without_folders(where),
        },
    )  # fmt: skip


def _point(seen: Evaluation) -> dict[str, Any]:
    return {"step": seen.step, "loss": seen.loss, "accuracy": seen.accuracy, "count": seen.count}


def _examined(
    result: Result, folder: Path, data: TaskData, words: PreTrainedTokenizerBase, progress: Progress, stop: Stop
) -> Result:
    """Looks at the test set with the best weights, and saves them."""
    step = int(result.evaluation["best"]["step"])

    def halt() -> None:
        if stop.wanted:
            raise Interrupted(result.spec.steps, folder)

    with tuner(planned(result.spec)[0], folder / f"snapshot-{step}") as built:
        seen = evaluate(built.engine, data, "test", step, halt)
        temporary = folder / f".{MODEL}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        built.scheme.save(temporary, built.engine.named_tensors())
    words.save_pretrained(str(temporary))
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    temporary.rename(folder / MODEL)
    progress.evaluated(seen)
    return dataclasses.replace(result, evaluation={**result.evaluation, "test": _point(seen)})


def _keep(folder: Path, result: Result) -> None:
    temporary = folder / f".{RESULT}.tmp"
    temporary.write_text(json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")
    temporary.replace(folder / RESULT)
