"""A method, models and a metric of a package outside the repository are planned, swept and shown like zobench's own."""

import csv
import io
from pathlib import Path

import pytest

from tests.support.plugin import commands, package, results, table

MATRIX = """
title = "Guests"
[base]
seq_len = 16
steps = 3
lr = 1e-4
[axes]
model = ["my-llama", "my-qwen"]
engine = ["resident", "offload"]
method = ["zo-sgd-sign", "scaled-sign"]
"""


@pytest.mark.slow
def test_what_a_package_gives_is_planned_swept_and_shown_in_a_table(tmp_path: Path) -> None:
    module = package(tmp_path)
    (tmp_path / "guests.toml").write_text(MATRIX)
    metric = 'name = "loss_spread"\nheader = "Spread"\nunit = "mnats"\nformat = ".3f"'
    (tmp_path / "mine.toml").write_text(table(metric, '["my-llama", "my-qwen"]', 'method = "scaled-sign"'))
    sweep, asked = "sweep guests.toml --device cpu", "table mine.toml --format"
    (_, plan, _), *outputs, (_, shown, _), (_, as_csv, _) = commands(
        tmp_path, f"{sweep} --dry-run", sweep, "run --model my-QWEN --device cpu --set seq_len=8 --set steps=1",
        f"{asked} markdown", f"{asked} csv",
    )  # fmt: skip
    assert [code for code, *_ in outputs] == [0, 0], outputs
    assert "8 of 8 cells to run" in plan
    fields = ("model", "engine", "method")
    series = {
        tuple(result["spec"][field] for field in fields): result["samples"]["loss"] for result in results(tmp_path)
    }
    assert len(series) == 8
    for model in ("my-llama", "my-qwen"):  # MeZO and ZO2 are one computation, and the package's sign is the built-in
        assert len({tuple(losses) for key, losses in series.items() if key[0] == model}) == 1
    ours = [losses for key, losses in sorted(series.items()) if key[1:] == ("resident", "scaled-sign")]
    spreads = [max(losses) - min(losses) for losses in ours]
    rows = list(csv.DictReader(io.StringIO(as_csv)))
    assert [(row["metric"], row["unit"]) for row in rows] == [("loss_spread", "nats")] * 2
    assert [float(row["value"]) for row in rows] == spreads
    assert "Spread: the largest loss of a step less the smallest." in shown
    assert all(f"{spread * 1e3:.3f}" in shown for spread in spreads)
    module.write_text("import nowhere_at_all\n")
    ((_, listed, _),) = commands(tmp_path, "results")  # which names no metric of a package
    assert listed.startswith("4 runs, ")  # of the built-in sign
