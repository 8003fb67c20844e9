"""The report: everything written, the same bytes each time, nothing outside, and one bad thing never hides the rest."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.published import RESULTS, written
from tests.support.tables import EVIL, PAPER, TINY, result
from zobench.recipes.reference import Reference
from zobench.report import artifacts, publish
from zobench.report.formats import latex
from zobench.report.render import grids

OWN = {'paper = "p"\n': "", 'artifact = "t1"\n': ""}


def test_every_artifact_is_written_in_every_format(files: dict[str, bytes]) -> None:
    assert {name for name in files if "/" not in name} == {"index.html", "summary.md", "comparison.csv", "numbers.tex"}
    assert {f"tables/p/t1.{form}" for form in ("md", "tex", "csv")} <= set(files)
    for name in ("p/figure1", "p/figure2", "lines", "p/f5"):
        assert {f"figures/{name}.{form}" for form in ("png", "svg", "pdf", "csv")} <= set(files), name
    assert files["figures/p/figure1.png"].startswith(b"\x89PNG")
    assert files["figures/p/figure1.pdf"].startswith(b"%PDF")
    assert b"a. naive,upload,upload,0,0.0,1.0" in files["figures/p/f5.csv"]


def test_rendering_twice_gives_the_same_bytes_in_any_order_of_results(files: dict[str, bytes], few: Path) -> None:
    assert written(RESULTS[::-1], few / "two") == files


def test_nothing_is_written_outside_whatever_a_recipe_or_a_result_is_called(few: Path) -> None:
    evil = TINY.replace('paper = "p"', 'paper = "../../../evil"').replace('artifact = "t1"', 'artifact = "/etc/x"')
    (few / "tables").mkdir()
    (few / "tables" / "evil.toml").write_text(evil)
    before = {path for path in few.parent.rglob("*") if "out" not in path.parts}
    files = written([result("../../x" + EVIL, machine="box")], few / "deep" / "out")
    assert {path for path in few.parent.rglob("*") if "out" not in path.parts} - before == {few / "deep"}
    assert all(".." not in name for name in files)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zo2/table1", "zo2/table1"),
        ("../../x", "_/x"),
        ("/etc/passwd", "etc/passwd"),
        ("a b/c:d", "a_b/c_d"),
        ("", "_"),
    ],
)
def test_names_become_plain_paths(name: str, expected: str) -> None:
    assert publish.clean(name) == expected


def test_a_broken_recipe_and_an_unreadable_result_are_told_and_the_rest_is_rendered(few: Path) -> None:
    (few / "tables").mkdir()
    (few / "tables" / "broken.toml").write_text("title = 3\n")
    vague = TINY.replace('"t1"', '"t9"').replace('method = "mezo", dtype = "fp32"', 'artifact = "t1"')
    (few / "tables" / "vague.toml").write_text(vague)
    book = publish.publish(RESULTS, ("results/x.json: not JSON",), few / "out", lambda *_: None)
    assert book.problems[0] == "results/x.json: not JSON"
    assert any(text.startswith("not rendered: tables/broken: broken.toml: ") for text in book.problems)
    assert any(text.startswith("not rendered: p/t9: one paper value must match") for text in book.problems)
    page = (few / "out" / "index.html").read_text()
    assert "results/x.json: not JSON" in page
    assert (few / "out" / "tables" / "p" / "t1.md").is_file()


def test_an_empty_store_renders_everything_and_says_so(few: Path) -> None:
    files = written([], few / "out")
    assert b"nothing measured yet" in files["summary.md"]
    assert b"Nothing measured yet" in files["index.html"]
    assert "figures/lines.svg" not in files


@pytest.mark.slow
def test_a_machine_has_a_figure_of_its_own_and_figures_of_an_earlier_report_are_removed(few: Path) -> None:
    """Files of others stay."""
    before = written([result("M1", machine="a"), result("M1", machine="b.1"), *RESULTS], few / "out")
    assert {"figures/p/figure1-a.svg", "figures/p/figure1-b.1.svg"} <= set(before)
    others = [few / "out" / "figures" / "p" / name for name in ("figure11.svg", "figure1.txt")]
    for path in others:
        path.touch()
    left = written([result("M1", machine="a")], few / "out")
    assert left.keys() - {path.relative_to(few / "out").as_posix() for path in others} == (
        written([result("M1", machine="a")], few / "new").keys()
    )
    assert all(path.is_file() for path in others)


def test_every_number_has_a_macro_that_prints_it_as_the_table_does(few: Path) -> None:
    table: Any = artifacts.load("tiny")
    text = latex.macros([(table, grids(table, RESULTS, None, Reference(PAPER.rows[:1])))])
    numbers = dict(re.findall(r"\\zobenchset\{(.*?)\}\{(.*)\}", text))
    assert numbers == {
        "p-t1-m1-a-gpu-memory-box": "200",
        "p-t1-m1-a-gpu-memory-paper": "400",
        "p-t1-m1-a-gpu-memory-box-ratio": "0.5",
        "p-t1-m1-a-throughput-box": "100",
    }


def test_two_numbers_never_share_a_macro(few: Path) -> None:
    table: Any = artifacts.load("tiny")
    twice = dataclasses.replace(table, columns=(table.columns[0], dataclasses.replace(table.columns[0], header="a.")))
    other = dataclasses.replace(twice, columns=(twice.columns[0], dataclasses.replace(twice.columns[0], header="A!")))
    results = [result("M1")]
    assert "p-t1-m1-a.-" in latex.macros([(twice, grids(twice, results, None, Reference(())))])
    same = latex.macros([(other, grids(other, results, None, Reference(())))])
    assert same.count("p-t1-m1-a-gpu-memory-box}") == 1  # equal numbers may


def test_artifacts_come_in_reading_order() -> None:
    recipes, problems = artifacts.load_all()
    assert problems == []
    names = [item.name for item in recipes if item.paper]
    assert names.index("zo-offloading-neurips24/table1") < names.index("zo2/table1") < names.index("zo-bench/table1")
    ours = [name for name in names if name.startswith("zo-bench/")]
    assert ours == [*(f"zo-bench/table{i}" for i in range(1, 9)), "zo-bench/tableA1", "zo-bench/tableA2",
                    *(f"zo-bench/figure{i}" for i in (1, 2, 3))]  # fmt: skip
