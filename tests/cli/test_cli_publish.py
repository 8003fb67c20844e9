"""The commands that publish: reproduce measures and shows one artifact, report writes them all."""

import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.files import written
from tests.support.tables import result, tuned
from zobench import recipes
from zobench.machine.texts import csv_of
from zobench.programs.cell import run as measured
from zobench.report import artifacts
from zobench.store import Store

TINY_RUNNER = """
[base]
seq_len = 16
steps = 2
warmup = 1
[axes]
model = ["opt-tiny"]
[[variants]]
engine = "resident"
[[variants]]
engine = "offload"
tier = "disk"
"""
TINY_TABLE = """
title = "Tiny"
paper = "zo2"
artifact = "tiny"
runner = "./tiny.toml"
baseline = "MeZO"
columns = [
  { header = "MeZO", where = { engine = "resident" } },
  { header = "ZO2", where = { engine = "offload" } },
]
metrics = [{ name = "throughput", header = "Throughput (tokens/s)", format = ".0f", better = "higher" }]
[where]
seq_len = 16
[rows.product]
model = ["opt-tiny"]
"""
TINY_FIGURE = """
kind = "timeline"
title = "One step"
runner = "./tiny.toml"
[where]
seq_len = 16
[[panels]]
title = "a. offloaded"
where = { engine = "offload" }
"""


@pytest.fixture
def tiny(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipes of a user's own for a tiny model; its cells run here, as a process of its own would for each."""
    monkeypatch.setattr("zobench.execute.sweep.run_in_process", lambda spec, **_: measured(spec))
    written(cwd / "tiny.toml", TINY_RUNNER)
    written(cwd / "tables/mine.toml", TINY_TABLE)
    written(cwd / "plots/step.toml", TINY_FIGURE)
    return cwd


@pytest.mark.slow
def test_reproduce_measures_then_shows_the_table(tiny: Path, zobench: Any, machine: str) -> None:
    code, out, err = zobench("reproduce", "mine", "--device", "cpu")
    assert code == 0, err
    assert f"measured on {machine}" in out
    assert re.search(r"opt-tiny +\d+ +\d+ \(x[\d.]+\)", out)
    assert out.count("Tiny\n") == 1
    assert [result.outcome for result in Store(tiny / "results").load()] == ["ok", "ok"]


def test_reproduce_runs_only_what_is_shown_and_can_be_planned(tiny: Path, zobench: Any) -> None:
    code, out, _ = zobench("reproduce", "step", "--device", "cpu", "--dry-run", "--set", "steps=3")
    assert code == 0
    assert "1 of 1 cells to run" in out
    assert "offload/disk" in out
    assert "resident" not in out
    assert not (tiny / "figures").exists()
    (tiny / "plots/none.toml").write_text(TINY_FIGURE.replace("seq_len = 16", "seq_len = 17"))
    code, _, err = zobench("reproduce", "none", "--device", "cpu")
    assert code == 2
    assert "the matrix ./tiny.toml must make a run that is shown, but makes none here; name another runner" in err


def test_a_figure_is_drawn_from_what_is_stored_and_measures_nothing(tiny: Path, zobench: Any) -> None:
    (tiny / "plots/bars.toml").write_text(TINY_TABLE.replace("title", 'kind = "bars"\ntitle', 1))
    Store(tiny / "results").save(result("opt-tiny", seq_len=16, machine="box", warnings=("others were busy: 1.5",)))
    code, out, err = zobench("figure", "bars", "--out", "drawn")
    assert code == 0, err
    assert out.split() == [f"drawn/figures/zo2/tiny.{form}" for form in ("csv", "md", "tex", "png", "svg", "pdf")]
    assert "Warning: others were busy: 1.5" in (tiny / "drawn/figures/zo2/tiny.svg").read_text()
    assert len(Store(tiny / "results").load()) == 1
    (tiny / "tables/bars.toml").write_text(TINY_TABLE)  # the figure is drawn where a table has its name
    assert zobench("figure", "bars", "--out", "again")[0] == 0


def test_the_curves_of_runs_in_folders_are_drawn_where_one_says(cwd: Path, zobench: Any) -> None:
    for lr in (1e-6, 1e-7):
        Store(cwd / "mine").save(tuned(0.8, lr=lr))
    code, out, err = zobench("figure", "mine", "--where", "lr=1e-7", "--out", "drawn")
    said = [line for line in err.splitlines() if not line.startswith("drawing the runs for")]  # of a busy machine
    assert (code, said) == (0, [])
    assert out.split() == [f"drawn/figures/curves.{form}" for form in ("csv", "png", "svg", "pdf")]
    assert {line.split(",")[2] for line in (cwd / "drawn/figures/curves.csv").read_text().splitlines()[1:]} == {
        "zo-sgd"
    }


@pytest.mark.slow
def test_report_writes_everything_from_the_store_alone(
    cwd: Path, zobench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipes.names
    monkeypatch.setattr(recipes, "names", lambda kind: [name for name in whole(kind) if name.startswith("zo2/")])
    Store(cwd / "results").save(result("OPT-125M", seq_len=2048, machine="box"))
    (cwd / "results" / "box" / "broken.json").write_text("{")
    code, out, err = zobench("report", "--out", "all")
    assert code == 0, err
    # the page of machines and what fits where are no recipes
    tables, figures = len(recipes.names("tables")) + 1, len(recipes.names("plots")) + 1
    assert out == f"{tables} tables and {figures} figures; open all/index.html\n"
    assert "not read: results/box/broken.json: " in err
    assert (cwd / "all/tables/zo2/table5.tex").is_file()
    assert "OPT-125M" in (cwd / "all/tables/zo2/table1.md").read_text()
    assert "broken.json" in (cwd / "all/index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("reproduce zo2/tabel5", "no such recipe in tables or plots: 'zo2/tabel5'; did you mean zo2/table5"),
        ("report --out file", "`--out` must be a folder, but got "),
        ("figure zo2/table5", "`zobench figure` draws figures, but 'zo2/table5' is a table; use zobench table"),
        ("figure zo2/figure3 --forwards", "`--where`, `--forwards` and several names are for folders of runs, but got"),
        ("figure .", "a figure of curves must have 1 to 8 fine-tuning runs, but got 0; "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(cwd: Path, refused: Any, arguments: str, message: str) -> None:
    (cwd / "file").write_text("")
    assert message in refused(*arguments.split())


def test_a_table_is_a_frame_that_python_csv_and_parquet_get(zobench: Any, tmp_path: Path) -> None:
    (stored := tmp_path / "stored" / "epyc-2c-2ca1ff").mkdir(parents=True)
    for path in (Path(__file__).parents[2] / "results" / "published" / stored.name).glob("OPT-350M-*"):
        shutil.copy(path, stored)
    stored = stored.parent
    frame = artifacts.frame("zo2/table3", Store(stored).load(), "epyc-2c-2ca1ff")
    assert set(frame["source"]) == {"measured", "predicted", "paper"}
    ahead = frame[(frame["source"] == "predicted") & frame["value"].notna()]
    assert all((ahead["low"] < ahead["value"]) & (ahead["value"] < ahead["high"]))
    asked = ("table", "zo2/table3", "--results", str(stored), "--machine", "epyc-2c-2ca1ff")
    code, out, _ = zobench(*asked, "--format", "parquet", "--out", str(tmp_path / "t.parquet"))
    assert (code, out) == (0, "")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), frame)
    assert zobench(*asked, "--format", "csv")[1] == csv_of(frame)
    code, _, err = zobench(*asked, "--format", "parquet")
    assert (code, "add --out table.parquet" in err) == (2, True)
