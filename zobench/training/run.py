"""One fine-tuning run: train, choose the best weights on dev, evaluate them on test once, save them.

With several ranks all train; the first one alone stores the result and evaluates on test.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench import kernels, methods, models
from zobench.data.tasks.task_data import TaskData
from zobench.durable import journal, replay, snapshot
from zobench.durable.journal import Item
from zobench.durable.scratch import scratch
from zobench.machine import files
from zobench.machine.device import choose_device
from zobench.measure.environment import environment
from zobench.measure.observe import Observation, Observer
from zobench.models import tokenizers
from zobench.result import Facts, Outcome, Result
from zobench.result.record import DOUBTFUL
from zobench.runspec import FIELDS, METHODS, RunSpec, check_spec, named_arguments, provenance
from zobench.runspec.kinds import NOISES
from zobench.runspec.order import current
from zobench.store import reading
from zobench.store.files import RESULT
from zobench.training import origin
from zobench.training.assemble import disk_dir, empty_model, planned, ranks, tuner
from zobench.training.callbacks import Callback, Callbacks, Csv, JsonLines, RunStart
from zobench.training.cautions import cautions, diverged
from zobench.training.examine import MODEL, Seal, check_winner, examined
from zobench.training.keeper import Keeper, Record, history
from zobench.training.origin import JOURNAL
from zobench.training.training import Stop, Training

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zobench.parallel.world import World

SAMPLE_SECONDS = 0.5
"""Seconds between two samples of the machine, all of which a run of many hours keeps until its end."""
_TRAININGS = itertools.count()
"""Numbers the trainings of this process: what the first one left allocated hides how much a later one takes."""


@named_arguments(FIELDS)
def finetune(
    spec: RunSpec, *, folder: Path | str, data_dir: Path | str | None = None, seal: Seal | None = None,
    examine: bool = True, resume: bool = False, callbacks: Sequence[Callback] = (),
) -> Result:  # fmt: skip
    """Fine-tunes as ``spec`` says, keeps its files in ``folder``, and returns the result.

    Resumes the same run in ``folder`` after the last step in its journal; of a finished run the result is read.
    ``evaluation`` of the result: ``curve``, rows of [step, loss, accuracy] on dev; ``start`` and ``best`` of them;
    ``test``, looked at once, with the weights of the best row, and ``test_examples``, which of its choices are right
    and the loss of each (:mod:`zobench.result.examples`); ``majority``, the accuracy of always giving the most
    frequent answer; ``task``, ``definition`` and ``tokenizer``: facts. Its ``environment`` has the ``journal_sha256``.
    ``examine`` False leaves the test set alone, until a later call with True, and ``test_size=0`` leaves it alone for
    good; ``seal`` is shared by runs that may look at it once together. ``resume``: there must be something to go on
    with. ``callbacks`` are called at all that happens;
    the curve is in ``curve.csv`` and ``curve.jsonl`` in any case. Samples are as in :class:`zobench.result.Result`,
    over all steps; peaks are of this process, so of a resumed run since its resumption; on a CPU the device's is None
    where the process trained another run before. With several ``gpus`` this process is one of their ranks.

    Raises ``ValueError``, one line, for data, a tokenizer, a base or a folder that will not do; ``OSError`` where the
    journal cannot be written; and :class:`Interrupted`.
    """
    check_spec(spec)
    if spec.task == "none":
        raise ValueError("`task` must be given to fine-tune, but is none; for example task='sst2'")
    if spec.device == "auto":
        spec = spec.resolve(choose_device("auto")[0])
    folder, data_dir = Path(folder), None if data_dir is None else Path(data_dir)
    with ranks(spec) as world:
        leads = world is None or world.leads
        calls, seal = Callbacks([Csv(), JsonLines(), *callbacks] if leads else []), seal or Seal()
        result = _finished(spec, folder, resume, world)
        if result is not None and (_has_ended(result, folder) or not examine):
            calls.say(f"finished before: this is its result; to train anew, name another folder than {folder}")
            return result
        calls.say(f"reading the tokenizer of {spec.model} and the examples of {spec.task_name}")
        words, note = tokenizers.load(spec)
        data = task_data(spec, words, data_dir)
        _check_same_data(folder, data)
        for text in (note, *_sizes(data)):
            calls.say(text)
        with Stop() as stop, calls.closing():
            if result is None:
                result = _trained(spec, folder, data, note, stop, world, calls)
                if leads:
                    _keep(folder, result)
            if examine and leads:
                if spec.test_size:
                    check_winner(spec.hash, folder)
                    seal.break_for(spec.label)
                result = _tested(result, folder, data, words, stop, calls)
    return result


def _tested(
    result: Result, folder: Path, data: TaskData, words: PreTrainedTokenizerBase, stop: Stop, callbacks: Callbacks
) -> Result:
    """The trained ``result`` with its one look at the test set, if it has one; the run ends with it, and its snapshots
    go."""
    if not callbacks.started:  # an earlier process has trained
        callbacks.start(_begun(result.spec, folder, journal.read(folder / JOURNAL)[1], data))
    result = examined(result, folder, data, words, stop, callbacks)
    _keep(folder, result)
    callbacks.end(result)
    snapshot.prune(folder, ())
    return result


def _has_ended(result: Result, folder: Path) -> bool:
    """Whether a trained run has come to its end: its look at the test set, or, if it has none, its model saved."""
    return "test" in result.evaluation if result.spec.test_size else (folder / MODEL).is_dir()


def _begun(spec: RunSpec, folder: Path, items: Sequence[Item], data: TaskData) -> RunStart:
    """The start of a run whose journal holds ``items``, as callbacks get it."""
    steps, evaluations = history(items, data.asked.goal.scores)
    return RunStart(spec=spec, folder=folder, steps=steps, evaluations=evaluations)


def cell(spec: RunSpec) -> Result:
    """Runs in a temporary folder as a cell of a sweep, with data from ``ZOBENCH_DATA_DIR`` or the hub. The journal of a
    zeroth-order run that saw the test set goes to the file that the process's order names."""
    with ranks(spec) as world, scratch(disk_dir(), "run", world) as folder:
        result = finetune(spec, folder=folder, data_dir=usual_data_dir())
        running = current()
        if running and running.journal and "test" in result.evaluation and not METHODS.get(spec.method).backpropagates:
            Path(running.journal).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / JOURNAL, running.journal)
        if world is not None:
            world.barrier()  # what the first rank has made goes when all are done
    return result


