"""A sweep that was submitted."""

from pathlib import Path
from typing import Any

from zobench.execute import jobs
from zobench.runspec import RunSpec


def cell(**changes: Any) -> RunSpec:
    return RunSpec(**{"model": "opt-tiny", "seq_len": 32, **changes}).resolve(changes.get("device", "cpu"))


def submitted(results: Path, count: int = 3, **changes: Any) -> jobs.Submission:
    cells = tuple(cell(seed=seed) for seed in range(count))
    values: dict[str, Any] = {
        "name": "mine", "executor": "slurm", "cells": cells, "groups": (tuple(range(count)),), "submitted": 1.0,
        "place": "partition=p", "retry": ("failed",), "timeout": 60.0, **changes,
    }  # fmt: skip
    made = jobs.Submission(folder=jobs.new_folder(results), **values)
    made.write()
    return made
