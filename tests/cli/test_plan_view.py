"""A short plan: a line for what runs, what is kept, what the budget and the machine leave out."""

from dataclasses import replace
from typing import Any

from rich.console import Console

from zobench.cli import plan_view
from zobench.cli.console import outcome_line
from zobench.cost import Estimate
from zobench.cost.interval import Consolidation
from zobench.execute.plan import Step
from zobench.machine.texts import alike
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec


def step(action: str, seconds: float, reason: str = "", available: str = "", **changes: Any) -> Step:
    spec = RunSpec(**{"model": "OPT-125M", "seq_len": 32, **changes}).resolve("cpu")
    guess = Estimate(
        device_bytes=1, host_bytes=0, disk_bytes=0, step_seconds=1, seconds=seconds, least_seconds=seconds, source="x"
    )
    return Step(spec=spec, action=action, reason=reason, available=available, estimate=guess)


def shown(steps: list[Step], budget: float | None) -> list[str]:
    screen = Console(record=True, width=200)
    plan_view.show_short_plan(screen, "Title", steps, budget)
    return screen.export_text().splitlines()


def test_a_line_says_what_becomes_of_each_kind_of_cell() -> None:
    steps = [
        step("keep", 5, "done", seed=7),
        *(step("run", 20, seed=seed) for seed in range(6)),
        step("run", 400, engine="offload"),
        step(
            "skip",
            9,
            "needs 26.3 GB of host memory",
            "host memory, 20.0 GB are free (need predicted)",
            model="OPT-6.7B",
        ),
    ]
    assert shown(steps, 120) == [
        "Title: 9 cells, all fp32 b1 s32",
        "  run               6  OPT-125M resident seed=0, OPT-125M resident seed=1, OPT-125M resident seed=2, OPT-125M "
        "resident seed=3 and 2 more  2.0 min of 2.0 min (predicted)",
        "  done before       1  OPT-125M resident seed=7",
        "  over the budget   1  OPT-125M offload/disk  6.7 min and more; they end early, or wait",
        "  not here          1  OPT-6.7B resident  host memory, 20.0 GB are free (need predicted)",
    ]
    screen = Console(record=True, width=200)
    plan_view.show_short_plan(screen, "Title", steps, 120, foretold=True)
    last = screen.export_text().splitlines()[-1]
    assert last.endswith("host memory, 20.0 GB are free (need predicted); predicted below")
    assert shown(steps[1:2], None) == [
        "Title: 1 cell", "  run               1  OPT-125M resident fp32 b1 s32  20 s (predicted)",
    ]  # fmt: skip


def test_a_stored_reason_gives_the_terminal_no_orders() -> None:
    """It may come from anyone's results."""
    screen = Console(record=True, width=200)
    plan_view.show_plan(screen, "Title", [step("keep", 5, "failed before: \x1b[2J\x1b]0;mine\x07 so")], None)
    row = screen.export_text().splitlines()[2]
    assert row.isprintable()
    assert "failed before: \N{REPLACEMENT CHARACTER}[2J" in row
    spec = RunSpec(model="OPT-125M").resolve("cpu")
    line = outcome_line(Result(spec=spec, outcome=Outcome.FAILED, reason="\x1b[2J"))
    assert line.plain.isprintable()


def test_when_pending_updates_are_written_is_told_of_cells_that_run() -> None:
    found = Consolidation(32, "written every 32 steps")
    steps = [step("run", 20), *(step(action, 30, action, dtype="bf16") for action in ("run", "keep"))]
    steps = [
        replace(one, estimate=replace(one.estimate, consolidation=found)) if one.estimate and k else one
        for k, one in enumerate(steps)
    ]
    assert shown(steps, None)[-1] == "  bf16: written every 32 steps"
    assert sum("every 32" in line for line in shown(steps, None)) == 1
    screen = Console(record=True, width=200)
    plan_view.show_plan(screen, "Title", steps, None)
    assert screen.export_text().splitlines()[-2] == "  bf16: written every 32 steps"


def test_a_cell_that_is_done_takes_no_time_and_a_column_of_sizes_has_one_unit() -> None:
    steps = [step("keep", 5, "done"), step("run", 20, seed=1)]
    screen = Console(record=True, width=200)
    plan_view.show_plan(screen, "Title", steps, None)
    done, run = screen.export_text().splitlines()[2:4]
    assert (" s " in done, " 20 s " in run) == (False, True)
    assert alike([31_000_000, 0, 5_250_000_000]) == ["0.03 GB", "", "5.25 GB"]
    assert alike([31_000_000, 2_000_000]) == ["31 MB", "2 MB"]
    assert alike([5_250_000_000, 350_000_000_000]) == ["5.2 GB", "350 GB"]
    assert alike([0, 0]) == ["", ""]
