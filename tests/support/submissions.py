"""Small cells, how one or each of its ranks ended, and a sweep of them that was submitted."""

from pathlib import Path
from typing import Any

from zobench.execute import jobs
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

MACHINE = "cpu-2c-4f2a91"


def cell(seed: int = 0, **changes: Any) -> RunSpec:
    fields = {"model": "opt-tiny", "seq_len": 32, "seed": seed, **changes}
    return RunSpec(**fields).resolve(changes.get("device", "cpu"))


TWO_RANKS = cell(engine="offload", parallel="ddp", gpus=2, batch_size=4)


def ended(spec: RunSpec, outcome: Outcome = Outcome.OK, reason: str = "") -> Result:
    return Result(spec=spec, outcome=outcome, reason=reason, environment=Facts(machine=MACHINE))


def result_of(number: int, **changes: Any) -> Result:
    """What that rank of it says."""
    values: dict[str, Any] = {"samples": {"step_seconds": [1.0 + number], "loss": [2.0], "projected_grad": [3.0]}}
    return Result(**{"spec": TWO_RANKS, "outcome": Outcome.OK, **values, **changes})


def submitted(results: Path, count: int = 3, **changes: Any) -> jobs.Submission:
    cells = tuple(cell(seed=seed) for seed in range(count))
    values: dict[str, Any] = {
        "name": "mine", "executor": "slurm", "cells": cells, "groups": (tuple(range(count)),), "submitted": 1.0,
        "place": "partition=p", "retry": ("failed",), "timeout": 60.0, **changes,
    }  # fmt: skip
    made = jobs.Submission(folder=jobs.new_folder(results), **values)
    made.write()
    return made
