"""A program from a package outside the repository runs a cell, and its result says so; its task, method, models and
metric are planned, swept and shown like zobench's own."""

import csv
import io
from pathlib import Path

import pytest

from tests.support.files import written
from tests.support.plugin import commands, package, results, table
from tests.support.small_task import write_weights

FAILING = """


def measured(spec, world=None):
    if spec.seed == 7:
        raise RuntimeError("it could not\\nsleep")
    return 3
"""
RUN = "run --model opt-tiny --device cpu --set seq_len=16 --set steps=2"


def test_what_a_program_raises_is_the_cells_outcome_and_what_cannot_run_is_one_line(tmp_path: Path) -> None:
    package(tmp_path, FAILING)
    outputs = commands(
        tmp_path, f"{RUN} --set program=dry --set seed=7", f"{RUN} --set program=dry --set seed=8",
        f"{RUN} --set program=drry", "finetune --model opt-tiny --task sst2 --set program=dry",
    )  # fmt: skip
    lines = [(code, err.splitlines()[-1]) for code, _, err in outputs]
    assert lines[0][1].endswith("RuntimeError: it could not sleep")
    assert lines[1][1].endswith("the program 'dry' of my-zo 1.0 must return the Result of its spec, but did not")
    names = "zobench, mezo, zo-llm, zo2, dry"
    assert f"`program` must be one of {names}, but got 'drry'; did you mean dry?" in lines[2][1]
    assert "fine-tuning is zobench's own, but got program=dry of my-zo 1.0" in lines[3][1]
    assert [code for code, _ in lines] == [1, 1, 2, 2]


@pytest.mark.slow
def test_a_result_of_a_plug_in_that_was_edited_since_is_measured_again(tmp_path: Path) -> None:
    module, sweep = package(tmp_path), "sweep one.toml --device cpu"
    (tmp_path / "one.toml").write_text('title = "One"\n[base]\nmodel = "opt-tiny"\nseq_len = 16\nprogram = "dry"\n')
    seconds = 'name = "step_time"\nheader = "Step (s)"\nformat = ".2f"'
    (tmp_path / "table.toml").write_text(table(seconds, where='program = "dry"'))
    _, (_, plan, _) = commands(tmp_path, sweep, f"{sweep} --dry-run")
    (first,) = results(tmp_path)
    assert first["environment"]["plug_ins"]["program"].startswith("my-zo 1.0 ")
    assert "0 of 1 cells to run" in plan
    with module.open("a") as file:
        file.write("# edited\n")
    (_, plan, _), _, (_, shown, _) = commands(
        tmp_path, f"{sweep} --dry-run", sweep, "table table.toml --format markdown"
    )
    assert "1 of 1 cells to run" in plan
    assert "(predicted)" in plan
    assert "0.50" in shown
    (again,) = results(tmp_path)
    assert again["environment"]["plug_ins"] != first["environment"]["plug_ins"]


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


SIZES = ("train_size=24", "dev_size=12", "test_size=16", "batch_size=4", "lr=1e-3")
TUNE = " ".join(
    ("finetune --model opt-tiny --task colours --data-dir data --weights-path weights --device cpu --steps 2",
     *(f"--set {change}" for change in SIZES))
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The package, its task's files, and weights of opt-tiny with a tokenizer of a few words."""
    package(tmp_path)
    (tmp_path / "weights").mkdir()
    for part, count in (("train", 20), ("validation", 8)):
        written(tmp_path / "data" / f"{part}.txt", "very blue\nvery red\n" * count)
    write_weights(tmp_path / "weights")
    return tmp_path


def test_a_model_is_fine_tuned_on_a_task_of_a_package(folder: Path) -> None:
    (code, _, err), (_, listed, _), (refused, _, message) = commands(
        folder, TUNE, "results --where task=colours", f"{TUNE} --set aligned=false"
    )
    assert code == 0, err
    assert "colours: 24 train, 12 dev, 16 test examples, from colours train and colours validation" in err
    (result,) = results(folder)
    assert (result["spec"]["task"], result["outcome"]) == ("colours", "ok")
    facts = result["evaluation"]
    assert facts["test"]["count"] == 16
    assert facts["majority"]["test"] == 0.5
    assert "colours" in listed
    assert refused == 2
    assert "`aligned=false` needs task=sst2 or rte, but got task=colours" in message.splitlines()[-1]
