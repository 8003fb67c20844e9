"""A source tree with one recipe of each kind."""

import csv
import functools
from pathlib import Path

import pytest

from tests.support import files as files_of_tests
from tests.support.tables import BARS, LINES, PAPER, RESULTS, TIMELINE, TINY, table_from, written
from zobench import recipes
from zobench.recipes.reference import COLUMNS
from zobench.report import Table, figures

OF_TABLE_1 = "[reference]\nartifact = 't1'\n"
DRAWN, WRITTEN = functools.cache(figures.draw), functools.cache(figures._bytes)
"""Each chart is drawn, and written in a format, once: that this gives the same bytes each time is tested apart."""


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with one recipe of each kind, and an empty current folder."""
    return source_tree(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a report of ``RESULTS`` on these recipes."""
    with pytest.MonkeyPatch.context() as patch:
        return written(RESULTS, source_tree(tmp_path_factory.mktemp("published"), patch) / "out")


def source_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the recipes into ``folder``, and an empty current folder, which it returns, beside them."""
    texts = {
        "tables/tiny.toml": TINY,
        "plots/bars.toml": BARS.replace('artifact = "t1"', 'artifact = "figure1"') + OF_TABLE_1,
        "plots/lines.toml": LINES,
        "plots/map.toml": BARS.replace('"bars"', '"heatmap"').replace('"t1"', '"figure2"') + OF_TABLE_1,
        "plots/timeline.toml": TIMELINE,
    }
    for name, text in texts.items():
        files_of_tests.written(folder / "source" / name, text)
    (folder / "source" / "results" / "paper").mkdir(parents=True)
    with open(folder / "source" / "results" / "paper" / "reference.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(PAPER.rows)
    (folder / "here").mkdir()
    monkeypatch.setattr(recipes, "_PACKAGE", folder / "source" / "zobench")
    monkeypatch.setattr(figures, "draw", DRAWN)
    monkeypatch.setattr(figures, "_bytes", WRITTEN)
    monkeypatch.chdir(folder / "here")
    return folder / "here"


@pytest.fixture
def tiny(tmp_path: Path) -> Table:
    return table_from(tmp_path)
