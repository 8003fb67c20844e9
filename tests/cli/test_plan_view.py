"""A short plan: a line for what runs, what is kept, what the budget and the machine leave out."""

from typing import Any

from rich.console import Console

from zobench.cli import plan_view
from zobench.cli.console import outcome_line
from zobench.cost import Estimate
from zobench.execute.plan import Step
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
