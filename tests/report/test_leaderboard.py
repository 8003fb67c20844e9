"""The page of machines: ranked within one spec alone, ranks shared where nothing is shown, none for a machine alone."""

import dataclasses
from typing import Any

import pytest

from tests.support.rates import CALIBRATION
from tests.support.stores import ENVIRONMENT
from zobench.report.leaderboard import artifact, rankings, stated
from zobench.result import Outcome, Result, Round
from zobench.result.repeats import folded
from zobench.runspec import RunSpec

FAST = {
    **CALIBRATION,
    "matmul_flops_per_second": {"fp32": 1e16, "fp16": 1e16, "bf16": 1e16},
    "operators_per_second": None,
}
"""Rates with which any of these steps can be believed."""
MEZO = RunSpec(model="OPT-125M", engine="resident", seq_len=2048, steps=4).resolve("cpu")


def measured(machine: str, seconds: float, spec: RunSpec = MEZO, **changes: Any) -> Result:
    """Six processes of ``spec`` on a machine, each step within 1 % of ``seconds``, in rounds of 10 November 2026."""
    about = dataclasses.replace(ENVIRONMENT, machine=machine, description=f"{machine} with 2 cores", calibration=FAST)
    runs = [
        Result(
            spec=spec, outcome=Outcome.OK, environment=about, memory={"device_peak_bytes": 300 * 2**20},
            samples={"step_seconds": [seconds * (1 + number / 500)] * 4}, power={"energy_joules": None},
            round=Round(number=number, began=1_794_300_000.0 + number, place=0, cells=1, seed=1),
        )
        for number in range(6)
    ]  # fmt: skip
    return dataclasses.replace(runs[0], **{"repeats": tuple(runs), **changes})


def ranks(*results: Result) -> list[list[tuple[str, int | None]]]:
    return [
        [(entry.result.environment.machine, entry.rank) for entry in ranking.entries]
        for ranking in rankings(results, stated())
    ]


def test_the_fastest_comes_first_and_machines_that_are_not_shown_to_differ_share_a_rank() -> None:
    ranking = ranks(measured("slow", 3.0), measured("twin", 1.002), measured("fast", 1.0), measured("middle", 2.0))
    assert ranking == [[("fast", 1), ("twin", 1), ("middle", 3), ("slow", 4)]]


@pytest.mark.parametrize("changes", [{"steps": 8}, {"seed": 1}, {"device": "cuda:0"}])
def test_runs_of_other_specs_are_never_ranked_together(changes: dict[str, Any]) -> None:
    other = measured("other", 1.0, MEZO.replace(**changes))
    assert ranks(measured("one", 2.0), other) in (
        [[("one", None)], [("other", None)]], [[("other", None)], [("one", None)]]
    )  # fmt: skip


def test_two_gpus_of_one_machine_are_one_machine_ahead() -> None:
    first, second = (measured("two", 1.0 + n, MEZO.replace(device=f"cuda:{n}")) for n in range(2))
    other = measured("other", 5.0, MEZO.replace(device="cuda:0"))
    assert ranks(first, second, other) == [[("two", 1), ("two", 1), ("other", 2)]]


def test_what_cannot_be_believed_of_any_round_keeps_a_machine_out_and_a_disturbed_one_is_told() -> None:
    good = measured("one", 2.0)
    impossible = [*good.runs[:5], dataclasses.replace(good.runs[5], samples={"step_seconds": [1.0] * 5})]
    loud = [*good.runs[:5], dataclasses.replace(good.runs[5], warnings=["other processes kept 1.2 cores busy"])]
    assert ranks(folded(impossible)[0]) == []
    (sheet,) = artifact(folded(loud)).sheets
    assert sheet.notes == ("Warning: other processes kept 1.2 cores busy",)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": Outcome.CONTAMINATED},
        {"partial": True},
        {"samples": {"step_seconds": [1.0] * 5}},  # more steps than were asked for
    ],
)
def test_what_did_not_end_well_or_cannot_be_believed_is_not_there(changes: dict[str, Any]) -> None:
    assert ranks(measured("one", 1.0), measured("other", 0.5, **changes)) == [[("one", None)]]


def test_each_row_has_its_numbers_commit_date_and_run() -> None:
    made = artifact([measured("fast", 1.0), measured("slow", 2.0)])
    (sheet,) = made.sheets
    assert sheet.title == "MeZO, OPT-125M, 32 bits"
    assert sheet.remarks[0] == f"The run: {MEZO.label}, 4 steps after 1, on cpu."
    header, first = sheet.groups[0].columns, sheet.groups[0].body[0]
    shown = {text.text: entry.text for text, entry in zip(header, first, strict=True)}
    assert shown["Machine"] == "fast"
    assert 2030 < int(shown["tokens/s ↑"]) <= 2048
    assert (shown["Memory (MB) ↓"], shown["J/token ↓"], shown["Runs"]) == ("300", "—", "6")
    assert (shown["Commit"], shown["Date"]) == ("ee3ca2f17f", "2026-11-10")
    assert shown["Run"] == f"fast/OPT-125M-resident-fp32-{MEZO.hash}.json"
    assert made.frame is not None
    speeds = made.frame[made.frame["metric"] == "throughput"].to_dict("records")
    assert [(row["machine"], row["rank"]) for row in speeds] == [("fast", 1), ("slow", 2)]
    assert speeds[0]["low"] < speeds[0]["value"] < speeds[0]["high"]
