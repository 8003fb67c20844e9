"""Evaluates the weights that were best on dev on the test set, once, and saves them as the run's model: the test set is
evaluated after everything has been chosen on dev."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zobench.data.tasks.task_data import TaskData
from zobench.durable import journal, replay, snapshot
from zobench.durable.journal import EvaluationItem, Item
from zobench.machine.files import sync, writing
from zobench.machine.texts import json_of
from zobench.result import Result
from zobench.result.examples import KEY, packed
from zobench.runspec import METHODS, RunSpec
from zobench.training import origin
from zobench.training.assemble import Tuner, empty_model, planned, tuner
from zobench.training.callbacks import Callbacks
from zobench.training.evaluate import evaluate
from zobench.training.origin import JOURNAL
from zobench.training.training import Interrupted, Stop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL = "model"
RECORD = "search.json"
"""The file in a search's folder that holds its whole grid and the winner."""


class Seal:
    """Permission to evaluate on the test set, given once to a run, or once to all runs of a search together."""

    def __init__(self) -> None:
        self._broken_by = ""

    def break_for(self, label: str) -> None:
        """Lets the run called ``label`` evaluate on test. Raises ``RuntimeError`` if the seal was broken before."""
        if self._broken_by:
            raise RuntimeError(
                f"the test set must be looked at once, but {label} would look after {self._broken_by}; choose on dev"
            )
        self._broken_by = label


def check_winner(run: str, folder: Path) -> None:
    """Raises ``ValueError`` if ``folder`` is of a run that lost a search whose winner was evaluated on test."""
    path = folder.parent / RECORD
    if not path.is_file():
        return
    try:
        record = json_of(path.read_text())
        winner, has_tested = str(record["winner"]["run"]), record.get("test", {}) is not None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must name the winner of a search, but is damaged ({error}); name another --out"
        ) from error
    if has_tested and winner != run:
        shown = winner if winner.isprintable() else repr(winner)
        raise ValueError(
            f"the test set must be looked at once, but {path} has looked for {shown}, and this run is {run}; name "
            "another --out to train it on its own"
        )


def examined(
    result: Result, folder: Path, data: TaskData, words: PreTrainedTokenizerBase, stop: Stop, callbacks: Callbacks
) -> Result:
    """``result`` with the evaluation of the best weights on the test set, if it has one; saves them in
    ``folder/model``.

    Raises :class:`Interrupted` if ``stop`` is asked for before the evaluation is done.
    """
    step = int(result.evaluation["best"]["step"])

    def halt() -> None:
        if stop.wanted:
            raise Interrupted(result.spec.steps, folder)

    with best_weights(result.spec, folder, step, callbacks.say) as built:
        evaluation = evaluate(built.engine, data, "test", step, halt) if result.spec.test_size else None
        temporary = folder / f".{MODEL}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        built.scheme.save(temporary, built.engine.named_tensors())
    with writing(temporary):
        words.save_pretrained(str(temporary))
    for path in (*temporary.rglob("*"), temporary):  # on the disk before the snapshots that it was made of go
        sync(path)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    temporary.rename(folder / MODEL)
    sync(folder)
    if evaluation is None:
        return result
    callbacks.evaluated(evaluation)
    each = {KEY: packed(evaluation.examples)} if evaluation.examples else {}
    return dataclasses.replace(result, evaluation={**result.evaluation, "test": evaluation.point, **each})


@contextmanager
def best_weights(
    spec: RunSpec, folder: Path, step: int, say: Callable[[str], None], placed: RunSpec | None = None
) -> Iterator[Tuner]:
    """A tuner with the weights after ``step`` steps of the run ``spec``: from their snapshot, or an earlier one and the
    journal. ``placed``: the same run on another device, where they are wanted there."""
    placed = placed or spec
    numerics = origin.same_sums(placed, folder / origin.JOURNAL, say)
    alone = planned(placed.alone(), numerics)[0]
    if METHODS.get(spec.method).backpropagates:
        with tuner(alone, snapshot.path_of(folder, step), numerics=numerics) as built:
            yield built
        return
    header, items = journal.read(folder / JOURNAL)
    journal.check_header(folder / JOURNAL, header, origin.header_of(spec, empty_model(spec), numerics))
    items = up_to(folder / JOURNAL, items, step)
    start = replay.newest(folder, header, items, say)
    with tuner(alone, start=start, ran=placed, numerics=numerics) as built:
        replay.bring(built.engine, built.method, items, start)
        yield built


def up_to(path: Path, items: list[Item], step: int) -> list[Item]:
    """Those ``items`` of the journal in ``path`` that come before the evaluation after ``step`` steps. Raises
    ``ValueError`` for a journal that ends before it."""
    for number, item in enumerate(items):
        if isinstance(item, EvaluationItem) and item.step == step:
            return items[:number]
    raise ValueError(
        f"`{path}` must hold the evaluation after {step} steps, but is cut off before it; take another copy"
    )
