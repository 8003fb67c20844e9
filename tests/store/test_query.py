"""Listing, filtering, exporting and merging stored runs: whole columns, checked conditions, the better of two runs."""

import errno
import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

from tests.support.commands import run_in
from tests.support.files import written
from tests.support.stores import ENVIRONMENT, MACHINE, run, specs
from tests.support.watched import before
from zobench.result import Outcome, Result, Round
from zobench.runspec import FIELDS, RunSpec
from zobench.store import Store, frame, query
from zobench.store.merge import merge

OTHER = replace(ENVIRONMENT, machine="h200-16c-0a1b2c")
SPECS = list(itertools.islice(specs(), 8))
RUNS = [
    run(SPECS[0]),
    run(SPECS[1], outcome=Outcome.OOM, reason="device memory ran out", samples={}, memory={}),
    run(SPECS[2], environment=OTHER, samples={"step_seconds": [0.25] * 4}),
    run(SPECS[3].replace(writeback_every=4, noise="counter")),
    run(SPECS[4].replace(writeback_every="inf", noise="counter"), samples={"step_seconds": [None]}),
    run(RunSpec(model="Qwen3-1.7B", tie_embeddings=True).resolve("cpu")),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of RUNS in ./results, the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for result in RUNS:
        Store(tmp_path / "results").save(result)
    return tmp_path / "results"


# ---- conditions and order


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["outcome=oom", "outcome=ok"], RUNS),
        (["machine=h200-16c-0a1b2c"], [RUNS[2]]),
        (["model=Qwen/Qwen3-1.7B"], [RUNS[5]]),
        (["task=none"], RUNS),
        (["writeback_every=inf"], [RUNS[4]]),
        (["writeback_every=4", "noise=torch"], []),
        (["tie_embeddings=none", "outcome=oom"], [RUNS[1]]),
    ],
)
def test_conditions_pick_the_runs_that_fulfil_all_of_them(texts: list[str], expected: list[Result]) -> None:
    assert query.select(RUNS, query.conditions(texts)) == expected


def test_a_task_of_a_file_and_a_model_of_a_folder_are_had_by_their_names(tmp_path: Path) -> None:
    reviews = replace(RUNS[0], spec=RUNS[0].spec.replace(task="reviews@0123456789ab", weights="pretrained"))
    folder = replace(RUNS[0], spec=RUNS[0].spec.replace(model="qwen", model_path="/x", config_hash="0123456789ab"))
    chosen = [query.select([*RUNS, reviews, folder], query.conditions([text])) for text in
             ("task=reviews", "task=reviews@0123456789ab", "task=review", f"model={tmp_path}/qwen")]  # fmt: skip
    assert chosen == [[reviews], [reviews], [], [folder]]


# ---- exports


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_an_export_has_every_column_and_every_number(root, zobench, monkeypatch, name: str) -> None:
    assert zobench("results", "--out", name) == (0, f"{name}: 6 runs\n", "")
    back = pd.read_csv(name) if name.endswith("csv") else pd.read_parquet(name)
    expected = frame(Store(root).load())
    assert list(back.columns) == list(expected.columns)
    assert set(FIELDS) < set(back.columns)
    for column in ("throughput", "step_seconds", "device_peak_bytes", "seq_len", "model", "spec_hash", "outcome"):
        pd.testing.assert_series_equal(back[column], expected[column], check_dtype=False)
    assert list(map(float, back["writeback_every"])) == list(map(float, expected["writeback_every"]))
    before = Path(name).read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert zobench("results", "--where", "machine=h200-16c-0a1b2c", "--out", name)[0] == 1
    assert Path(name).read_bytes() == before, "an export is there whole or not at all"


# ---- the listing


@pytest.mark.parametrize("width", ["80", "140"])
def test_every_run_has_a_line_with_its_numbers(root, zobench, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)
    code, out, err = zobench("results")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("6 runs")
    assert max(map(len, lines)) <= int(width)
    (line,) = [line for line in lines if RUNS[2].spec.hash[:7] in line]
    assert "h200-16c-0a1b2c" in (line if width == "140" else out)
    assert f"{RUNS[2].tokens_per_step / 0.25:.0f}" in line.split()
    assert "0.250" in line.split()
    (line,) = [line for line in lines if RUNS[1].spec.hash[:7] in line]
    assert "oom" in line.split()
    assert "device memory ran out" in out
    assert "writeback_every=inf" in out


