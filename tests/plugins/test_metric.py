"""A metric from a package outside the repository is shown in a table and a figure's data, when they name it."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest

from tests.support.plugin import install, last_line, results, zobench

SOURCE = """
from zobench.result.quantity import Quantity


def spread(result):
    losses = [loss for loss in result.samples.get("loss", []) if loss is not None]
    return max(losses) - min(losses) if losses else None


MINE = Quantity(name="loss_spread", key="loss_spread", value=spread, base_unit="nats", units={"nats": 1, "mnats": 1e-3},
                about="Spread: the largest loss of a step less the smallest.")
"""
TABLE = """
title = "Guest"
[where]
seq_len = 16
[rows.product]
model = ["opt-tiny"]
[[columns]]
header = "MeZO"
where = { engine = "resident" }
[[metrics]]
name = "loss_spread"
header = "Spread"
unit = "mnats"
format = ".3f"
better = "lower"
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, a table that names its metric, and one run."""
    folder = tmp_path_factory.mktemp("swept")
    install(folder, "guest", "zobench.metrics", {"loss_spread": "MINE"}, SOURCE)
    (folder / "mine.toml").write_text(TABLE)
    (folder / "one.toml").write_text('title = "One"\n[base]\nmodel = "opt-tiny"\nseq_len = 16\nsteps = 3\n')
    zobench(folder, "sweep", "one.toml", "--device", "cpu")
    return folder


@pytest.fixture
def folder(swept: Path, tmp_path: Path) -> Path:
    """A copy, to change."""
    return shutil.copytree(swept, tmp_path / "copy")


def test_a_metric_of_a_package_is_a_column_of_a_table_in_its_units(folder: Path) -> None:
    (found,) = results(folder)
    losses = found["samples"]["loss"]
    spread = max(losses) - min(losses)
    shown = zobench(folder, "table", "mine.toml", "--format", "markdown").stdout
    assert "Spread: the largest loss of a step less the smallest." in shown
    rows = list(csv.DictReader(io.StringIO(zobench(folder, "table", "mine.toml", "--format", "csv").stdout)))
    assert [(row["metric"], row["unit"]) for row in rows] == [("loss_spread", "nats")]
    assert float(rows[0]["value"]) == spread
    assert f"{spread * 1e3:.3f}" in shown


def test_a_metric_that_returned_none_is_said_so(folder: Path) -> None:
    (folder / "guest.py").write_text(SOURCE.replace('"loss", []', '"no_such_samples", []'))
    shown = zobench(folder, "table", "mine.toml", "--format", "markdown").stdout
    assert "n/a means that the metric loss\\_spread of guest 1.0 returned None for that run." in shown


def test_a_metric_is_listed_with_its_package_and_imported_only_where_it_is_named(folder: Path) -> None:
    (folder / "guest.py").write_text("import nowhere_at_all\n")
    rows = [line.split() for line in zobench(folder, "list", "metrics").stdout.splitlines()]
    assert ["loss_spread", "from", "guest", "1.0"] in rows
    assert "1 run" in zobench(folder, "results").stdout
    done = zobench(folder, "table", "mine.toml", code=2)
    assert "the metric 'loss_spread' of the package guest must be importable, but ModuleNotFound" in last_line(done)
