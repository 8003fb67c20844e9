"""What a fine-tuning run stores is what tables, listings and figures read: a real run, from the store to the page."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.small_task import spec_of
from zobench.cli.console import numbers
from zobench.cli.listing import show_runs
from zobench.recipes.reference import Reference
from zobench.report.cells import fill
from zobench.report.choice import dev_loss
from zobench.report.recorded import curve
from zobench.report.table import load_table
from zobench.result import Result
from zobench.runspec.registries import METRICS
from zobench.store import Store
from zobench.training import finetune as run

TABLE = """
title = "t"
columns = [ { header = "SST-2", where = { task = "sst2" } } ]
metrics = [ { name = "accuracy", header = "Accuracy (%)", format = ".1f", better = "higher" } ]
[where]
batch_size = 4
seq_len = 16
train_size = 24
dev_size = 12
test_size = 16
[rows.product]
model = ["opt-tiny"]
"""


@pytest.fixture(scope="module")
def stored(weights_path: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A real run, as the store gives it back."""
    folder = tmp_path_factory.mktemp("stored")
    result = run(spec_of(weights_path), folder=folder / "run", data_dir=data_dir)
    store = Store(folder / "results")
    store.save(result.with_facts(machine="box"))
    (loaded,) = store.load()
    assert store.problems == []
    return loaded


def test_every_reader_of_a_run_finds_what_it_wrote(stored: Result) -> None:
    found = stored.evaluation
    read = {name: METRICS.get(name).of(stored) for name in ("accuracy", "dev_accuracy", "start_accuracy")}
    assert read == {
        "accuracy": found["test"]["accuracy"],
        "dev_accuracy": found["best"]["accuracy"],
        "start_accuracy": found["start"]["accuracy"],
    }
    assert dev_loss(stored) == found["best"]["loss"]
    assert list(curve(stored)) == [0, 4, 8, 10]
    assert curve(stored)[0] == (found["start"]["loss"], found["start"]["accuracy"])
    assert curve(stored)[found["best"]["step"]] == (found["best"]["loss"], found["best"]["accuracy"])


def test_a_table_of_accuracies_shows_it_with_what_a_reader_needs(stored: Result, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(TABLE)
    cell = fill(load_table(tmp_path / "t.toml"), [stored], Reference(()))[0][0][0]
    assert cell.value == stored.evaluation["test"]["accuracy"]
    assert cell.caveats[0] == "Of 16 test examples; always giving the commonest answer is right in 50.0%."
    told = io.StringIO()
    show_runs(Console(file=told, width=200), [stored])
    assert "test %" in told.getvalue()
    assert f"{100 * (cell.value or 0):.1f}" in told.getvalue()


def test_the_line_of_a_finished_run_tells_its_accuracy_and_no_tokens(stored: Result) -> None:
    """Its examples are shorter than the longest that they may be, so tokens are not counted."""
    assert "tokens/s" not in numbers(stored)
    assert numbers(stored).startswith(f"{stored.evaluation['test']['accuracy']:.1%} of the test right, ")
