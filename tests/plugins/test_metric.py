"""A metric from a package outside the repository is shown in a table and a figure's data, when they name it."""

import csv
import io
from pathlib import Path

import pytest

from tests.support.plugin import commands, package, results, table


@pytest.mark.slow
def test_a_metric_of_a_package_is_a_column_of_a_table_in_its_units(tmp_path: Path) -> None:
    module = package(tmp_path)
    metric = 'name = "loss_spread"\nheader = "Spread"\nunit = "mnats"\nformat = ".3f"'
    (tmp_path / "mine.toml").write_text(table(metric))
    (tmp_path / "one.toml").write_text('title = "One"\n[base]\nmodel = "opt-tiny"\nseq_len = 16\nsteps = 3\n')
    asked = "table mine.toml --format"
    _, (_, shown, _), (_, told, _) = commands(
        tmp_path, "sweep one.toml --device cpu", f"{asked} markdown", f"{asked} csv"
    )
    (found,) = results(tmp_path)
    losses = found["samples"]["loss"]
    spread = max(losses) - min(losses)
    assert "Spread: the largest loss of a step less the smallest." in shown
    rows = list(csv.DictReader(io.StringIO(told)))
    assert [(row["metric"], row["unit"]) for row in rows] == [("loss_spread", "nats")]
    assert float(rows[0]["value"]) == spread
    assert f"{spread * 1e3:.3f}" in shown
    module.write_text(module.read_text().replace('"loss", []', '"no_such_samples", []'))
    ((_, shown, _),) = commands(tmp_path, f"{asked} markdown")
    assert "n/a means that the metric loss\\_spread of my-zo 1.0 returned None for that run." in shown
    module.write_text("import nowhere_at_all\n")
    ((_, listed, _),) = commands(tmp_path, "results")  # which names no metric of a package
    assert "1 run" in listed
