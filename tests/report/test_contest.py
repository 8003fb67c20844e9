"""The table of a protocol: whose runs it shows, ties, costs to a target, claims."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import contest as support
from zobench.recipes.reference import Reference
from zobench.report import artifacts, render
from zobench.report.contest import ContestTable, rankings
from zobench.result import Outcome, Result

TEST = {"ZO-SGD": 0.70, "Four queries": 0.71, "FO-SGD": 0.85}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    support.write(tmp_path)
    return tmp_path


@pytest.fixture
def table(folder: Path) -> ContestTable:
    item = artifacts.load("tables/mine.toml")
    assert isinstance(item, ContestTable)
    return item


def spread(header: str, seed: int) -> float:
    """A method's accuracy, with a spread that no digit shows: of methods without any nothing could be known."""
    return TEST[header] * (1 + 1e-6 * seed)


def stored(folder: Path, test: Callable[[str, int], float] | None = None, **changes: Any) -> list[Result]:
    contest = support.contest(folder / "runners" / "mine.toml")
    return support.stored(contest, test or (lambda header, seed: spread(header, seed) + 0.01 * seed), **changes)


def rows(table: ContestTable, results: list[Result], part: int) -> dict[str, dict[str, str]]:
    """Of one of the sheets: row -> heading -> what stands there."""
    sheet = artifacts.make(table, results, Reference.load())[0].sheets[part]
    (group,) = sheet.groups
    return {
        label.text: {
            column.text: f"{cell.text} {cell.detail}".strip() for column, cell in zip(group.columns, line, strict=True)
        }
        for label, line in zip(sheet.rows, group.body, strict=True)
    }


def test_the_table_shows_paired_differences_and_what_was_chosen(table: ContestTable, folder: Path) -> None:
    results = stored(folder, lambda header, seed: TEST[header] + 0.01 * seed + 0.001 * (seed == 1) * (header[0] == "F"))
    shown = rows(table, results, 0)
    assert list(shown) == ["FO-SGD", "Four queries", "ZO-SGD"]  # by their losses
    first, second, base = shown.values()
    assert first["Chosen"] == "lr 0.1"  # the point with the least loss on dev
    assert (first["Test loss ↓"], first["Test (%) ↑"]) == ("0.1397", "86.0 (83.7 to 88.0)")
    assert first["Less ZO-SGD"] == "-0.1503 (-0.1518 to -0.1489)"  # of -0.150, -0.151, -0.150: t 4.303 / sqrt(3)
    assert (first["Shown"], second["Shown"], base["Shown"]) == ("better", "better", "—")
    assert first["p (Holm)"] == "< 0.0001"
    assert second["Less ZO-SGD (points)"].startswith("+1.0 (+0.")
    assert (base["Less ZO-SGD"], base["p (McNemar)"]) == ("—", "·")
    text = render(table, results, "markdown")
    assert "compared by the mean loss on dev with seeds 9, 10; the best one runs with seeds 0, 1, 2" in text
    assert "Reached: 0.00" in text
    lacking = [run for run in results if run.spec.queries != 4]  # Holm counts what has not run too
    assert "after Holm over 2 methods" in text
    assert "after Holm over 2 methods" in render(table, lacking, "markdown")


def test_what_is_shown_moves_with_the_spread_of_the_seeds(table: ContestTable, folder: Path) -> None:
    def wild(header: str, seed: int) -> float:
        return spread(header, seed) + (header == "FO-SGD") * (0.0, 0.14, -0.14)[seed]

    shown = rows(table, stored(folder, wild), 0)["FO-SGD"]
    assert (shown["Shown"], shown["p (Holm)"]) == ("not shown", "0.2046")  # t = 0.15 / (0.14 / sqrt(3))
    lacking = [run for run in stored(folder, wild) if run.spec.queries != 4]
    assert rows(table, lacking, 0)["FO-SGD"]["p (Holm)"] == "0.4093"  # Holm counts what has not run too
    together = rows(table, stored(folder, lambda header, seed: spread(header, seed) + (0.0, 0.14, -0.14)[seed]), 0)
    assert together["FO-SGD"]["Shown"] == "better"  # the seeds move all methods alike: pairs tell them apart
    equal = rows(table, stored(folder, lambda header, seed: TEST[header]), 0)["FO-SGD"]
    assert (equal["Shown"], equal["Less ZO-SGD"]) == ("not shown", "-0.1500")


