"""One fine-tuning run: train, choose on dev, look at test once, save what was chosen.

With several ranks each one trains; the first keeps what the run comes to, and alone looks at test.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench import kernels, methods, models
from zobench.assemble import Tuner, disk_dir, empty_model, initial_weights, planned, tuner
from zobench.caution import cautions, empty
from zobench.data.tasks import TaskData
from zobench.durable import fingerprint, journal, replay, snapshot
from zobench.durable.journal import Item, JournalFile, Seen
from zobench.durable.scratch import scratch
from zobench.durable.snapshot import SnapshotStart
from zobench.finetune import tokenizer
from zobench.finetune.evaluate import evaluate
from zobench.finetune.keeper import Keeper
from zobench.finetune.progress import Evaluation, Progress
from zobench.finetune.record import Record
from zobench.finetune.seal import Seal, check_winner
from zobench.finetune.stop import Interrupted, Stop
from zobench.finetune.training import Training
from zobench.measure.environment import environment
from zobench.measure.observe import Observation, Observer
from zobench.result import Outcome, Result
from zobench.spec import BACKWARD, RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zobench.parallel import World

JOURNAL, RESULT, MODEL = "journal.bin", "result.json", "model"
SAMPLE_SECONDS = 0.5
"""Between two looks at the machine: a run of many hours keeps all of them until its end."""


def run(
    spec: RunSpec, *, folder: Path, data_dir: Path | None = None, progress: Progress | None = None,
    seal: Seal | None = None, examine: bool = True, resume: bool = False,
) -> Result:  # fmt: skip
    """Fine-tunes as ``spec`` (resolved) says, with everything that it keeps in ``folder``, and returns what came of it.

    Goes on with the same run there, after the last step that its journal tells; a finished run is only read.
    ``evaluation`` of the result: ``curve``, rows of [step, loss, accuracy] on dev; ``start`` and ``best`` of them;
    ``test``, looked at once, with the weights of the best row; ``majority``, the accuracy of always giving the most
    frequent answer; ``task``, ``definition`` and ``tokenizer``: facts. ``examine`` False leaves the test set alone,
    until a later call with True; ``seal`` is shared by runs that may look at it once together. ``resume``: there must
    be something to go on with. Samples are as in :class:`zobench.result.Result`, over all steps; peaks are of this
    process, so of a resumed run since its resumption. With several ``gpus`` this process is one of their ranks.

    Raises ``ValueError``, one line, for data, a tokenizer, a base or a folder that will not do; ``OSError`` where the
    journal cannot be written; and :class:`Interrupted`.
    """
    with _ranks(spec) as world:
        leads = world is None or world.leads
        progress, seal = (progress if leads else None) or Progress(), seal or Seal()
        result = _finished(spec, folder, resume, world)
        if result is not None and ("test" in result.evaluation or not examine):
            return result
        words, where = tokenizer.load(spec)
        data = _data(spec, words, data_dir)
        for text in (where, *_sizes(data)):
            progress.say(text)
        with Stop() as stop:
            if result is None:
                result = _trained(spec, folder, data, where, progress, stop, world)
                if leads:
                    _keep(folder, result)
            if examine and leads:
                check_winner(spec.hash, folder)
                seal.break_for(spec.label)
                result = _examined(result, folder, data, words, progress, stop)
                _keep(folder, result)
                snapshot.prune(folder, ())
    return result


@contextmanager
def _ranks(spec: RunSpec) -> Iterator[World | None]:
    """The ranks of a run with several, for as long as it lasts: a process can join only once."""
    if spec.gpus == 1:
        yield None
        return
    from zobench.parallel import join

    with join(spec) as world:
        yield world


def cell(spec: RunSpec) -> Result:
    """A run as a cell of a sweep: its data are in ``ZOBENCH_DATA_DIR`` or on the hub; only the result stays."""
    with _ranks(spec) as world, scratch(disk_dir(), "run", world) as folder:
        result = run(spec, folder=folder, data_dir=usual_data_dir())
        if world is not None:
            world.barrier()  # what the first rank has made goes when all are done
    return result


def usual_data_dir() -> Path | None:
    """The folder of the tasks' files where no other is named: ``ZOBENCH_DATA_DIR``, or None for the hub."""
    named = os.environ.get("ZOBENCH_DATA_DIR")
    return Path(named) if named else None


def _finished(spec: RunSpec, folder: Path, resume: bool, world: World | None) -> Result | None:
    """The run's own result, if it is trained, the same on all ranks.

    Raises ``ValueError`` if the folder is another run's, or if there is none to ``resume``.
    """
    path, found = folder / RESULT, None
    if world is None or world.leads:
        if not (folder / JOURNAL).exists() or not journal.is_begun((folder / JOURNAL).read_bytes()):
            if resume:
                raise ValueError(
                    f"`--resume` needs a run to go on with, but {folder} holds none; leave --resume out to begin one"
                )
        else:
            _check_own(spec, folder)
            found = Result.from_dict(json.loads(path.read_text())) if path.exists() else None
    if world is not None:
        [there] = world.from_first([found is not None])
        found = Result.from_dict(json.loads(path.read_text())) if there else None
        world.barrier()  # before the first rank writes it anew
    return found


def _check_own(spec: RunSpec, folder: Path) -> None:
    header, _ = journal.read(folder / JOURNAL)
    if header["run"] != spec.hash:
        own, other = spec.to_dict(), RunSpec.from_dict(header["spec"]).to_dict()
        differs = ", ".join(f"{key}={other[key]} and not {own[key]}" for key in own if own[key] != other[key])
        raise ValueError(
            f"`--out` must be a new folder or this run's own, but {folder} holds a run with {differs}; name another"
        )


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


