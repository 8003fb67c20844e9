"""A task from a package outside the repository: a model is fine-tuned on it, and it is predicted and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.plugin import SWEEP, install, last_line, python, results, zobench
from zobench import models
from zobench.models.weights import RandomWeights, materialise

SOURCE = """
from zobench.data.tasks.task import Task, words


def rows(name, part, data_dir):
    lines = (data_dir / f"{part}.txt").read_text().splitlines()
    return f"{name} {part}", ((f"{part}:{n}", {"text": text, "label": n % 2}) for n, text in enumerate(lines))


MINE = Task(name="colours", texts=("text",), labels={0: 0, 1: 1}, names=("cold", "warm"),
            form=words(lambda row: row["text"] + " is", "cold", "warm"), rows=rows, usual_tokens=8, longest_tokens=8)
"""
WORDS = ("<unk>", "<pad>", "</s>", "blue", "red", "is", "cold", "warm", "very")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The package, its task's files, and weights of opt-tiny with a tokenizer of a few words."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    install(tmp_path, "guest", "zobench.tasks", {"colours": "MINE"}, SOURCE)
    (tmp_path / "data").mkdir()
    for part, count in (("train", 20), ("validation", 8)):
        (tmp_path / "data" / f"{part}.txt").write_text("very blue\nvery red\n" * count)
    model = models.build("opt-tiny", "fp32")
    materialise(model, RandomWeights(model, 0), "cpu")
    model.save_pretrained(tmp_path / "weights")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", bos_token="</s>", eos_token="</s>"
    ).save_pretrained(tmp_path / "weights")
    return tmp_path


SIZES = ("train_size=24", "dev_size=12", "test_size=16", "batch_size=4", "lr=1e-3")
RUN = ("finetune", "--model", "opt-tiny", "--task", "colours", "--data-dir", "data", "--weights-path", "weights",
       "--device", "cpu", "--steps", "2", *(f"--set={change}" for change in SIZES))  # fmt: skip


def test_a_model_is_fine_tuned_on_a_task_of_a_package(folder: Path) -> None:
    done = zobench(folder, *RUN)
    assert "colours: 24 train, 12 dev, 16 test examples, from colours train and colours validation" in done.stderr
    (result,) = results(folder)
    assert (result["spec"]["task"], result["outcome"]) == ("colours", "ok")
    facts = json.loads(json.dumps(result["evaluation"]))
    assert facts["test"]["count"] == 16
    assert facts["majority"]["test"] == 0.5
    listed = zobench(folder, "results", "--where", "task=colours").stdout
    assert "colours" in listed


def test_a_task_is_listed_with_its_package_without_being_imported(folder: Path) -> None:
    (folder / "guest.py").write_text("raise RuntimeError('imported')\n")
    rows = [line.split() for line in zobench(folder, "list", "tasks").stdout.splitlines()]
    assert ["colours", "from", "guest", "1.0"] in rows


def test_a_task_that_fails_or_has_no_such_form_is_one_line(folder: Path) -> None:
    done = zobench(folder, *RUN, "--set", "aligned=false", code=2)
    assert "`aligned=false` needs task=sst2 or rte, but got task=colours" in last_line(done)
    (folder / "guest.py").write_text("import nowhere_at_all\n")
    done = zobench(folder, *RUN, code=2)
    assert "the task 'colours' of the package guest must be importable, but ModuleNotFoundError" in last_line(done)


MATRIX = """
title = "Colours"
[base]
model = "opt-tiny"
task = "colours"
weights = "pretrained"
weights_path = "weights"
train_size = 24
dev_size = 12
test_size = 16
batch_size = 4
seq_len = 32
steps = 2
[axes]
method = ["zo-sgd", "fo-sgd"]
"""
TABLE = """
title = "Colours"
[where]
task = "colours"
weights = "pretrained"
weights_path = "weights"
train_size = 24
dev_size = 12
test_size = 16
batch_size = 4
seq_len = 32
[rows.product]
method = ["zo-sgd", "fo-sgd"]
[[columns]]
header = "Accuracy"
[[metrics]]
name = "accuracy"
header = "Accuracy (%)"
format = ".1f"
better = "higher"
"""


@pytest.mark.slow
def test_a_task_of_a_package_is_planned_swept_and_shown_in_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(folder / "data"))
    (folder / "sweep.toml").write_text(MATRIX)
    (folder / "table.toml").write_text(TABLE)
    plan = zobench(folder, "sweep", "sweep.toml", "--device", "cpu", "--dry-run").stdout
    assert "2 of 2 cells to run" in plan
    assert "(predicted)" in plan
    python(folder, "-P", "-c", SWEEP, "sweep.toml")
    accuracies = {one["spec"]["method"]: one["evaluation"]["test"]["accuracy"] for one in results(folder)}
    shown = zobench(folder, "table", "table.toml", "--format", "markdown").stdout
    for method, accuracy in accuracies.items():
        (row,) = [line for line in shown.splitlines() if line.startswith(f"| {method} ")]
        assert f"{100 * accuracy:.1f}" in row
