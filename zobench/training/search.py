"""A search over a grid: its runs are compared on dev, and only the winner is evaluated on test, once."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.durable import snapshot
from zobench.machine.files import replace
from zobench.result import Result, finite
from zobench.runspec import RunSpec
from zobench.store.files import RESULT
from zobench.training.callbacks import Callback
from zobench.training.examine import RECORD, Seal
from zobench.training.run import finetune

MOST_RUNS = 1_000
"""The most runs of a search, each of which trains a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run of a search: its values in the grid, and its result; only the winner's is evaluated on test."""

    changes: dict[str, Any]
    result: Result

    def row(self) -> dict[str, Any]:
        """The trial as it is stored: its changes, the run's hash, and its best evaluation on dev."""
        best = self.result.evaluation["best"]
        numbers = finite({f"dev_{name}": best[name] for name in ("loss", *self.result.scores)})
        run = {"run": self.result.spec.hash, "step": best["step"]}
        return {**self.changes, **run, **numbers, "skipped": self.result.skipped_updates}


def cells(spec: RunSpec, axes: Mapping[str, Sequence[Any]]) -> dict[RunSpec, dict[str, Any]]:
    """The runs of every combination of ``axes``, and what each one changes in ``spec``."""
    if (count := math.prod(map(len, axes.values()))) > MOST_RUNS:
        raise ValueError(f"a grid must have at most {MOST_RUNS:,} runs, but this has {count:,}; give fewer values")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return {spec.replace(**point).resolve(spec.device): point for point in points}


def search(
    spec: RunSpec, axes: Mapping[str, Sequence[Any]], *, folder: Path, data_dir: Path | None = None,
    callbacks: Callable[[RunSpec], Sequence[Callback]] = lambda cell: (),
) -> tuple[list[Trial], Trial]:  # fmt: skip
    """Runs ``spec`` (resolved) with every combination of ``axes``: (all trials, the winner with its test).

    The winner has the lowest dev loss, of equal ones the highest dev accuracy, then came first in the grid. Each run
    is kept in ``folder/<hash>``, so that a search goes on where it stopped, but of finished runs only the leader's
    snapshot is; ``folder/search.json`` holds the whole grid and the winner. ``callbacks`` makes those of a run.

    Raises ``ValueError`` where the test set was looked at in this folder for another run than the winner.
    """
    seal, trials = Seal(), []
    for cell, changes in cells(spec, axes).items():
        result = finetune(
            cell, folder=folder / cell.hash, data_dir=data_dir, seal=seal, examine=False, callbacks=callbacks(cell),
        )  # fmt: skip
        trials.append(Trial(changes=changes, result=result))
        first = min(trials, key=lambda trial: trial.result.rank_on_dev)
        for trial in trials:  # of a large model, the snapshots of all would fill a disk
            kept = {int(trial.result.evaluation["best"]["step"])} if trial is first else ()
            snapshot.prune(folder / trial.result.spec.hash, kept)
    _check_unseen(first, folder)
    best_spec = first.result.spec
    examined = finetune(
        best_spec, folder=folder / best_spec.hash, data_dir=data_dir, seal=seal, callbacks=callbacks(best_spec),
    )  # fmt: skip
    rows = [trial.row() for trial in trials]
    grid = {"axes": {key: list(values) for key, values in axes.items()}, "cells": rows}
    with_grid = dataclasses.replace(examined, evaluation={**examined.evaluation, "search": grid})
    winner = Trial(changes=first.changes, result=with_grid)
    test = finite(examined.evaluation.get("test"))
    record = {**grid, "winner": winner.row(), "test": test, "spec": best_spec.to_dict()}
    replace(folder / RECORD, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
    return trials, winner


def _check_unseen(winner: Trial, folder: Path) -> None:
    """Raises ``ValueError`` if a result in ``folder``, as of an earlier search, has another run's test."""
    tested = [
        path.parent for path in folder.glob(f"*/{RESULT}") if "test" in json.loads(path.read_text())["evaluation"]
    ]
    others = [path.name for path in tested if path.name != winner.result.spec.hash]
    if others:
        raise ValueError(
            f"the test set must be looked at once, but {folder} holds the test of {', '.join(sorted(others))}, and the "
            f"winner is {winner.result.spec.hash}; name another --out for a new search"
        )
