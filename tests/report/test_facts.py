"""Facts: what a paper prints that was never measured, beside the registry that cells are built from."""

from pathlib import Path

from zobench.report import render
from zobench.report.artifacts import load_file
from zobench.report.facts import FACTS, FactTable

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
    loaded = load_file(path)
    assert isinstance(loaded, FactTable)
    return loaded


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
    known = {name: (fact("OPT-1.3B"), fact("Qwen3-1.7B")) for name, fact in FACTS.items()}
    assert known["layers"] == (24, 28)
    assert known["heads"] == (32, 16)
    assert known["width"] == (2048, 2048)
    assert known["ffn"] == (8192, 6144)
    assert known["positions"][0] == 2048
    assert known["parameters"][0] == 1_315_758_080