def test_a_name_cannot_command_the_terminal_or_be_read_as_markup(root, zobench) -> None:
    Store(root).save(run(SPECS[6].replace(model="[red]x\x1b[2J"), outcome=Outcome.FAILED, reason="\x1b]0;t\x07 [bold]"))
    _, out, _ = zobench("results")
    assert "\x1b" not in out
    assert "[red]x\N{REPLACEMENT CHARACTER}[2J" in out
    assert "[bold]" in out


def test_no_runs_say_how_to_get_some_or_that_none_was_meant(root: Path, zobench: Any) -> None:
    hint = "no results in empty: `zobench sweep smoke --results empty` makes some\n"
    Path("empty").mkdir()
    assert zobench("results", "--results", "empty") == (0, "", hint)
    _, out, err = zobench("table", "zo2/table1", "--results", "empty")
    assert "predicted for A100" in out
    assert err.endswith("; all that is shown is predicted or the paper's\n")
    assert zobench("results", "--where", "seed=7") == (0, "", "none of 6 runs fulfils every --where\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["results", "--results", "b"], "`--results` names the folder, but got 'results' too; leave one of them out"),
        (["nowhere"], "`DIR` must be a folder, but got 'nowhere'; it is not there; check it"),
        (["--out", "runs.xlsx"], "`--out` must end in .csv or .parquet, but got 'runs.xlsx'; name it runs.csv"),
        (["--merge-into", "all", "--where", "seed=0"],
         "`--merge-into` needs whole folders, but got another option; merge"),
        (["--where", "options.rnk=2"], "unknown key 'options.rnk'; did you mean options.rank or "),
        (["--where", "outcome=bust"], "`outcome` must be one of ok, oom, timeout, failed, skipped, contaminated, but "
                                      "got 'bust'; for example ok"),
        (["--where", "machine.x=1"], "unknown key 'machine.x'; did you mean machine?"),
        (["--merge-into", "results"], "`--merge-into` must be none of the merged folders, but got 'results'; name"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(root, refused, arguments, text) -> None:
    Path("file").write_text("")
    assert refused("results", *arguments).startswith(f"zobench: {text}")


# ---- merging


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob("*/*"))}


def test_stores_of_several_machines_become_one(tmp_path: Path, zobench: Any) -> None:
    for index, result in enumerate(RUNS):
        Store(tmp_path / f"source{index % 2}").save(result)
    sources = [str(tmp_path / "source0"), str(tmp_path / "source1")]
    into = tmp_path / "all"
    code, out, err = zobench("results", *sources, "--merge-into", str(into))
    assert (code, out, err) == (0, f"{into}: 6 added, 0 there already, 0 chosen between\n", "")
    merged = contents(into)
    assert merged == contents(Path(sources[0])) | contents(Path(sources[1]))
    code, out, err = zobench("results", *sources, "--merge-into", str(into))
    assert (code, out, err) == (0, f"{into}: 0 added, 6 there already, 0 chosen between\n", "")
    assert contents(into) == merged
    machines = [str(path) for source in sources for path in Path(source).iterdir() if path.name[0] != "."]
    assert zobench("results", *machines, "--merge-into", str(tmp_path / "whole"))[0] == 0
    assert contents(tmp_path / "whole") == merged


def with_steps(count: int, outcome: Outcome = Outcome.OK) -> Result:
    return run(
        SPECS[0], outcome=outcome, reason="" if outcome is Outcome.OK else "x", samples={"step_seconds": [1.0] * count}
    )


def of_round(began: float) -> Result:
    """Five steps of the first round of a sweep that began then."""
    return replace(with_steps(5), round=Round(number=0, began=began, place=0, cells=1, seed=0))