def usual_data_dir() -> Path | None:
    """The folder of the tasks' files where no other is named: ``ZOBENCH_DATA_DIR``, or None for the hub."""
    named = os.environ.get("ZOBENCH_DATA_DIR")
    return Path(named) if named else None


def _finished(spec: RunSpec, folder: Path, resume: bool, world: World | None) -> Result | None:
    """The stored result if the run is already trained, else None; the same on all ranks.

    Raises ``ValueError`` if the folder is another run's, or if there is none to ``resume``.
    """
    path, result = folder / RESULT, None
    if world is None or world.leads:
        header = journal.begun(folder / JOURNAL)
        if header is None:
            if resume:
                raise ValueError(
                    f"`--resume` needs a run to go on with, but {folder} holds none; leave --resume out to begin one"
                )
        else:
            _check_same_run(spec, folder, header)
            result = _stored(path) if path.exists() else None
    if world is not None:
        [exists] = world.from_first([result is not None])
        result = _stored(path) if exists else None
        world.barrier()  # before the first rank writes it again
    return result


def _stored(path: Path) -> Result:
    """The run's own result. Raises ``ValueError``, one line that names it, where it is damaged."""
    try:
        return reading.read(path)
    except ValueError as error:
        raise ValueError(
            f"{path} must be the result of this run, but cannot be read ({error}); remove it, and the same command "
            "makes it again from the journal"
        ) from error


def _check_same_run(spec: RunSpec, folder: Path, header: Mapping[str, Any]) -> None:
    if header["run"] != spec.hash:
        wanted, other = spec.to_dict(), RunSpec.from_stored(header["spec"]).to_dict()
        differs = ", ".join(f"{key}={other[key]} and not {wanted[key]}" for key in wanted if wanted[key] != other[key])
        raise ValueError(
            f"`--out` must be a new folder or this run's own, but {folder} holds a run with {differs}; name another"
        )


def _check_same_data(folder: Path, data: TaskData) -> None:
    """Raises ``ValueError`` if the run in ``folder`` began with other examples than ``data``; the first journals did
    not say with which."""
    header = journal.begun(folder / JOURNAL) or {}
    if header.get("data", data.fingerprint) != data.fingerprint:
        raise ValueError(
            f"the task's examples must be those that the run in {folder} began with, but they, or their tokens, are "
            "others; give its files with --data-dir, or name another --out"
        )


def task_data(spec: RunSpec, words: PreTrainedTokenizerBase, data_dir: Path | None) -> TaskData:
    """The examples of the run's task, encoded for its model."""
    masked = models.of(spec).masked
    return TaskData.load(spec, words, positions=models.position_count(spec), masked=masked, data_dir=data_dir)