def _trained(
    spec: RunSpec, folder: Path, data: TaskData, where: str, progress: Progress, stop: Stop, world: World | None
) -> Result:
    """Everything but the test set. What is imported and compiled before the observer starts is its baseline."""
    chosen, plan = planned(spec)
    model = empty_model(spec)
    if spec.noise == "counter":
        kernels.prepare(spec.device)
    for note in () if (nothing := empty(spec)) is None else (f"warning: {nothing}",):
        progress.say(note)
    facts = environment(spec.device) | plan
    header = _header(spec, model)
    observer, begin = Observer(spec.device, SAMPLE_SECONDS, alone=world is None), time.monotonic()
    try:
        with ExitStack() as during:
            file, items = during.enter_context(_journal(folder, header, world))
            items, start, path, good = _from(spec, folder, header, file, items, progress.say)
            built = during.enter_context(tuner(chosen, path, model, start=start, world=world))
            record = Record()
            keeper = Keeper(spec, folder, file, record, list(record.replay(items)), header, progress.say, world)
            _bring(spec, built, items, start, path)
            if world is not None:
                world.barrier()  # all have read what the first will replace
            during.enter_context(keeper.keeping(built, good))
            at_rest = built.engine.bytes_at_rest
            Training(spec, folder, built, data, record, keeper, progress, stop, world).go()
            skipped = built.method.skipped
    finally:
        seen = observer.stop((begin, time.monotonic()))
    return _result(spec, record, data, where, facts, seen, at_rest, skipped)


def _header(spec: RunSpec, model: PreTrainedModel) -> dict[str, Any]:
    """The journal's. ``complete``: whether weights are base and journal; what backpropagation changes is in none."""
    base = fingerprint.of_base(spec, model, initial_weights(spec, model))
    return {"run": spec.hash, "spec": spec.to_dict(), "base": base, "complete": spec.method not in BACKWARD}


@contextmanager
def _journal(
    folder: Path, header: dict[str, Any], world: World | None
) -> Iterator[tuple[JournalFile | None, list[Item]]]:
    """(the journal, which only the first rank writes, and what it tells all ranks)."""
    if world is None or world.leads:
        folder.mkdir(parents=True, exist_ok=True)
        with JournalFile(folder / JOURNAL, header) as file:
            if not file.items:
                snapshot.prune(folder, ())  # of a run whose journal was taken away
            if world is not None:
                world.from_first([len(file.items)])
            yield file, list(file.items)
    else:
        items: list[Item] = []
        if world.from_first([0])[0]:
            told, items = journal.read(folder / JOURNAL)
            journal.check_header(folder / JOURNAL, told, header)
        yield None, items


def _from(
    spec: RunSpec, folder: Path, header: dict[str, Any], file: JournalFile | None, items: list[Item],
    say: Callable[[str], None],
) -> tuple[list[Item], SnapshotStart | None, Path | None, list[int]]:  # fmt: skip
    """What a run goes on from: all of its journal and the newest snapshot that is whole; where it backpropagates, the
    newest snapshot and what the journal tells up to it. Also the steps of the snapshots that stay."""
    start, path, steps = None, None, snapshot.steps(folder)
    if spec.method in BACKWARD:
        last = steps[-1] if steps else 0
        path = snapshot.place(folder, last) if steps else None
        items = [item for item in items if (item.step if isinstance(item, Seen) else item.step + 1) <= last]
        assert file is not None
        file.cut(len(items))
    elif (start := replay.newest(folder, header, items, say)) is not None:
        last, path = int(start.state["step"]), None
    else:
        last = 0
    place = path or (start.path if start is not None else None)
    done = sum(not isinstance(item, Seen) for item in items)
    if items:
        say(f"goes on after step {done}, from {place or 'the base'}")
    return items, start, path, [step for step in steps if step <= last]


def _bring(spec: RunSpec, built: Tuner, items: list[Item], start: SnapshotStart | None, path: Path | None) -> None:
    """Brings engine and method to the end of ``items``."""
    if spec.method not in BACKWARD:
        replay.bring(built.engine, built.method, items, start)
    elif path is not None:
        built.method.restore(snapshot.state(path)["method"])


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

    with _best(result.spec, folder, step, progress.say) as built:
        seen = evaluate(built.engine, data, "test", step, halt)
        temporary = folder / f".{MODEL}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        built.scheme.save(temporary, built.engine.named_tensors())
    words.save_pretrained(str(temporary))
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    temporary.rename(folder / MODEL)
    progress.evaluated(seen)
    return dataclasses.replace(result, evaluation={**result.evaluation, "test": _point(seen)})


@contextmanager
def _best(spec: RunSpec, folder: Path, step: int, say: Callable[[str], None]) -> Iterator[Tuner]:
    """The weights that were judged after ``step`` steps: their snapshot, or an earlier one and the journal."""
    alone = planned(spec if spec.gpus == 1 else spec.replace(gpus=1, nodes=1, parallel="none", transfers="auto"))[0]
    if spec.method in BACKWARD:
        with tuner(alone, snapshot.place(folder, step)) as built:
            yield built
        return
    header, items = journal.read(folder / JOURNAL)
    journal.check_header(folder / JOURNAL, header, _header(spec, empty_model(spec)))
    items = items[: next(n for n, item in enumerate(items) if isinstance(item, Seen) and item.step == step)]
    start = replay.newest(folder, header, items, say)
    with tuner(alone, start=start) as built:
        replay.bring(built.engine, built.method, items, start)
        yield built


def _keep(folder: Path, result: Result) -> None:
    temporary = folder / f".{RESULT}.tmp"
    temporary.write_text(json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")
    temporary.replace(folder / RESULT)
