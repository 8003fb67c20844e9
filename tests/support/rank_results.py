"""The results of a cell's ranks."""

from typing import Any

from zobench.result import Outcome, Result
from zobench.runspec import RunSpec


def cell() -> RunSpec:
    return RunSpec(model="opt-tiny", engine="offload", parallel="ddp", gpus=2, batch_size=4).resolve("cpu")


def result_of(number: int, **changes: Any) -> Result:
    values: dict[str, Any] = {"samples": {"step_seconds": [1.0 + number], "loss": [2.0], "projected_grad": [3.0]}}
    return Result(**{"spec": cell(), "outcome": Outcome.OK, **values, **changes})