def test_a_method_whose_best_point_is_an_end_has_no_claim(table: ContestTable, folder: Path) -> None:
    contest = support.contest(folder / "runners" / "mine.toml")
    made = support.tuned(contest, lambda spec: 1 / spec.lr if spec.method == "fo-sgd" else abs(spec.lr - 3e-3))
    known = {run.spec.hash: run for run in made}
    for spec in contest.finals(known):
        share = 0.85 if spec.method == "fo-sgd" else 0.7 + 0.001 * spec.queries * spec.seed
        made.append(support.result(spec, dev=[0.5, 0.6, 0.7, 0.7, 0.75], test=share))
    shown, claims = rows(table, made, 0), rows(table, made, 2)
    assert (shown["FO-SGD"]["Chosen"], shown["FO-SGD"]["Shown"]) == ("lr 10 (edge)", "no claim (edge)")
    assert shown["FO-SGD"]["p (Holm)"] == "·"
    assert shown["ZO-SGD"]["Chosen"] == "lr 0.003"
    assert [row["Verdict"] for row in claims.values()] == ["no claim (edge)", "not shown"]
    said = "Edge: its best point is an end of what was tried, so nothing is claimed of this method."
    assert said in render(table, made, "markdown")
    (chart,) = artifacts.make(artifacts.load("plots/mine.toml"), made, Reference.load())[0].charts
    assert set(chart.panels[0].positions) == {"FO-SGD (edge)", "ZO-SGD", "Four queries"}
    assert said in chart.remarks


def test_costs_to_the_target_are_those_of_the_first_evaluation_that_reaches_it(table, folder) -> None:
    results = stored(folder, seconds=0.5, watts=20.0)
    late = next(run for run in results if run.spec.method == "fo-sgd" and run.spec.seed == 1)
    results[results.index(late)] = support.result(late.spec, dev=[0.9, 0.6, 0.9, 0.6, 0.6], test=0.8, seconds=0.5)
    shown = rows(table, results, 1)
    base, queries, first = shown["ZO-SGD"], shown["Four queries"], shown["FO-SGD"]
    assert (base["Forwards a step"], base["Steps"], queries["Forwards a step"], queries["Steps"]) == (
        "2",
        "60",
        "8",
        "15",
    )
    assert base["Forwards to 70% on dev ↓"] == "60.0"  # 30 steps of 60, 0.70 at the second evaluation
    assert base["Seconds ↓"] == "15.0"
    assert base["Joules ↓"] == "300"
    assert queries["Forwards to 70% on dev ↓"] == "64.0"  # 8 steps, the evaluation after half of 15
    assert first["Forwards to 70% on dev ↓"] == "60.0 (2 of 3)"  # a start above it does not count
    assert "A run that is at the target at its start does not reach it" in render(table, results, "markdown")
    assert rows(table, stored(folder), 1)["ZO-SGD"]["Joules ↓"] == "—"
    assert base["Memory (MB) ↓"] == "50.0"


def test_what_is_not_of_the_protocol_is_not_shown(table: ContestTable, folder: Path) -> None:
    results = stored(folder)
    (ranking,) = rankings(table, results)
    final = next(item for item in results if item.spec.test_size and item.spec.method == "fo-sgd")
    strangers = [
        support.result(final.spec.replace(**change), dev=[0.5, 0.9], test=0.99)
        for change in ({"seed": 5}, {"steps": 41}, {"method": "fo-adam"}, {"lr": 0.5}, {"lr": 1e-2}, {"test_size": 500})
    ]
    gone = support.result(final.spec.replace(task="gone@0123456789ab"), dev=[0.5, 0.9], test=0.99)  # its file is
    failed = dataclasses.replace(final, outcome=Outcome.FAILED, reason="no", evaluation={})
    again = rankings(table, [*results, *strangers, gone, failed])
    assert [(item.header, item.scores) for item in again[0].standings] == [
        (item.header, item.scores) for item in ranking.standings
    ]
    wide = support.result(final.spec.replace(batch_size=2, steps=43), dev=[0.5])
    elsewhere = [*results, *stored(folder, machine="box-2"), wide]
    assert [(item.machine, item.spec.batch_size) for item in rankings(table, elsewhere)] == [
        ("box-1", 1), ("box-1", 2), ("box-2", 1),
    ]  # fmt: skip