@pytest.mark.parametrize(
    ("there", "new", "wins"),
    [
        (with_steps(1), with_steps(9, Outcome.FAILED), "there"),
        (with_steps(9, Outcome.CONTAMINATED), with_steps(1), "new"),
        (with_steps(5), with_steps(6), "new"),
        (with_steps(6), with_steps(5), "there"),
        (with_steps(5), run(SPECS[0], samples={"step_seconds": [2.0] * 5}), "there"),
        (of_round(100.0), of_round(200.0), "new"),
        (of_round(200.0), of_round(100.0), "there"),
    ],
)
def test_of_two_runs_of_a_cell_the_better_one_stays_and_the_choice_is_told(tmp_path, there, new, wins) -> None:
    into, source = tmp_path / "all", tmp_path / "source"
    Store(into).save(there)
    Store(source).save(new)
    merged = merge([source], into)
    kept, left = (new, there) if wins == "new" else (there, new)
    places = (source, into) if wins == "new" else (into, source)
    assert Store(into).load() == [kept]
    assert Store(source).load() == [new]
    assert merged.choices == [
        f"{SPECS[0].label} on {MACHINE}: "
        f"kept that of {places[0]} ({kept.outcome}, {len(kept.measured_seconds)} steps), not "
        f"that of {places[1]} ({left.outcome}, {len(left.measured_seconds)} steps)"
    ]


def test_files_that_cannot_be_read_are_told_and_left_on_both_sides(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "all"
    paths = [Store(source).save(result) for result in RUNS[:2]]
    paths[0].write_text("{")
    broken = written(Store(into).path(RUNS[1].spec, MACHINE), "not JSON")
    merged = merge([source], into)
    assert (merged.added, broken.read_text(), paths[0].read_text()) == (0, "not JSON", "{")
    problems = sorted(merged.problems, key=lambda problem: str(into) in problem)
    assert problems[0].startswith(f"{paths[0]}: ")
    assert problems[1].startswith(f"{broken}: ")
    assert problems[1].endswith(f"; remove it to merge that of {source}")


@pytest.mark.parametrize("source", ["one", f"one/{MACHINE}"])
def test_a_folder_is_not_merged_into_itself_by_another_name(tmp_path: Path, source: str) -> None:
    Store(tmp_path / "one").save(RUNS[0])
    (tmp_path / "alias").symlink_to("one")
    before = contents(tmp_path / "one")
    with pytest.raises(ValueError, match=r"^`--merge-into` must be none of the merged folders, but got "):
        merge([tmp_path / source], tmp_path / "alias")
    assert contents(tmp_path / "one") == before


def test_a_second_merge_into_a_store_is_refused_until_the_first_has_ended(tmp_path: Path, monkeypatch: Any) -> None:
    """From another process; then the runs of both are there."""
    for folder, result in (("a", RUNS[0]), ("b", RUNS[1])):
        Store(tmp_path / folder).save(result)
    second, refusals = ("results", "b", "--merge-into", "all"), list[Any]()
    before(monkeypatch.setattr, Store, "save", lambda *_: refusals.append(run_in(tmp_path, *second)))
    merge([tmp_path / "a"], tmp_path / "all")
    assert [(refusal.returncode, refusal.stdout) for refusal in refusals] == [(1, "")]
    assert refusals[0].stderr.startswith("zobench: all must have one writer, but another sweep uses it; wait, or ")
    assert Store(tmp_path / "all").load() == [RUNS[0]]
    assert run_in(tmp_path, *second).returncode == 0
    assert len(Store(tmp_path / "all").load()) == 2


@pytest.mark.parametrize("machine", ["../../x", "/tmp/x", "paper", ".hidden", "x\0y"])
def test_no_name_in_a_result_makes_a_merge_write_elsewhere(tmp_path: Path, machine: str) -> None:
    source = tmp_path / "deep" / "source"
    path = Store(source).save(RUNS[0])
    hostile: dict[str, Any] = json.loads(path.read_text())
    hostile["environment"]["machine"] = machine
    path.write_text(json.dumps(hostile))
    merged = merge([source], tmp_path / "deep" / "all")
    assert (merged.added, len(merged.problems)) == (0, 1)
    shutil.rmtree(source)
    assert [str(entry.relative_to(tmp_path)) for entry in tmp_path.rglob("*")] == ["deep", "deep/all", "deep/all/.lock"]
