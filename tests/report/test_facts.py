"""Facts: what a paper prints that was never measured, beside the registry that cells are built from."""

import re
from pathlib import Path

import pytest

from zobench.cost.footprint import memory
from zobench.report import render
from zobench.report.artifacts import load_file
from zobench.report.facts import FACTS, FactTable
from zobench.runspec import RunSpec

TEXT = """
kind = "facts"
title = "Sizes"
paper = "p"
artifact = "t4"
columns = [ { header = "Layers", fact = "layers" }, { header = "Note" } ]
rows = [
  { header = "1.3B", model = "OPT-1.3B", paper = ["24", "a < b"] },
  { header = "other", paper = ["?", "c"] },
]
"""


def load(tmp_path: Path, text: str = TEXT) -> FactTable:
    path = tmp_path / "facts.toml"
    path.write_text(text)
    found = load_file(path)
    assert isinstance(found, FactTable)
    return found


def test_the_paper_and_the_registry_stand_side_by_side(tmp_path: Path) -> None:
    text = render(load(tmp_path), [], "markdown")
    paper, registry = text.split("### Sizes")[1:]
    assert "| Model | Layers | Note |" in paper
    assert "| 1.3B | 24 | a &lt; b |" in paper
    assert "| 1.3B | 24 | · |" in registry
    assert "| other | · | · |" in registry
    assert "****" not in text
    assert render(load(tmp_path), [], "csv").splitlines()[1] == "paper (p t4),1.3B,Layers,24"


def test_every_fact_is_known_of_opt_and_qwen3() -> None:
    told = {name: (fact("OPT-1.3B"), fact("Qwen3-1.7B")) for name, fact in FACTS.items()}
    assert told["layers"] == (24, 28)
    assert told["heads"] == (32, 16)
    assert told["width"] == (2048, 2048)
    assert told["ffn"] == (8192, 6144)
    assert told["positions"][0] == 2048
    assert told["parameters"][0] == 1_315_758_080


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('fact = "layers"', 'fact = "layer"', "unknown fact 'layer'; did you mean layers?"),
        ('["?", "c"]', '["?"]', "`paper` must have one text per column, but 'other' has 1"),
        ('model = "OPT-1.3B"', 'model = "OPT-1.3"', "OPT-1.3"),
        ('header = "Note"', 'header = "Layers"', "column headers must differ, but got Layers, Layers; rename one"),
        ('title = "Sizes"', "", "`title` must be given in the table, but is missing"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape("facts.toml: ")) as caught:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


PREDICTED = """
kind = "facts"
title = "Memory"
paper = "p"
artifact = "t5"
columns = [ { header = "Formula" } ]
rows = [
  { header = "ZO", paper = ["|x|"], run = { method = "zo-sgd" } },
  { header = "Adam", paper = ["3 |x|"], run = { method = "fo-adam", foreach = false } },
  { header = "Vanilla", paper = ["2 |x|"] },
]
[run]
model = "OPT-125M"
batch_size = 2
seq_len = 64
"""


def test_a_row_that_names_a_run_has_its_predicted_memory_beside_the_formula(tmp_path: Path) -> None:
    paper, predicted = render(load(tmp_path, PREDICTED), [], "markdown").split("### Memory")[1:]
    assert "| ZO | \\|x\\| |" in paper
    for header, run in (("ZO", {"method": "zo-sgd"}), ("Adam", {"method": "fo-adam", "foreach": False})):
        spec = RunSpec(model="OPT-125M", batch_size=2, seq_len=64, **run).resolve("cuda")
        assert f"| {header} | {memory(spec)[0] / 2**30:.1f} |" in predicted
    assert "| Vanilla | · |" in predicted
    assert "OPT-125M, batch 2, 64 tokens; 1 GB here is 1073741824 bytes." in predicted


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"zo-sgd"', '"zo-sdg"', "`method` must be one of zo-sgd, "),
        ("seq_len = 64", "seqlen = 64", "unknown key 'seqlen'; did you mean seq_len or seed?"),
        ('model = "OPT-125M"', "", "`model` must be given"),
    ],
)
def test_a_run_that_cannot_be_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape("facts.toml: ")) as caught:
        load(tmp_path, PREDICTED.replace(old, new, 1))
    assert message in str(caught.value)