def test_another_machines_baseline_stands_in_where_a_machine_has_none(table: ContestTable, folder: Path) -> None:
    results, there = stored(folder), stored(folder, machine="box-2")
    others = [run for run in results if run.spec.method != "zo-sgd" or run.spec.queries > 1]
    alone, both = rows(table, others, 0), rows(table, [*others, *there], 0)
    assert (alone["FO-SGD"]["Less ZO-SGD"], alone["ZO-SGD"]["Test loss ↓"]) == ("·", "·")
    assert both == rows(table, results, 0)
    first, second = rankings(table, [*others, *there])
    assert [(method.header, method.elsewhere, len(method.step_times)) for method in first.standings] == [
        ("FO-SGD", "", 3), ("Four queries", "", 3), ("ZO-SGD", "box-2", 0),
    ]  # fmt: skip
    assert not any(method.elsewhere for method in second.standings)
    sheets = artifacts.make(table, [*others, *there], Reference.load())[0].sheets
    noted = [any("ZO-SGD ran on box-2: seeds" in remark for remark in map(str, sheet.remarks)) for sheet in sheets]
    assert noted == [True, False, True] + [False] * (len(sheets) - 3)  # accuracies and claims, not costs
    assert "ZO-SGD" not in rows(table, [*others, *there], 1)


def test_a_grid_that_is_not_whole_shows_no_test_and_seeds_that_wait_are_told(table: ContestTable, folder: Path) -> None:
    results = stored(folder)
    tuning = [run for run in results if not run.spec.test_size]
    lacking = [
        run for run in results if run is not tuning[0]
    ]  # whose winner has run, by an earlier version of the grid
    shown = rows(table, lacking, 0)["ZO-SGD"]
    assert (shown["Chosen"], shown["Test (%) ↑"], shown["Shown"]) == ("2 of at most 4 points tuned", "·", "·")
    assert rows(table, tuning, 0)["ZO-SGD"]["Chosen"] == "3 of at most 4 points tuned"
    grid = [run for run in results if run.spec.lr <= 3e-3 or run.spec.method != "zo-sgd"]  # the point beyond is lacking
    assert rows(table, grid, 0)["ZO-SGD"]["Test loss ↓"] == "·"
    fewer = [run for run in results if not (run.spec.seed == 2 and run.spec.method == "fo-sgd")]
    assert rows(table, fewer, 0)["FO-SGD"]["Less ZO-SGD"].startswith("-0.1500 (")
    single = [run for run in results if run.spec.seed in (0, 9, 10)]
    assert rows(table, single, 0)["FO-SGD"]["Less ZO-SGD"] == "-0.1500"  # without an interval
    assert rows(table, single, 0)["FO-SGD"]["Shown"] == "1 of 3 seeds"
    assert "nothing measured yet" in render(table, [], "terminal")


def test_claims_hold_do_not_or_are_not_shown(table: ContestTable, folder: Path) -> None:
    def verdicts(results: list[Result]) -> list[tuple[str, str]]:
        return [(row["Here (95 %)"], row["Verdict"]) for row in rows(table, results, 2).values()]

    first, second = verdicts(stored(folder))
    assert first[0].startswith("+15.0 (+")
    assert first[1] == "holds here"
    assert second == ("1.07 (0.533 to 2.13)", "not shown")  # 64 forwards of 60, half as many an evaluation before
    assert verdicts(stored(folder, lambda header, seed: 0.7 + 0.05 * (header == "FO-SGD")))[0][1] == "not shown"
    assert verdicts(stored(folder, lambda header, seed: 0.9 - TEST[header] / 2))[0][1] == "does not"
    assert verdicts([item for item in stored(folder) if not item.spec.test_size]) == [("·", "not measured")] * 2
    results = stored(folder)
    late = next(item for item in results if item.spec.queries == 4 and item.spec.seed == 1)
    results[results.index(late)] = support.result(late.spec, dev=[0.5, 0.6, 0.6, 0.6, 0.6], test=0.72)
    assert verdicts(results)[1] == ("Four queries reached the target with 2 of 3 seeds", "not shown")
    results = [  # both at their first evaluation: three seeds are not too few
        support.result(run.spec, dev=[0.5, 0.75, 0.7, 0.7, 0.75], test=0.7)
        if run.spec.test_size and run.spec.method == "zo-sgd" else run
        for run in stored(folder)
    ]  # fmt: skip
    none = "no interval: some seeds of both were there by the first evaluation"
    assert verdicts(results)[1] == (f"1.07 ({none})", "not shown")
    alone = [run for run in results if not run.spec.test_size or run.spec.seed == 0 or run.spec.method == "fo-sgd"]
    assert verdicts(alone)[1] == (f"1.07 ({none})", "not measured")