def _sizes(data: TaskData) -> list[str]:
    """Lines on the sizes of the splits, on why they differ from what was asked, and on how many texts were cut."""
    counts, sources, cut = data.facts["counts"], data.facts["sources"], data.facts["truncated"]
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    line = f"{data.asked.name}: {counted} examples, from {sources['train']} and {sources['test']}"
    lines = [line, *data.facts["notes"]]
    if any(cut.values()):
        shortened = ", ".join(f"{count} {name}" for name, count in cut.items())
        lines.append(f"truncate: {shortened} texts lost tokens; the longest has {data.facts['longest']}")
    return lines


def _trained(
    spec: RunSpec, folder: Path, data: TaskData, tokenizer: str, stop: Stop, world: World | None, callbacks: Callbacks
) -> Result:
    """Trains and evaluates on dev. Imports and compiled kernels come before the observer starts: its baseline."""
    say = callbacks.say
    say(f"loading {spec.model}")
    numerics = origin.same_sums(spec, folder / JOURNAL, say)
    chosen, plan = planned(spec, numerics)
    if "attention" in plan:
        say(plan["attention"])
    model = empty_model(spec)
    if not NOISES[spec.noise].in_place:
        kernels.prepare(spec.device)
    if (no_effect := METHODS.get(spec.method).nothing(spec)) is not None:
        say(f"warning: {no_effect}")
    facts = replace(environment(spec.device), **provenance(spec), **plan)
    header = {**origin.header_of(spec, model, numerics), "data": data.fingerprint}
    later = next(_TRAININGS) > 0
    observer, begin = Observer(spec.device, SAMPLE_SECONDS, alone=world is None), time.monotonic()
    try:
        with ExitStack() as during:
            file, items = during.enter_context(origin.opened(folder, header, world))
            if another := origin.begun_by_another(spec, folder):
                say(f"warning: {another}")
            items, start, path, good = origin.resume_point(spec, folder, header, file, items, say)
            built = during.enter_context(tuner(chosen, path, model, start=start, world=world, numerics=numerics))
            record = Record(names=data.asked.goal.scores)
            for item in items:
                record.add(item)
            keeper = Keeper(spec, folder, file, record, header, say, world)
            if not METHODS.get(spec.method).backpropagates:
                replay.bring(built.engine, built.method, items, start)
            elif path is not None:
                built.method.restore(snapshot.state(path)["method"])
            if world is not None:
                world.barrier()  # all have read what the first will replace
            during.enter_context(keeper.keeping(built, good))
            at_rest = built.engine.bytes_at_rest
            callbacks.start(_begun(spec, folder, items, data))
            Training(spec, folder, built, data, record, keeper, stop, world, callbacks).go()
            skipped = built.method.skipped
    finally:
        seen = observer.stop((begin, time.monotonic()))
    if later and spec.device == "cpu":
        note = "a run before it shares its process, so that its own memory is not known; measure it in a fresh process"
        seen = replace(seen, memory={**seen.memory, "device_peak_bytes": None}, warnings=[*seen.warnings, note])
    if world is None or world.leads:
        facts = replace(facts, journal_sha256=sealed(folder / JOURNAL))
    return _result(spec, record, data, tokenizer, facts, seen, at_rest, skipped, [another] if another else [])


def sealed(path: Path) -> str:
    """The SHA-256 of a run's journal: with it in the result, no bit of the journal changes unseen."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _without_folders(note: str) -> str:
    """``tokenizers.load``'s line without the folders of this machine, because results are published."""
    location, _, why = note.removeprefix("tokenizer: ").rpartition(", ")
    return f"{Path(location).name if Path(location).is_dir() else location}, {why}"


def _result(
    spec: RunSpec, record: Record, data: TaskData, tokenizer: str, facts: Facts, seen: Observation,
    at_rest: int, skipped: int, origins: list[str],
) -> Result:  # fmt: skip
    """The run's result. If others disturbed it that is a warning: times are doubtful, but not an accuracy."""
    disturbed = [f"{DOUBTFUL}{seen.disturbed}"] if seen.disturbed else []
    notes = [*origins, *diverged(spec, record.curve), *cautions(spec, record.samples["projected_grad"], skipped)]
    assert record.best is not None
    return Result(
        spec=spec, outcome=Outcome.OK, environment=facts, samples=record.samples, power=seen.power, trace=seen.trace,
        memory={**seen.memory, "blocks_at_rest_bytes": at_rest},
        warnings=[*models.differences(spec), *notes, *disturbed, *seen.warnings], skipped_updates=skipped,
        evaluation={
            "curve": record.curve, "start": record.at(0).point, "best": record.at(int(record.best[0])).point,
            "majority": {name: data.majority(name) for name in ("dev", "test")},
            "scores": list(record.names), "task": data.facts,
            "definition": methods.definition(spec), "tokenizer": _without_folders(tokenizer),
        },
    )  # fmt: skip


def _keep(folder: Path, result: Result) -> None:
    files.replace(folder / RESULT, (json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n").encode())
