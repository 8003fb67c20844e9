"""The authors' programs in tables: beside zobench with the difference of their losses, where these can be compared."""

from typing import Any

import pytest

from zobench.recipes import find
from zobench.recipes.reference import Reference
from zobench.report import load_table
from zobench.report.cells import TableCell, fill
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

NONE = Reference(())
LOSSES = [10.5, 10.25, 10.75, 10.0]


def result(seconds: float, losses: list[float | None], own_order: bool = False, **changes: Any) -> Result:
    spec = RunSpec(**{"model": "OPT-125M", "seq_len": 2048, "steps": 3, "warmup": 1, **changes}).resolve("cpu")
    return Result(
        spec=spec, outcome=Outcome.OK, memory={"device_peak_bytes": 2**20},
        environment=Facts(machine="cpu-2c-4f2a91", own_order=own_order),
        warmup={"loss": losses[:1]}, samples={"step_seconds": [seconds] * 3, "loss": losses[1:]},
    )  # fmt: skip


def cells(*results: Result) -> dict[tuple[str, str, str], TableCell]:
    grid = fill(load_table(find("tables", "side_by_side")), results, NONE)
    return {(cell.row.header, cell.column.header, cell.metric.name): cell for row in grid for j in row for cell in j}


def test_a_programs_losses_are_held_against_zobenchs_step_by_step() -> None:
    """The first step, which is not timed, counts; a run with fewer steps is compared as far as it goes."""
    theirs = [LOSSES[0] + 0.25, LOSSES[1], LOSSES[2] - 0.125]
    grid = cells(result(1.0, [*LOSSES]), result(2.0, [*theirs], program="mezo", steps=2))
    row = "OPT-125M, fp32, 2048"
    assert grid[row, "MeZO (authors)", "loss_difference"].value == 0.25
    assert grid[row, "zobench", "loss_difference"].value is None
    assert grid[row, "MeZO (authors)", "throughput"].value == 1024
    assert grid[row, "ZO-LLM (authors)", "loss_difference"].value is None


@pytest.mark.parametrize("other", [{"lr": 1e-6}, {"own_order": True}])
def test_losses_of_other_weights_tokens_or_seeds_are_not_compared(other: dict[str, Any]) -> None:
    grid = cells(result(1.0, [*LOSSES]), result(2.0, [*LOSSES], program="mezo", **other))
    cell = grid["OPT-125M, fp32, 2048", "MeZO (authors)", "loss_difference"]
    assert cell.result is not None
    assert cell.value is None
