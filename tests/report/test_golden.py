"""One of every kind as it must look, kept in files: a table, bars, lines, a heat map, a timeline, and the summary.

To accept a change that was looked at: ``ZOBENCH_GOLDEN=write pytest tests/report/test_golden.py``.
"""

import os
import re
from importlib import metadata
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
TEXTS = ("tables/p/t1.md", "tables/p/t1.tex", "tables/p/t1.csv", "summary.md", "comparison.csv", "numbers.tex")
PICTURES = ("figures/p/figure1.svg", "figures/lines.svg", "figures/p/figure2.svg", "figures/p/f5.svg")


def check(names: tuple[str, ...], files: dict[str, bytes]) -> None:
    for name in names:
        kept = GOLDEN / name.replace("/", "-")
        if os.environ.get("ZOBENCH_GOLDEN") == "write":
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(files[name])
        assert files[name].decode() == kept.read_text(encoding="utf-8"), name


def test_texts_are_what_they_were(files: dict[str, bytes]) -> None:
    check(TEXTS, files)


def test_pictures_are_what_they_were(files: dict[str, bytes]) -> None:
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()
    pinned = re.search(r"^matplotlib==(\S+)$", constraints, re.MULTILINE)
    assert pinned is not None
    if metadata.version("matplotlib") != pinned[1]:
        pytest.skip(f"the pictures are those of matplotlib {pinned[1]}, here is {metadata.version('matplotlib')}")
    check(PICTURES, files)
