"""The report: everything written, the same bytes each time, nothing outside, and one bad thing never hides the rest."""

import re
from pathlib import Path

import pytest

from tests.support import files
from tests.support.tables import EVIL, MIB, RESULTS, TINY, result, written
from zobench.report import publish


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
    files.written(few / "tables" / "evil.toml", evil)
    before = {path for path in few.parent.rglob("*") if "out" not in path.parts}
    rendered = written([result("../../x" + EVIL, machine="box")], few / "deep" / "out")
    assert {path for path in few.parent.rglob("*") if "out" not in path.parts} - before == {few / "deep"}
    assert all(".." not in name for name in rendered)


def test_a_broken_recipe_and_an_unreadable_result_are_told_and_the_rest_is_rendered(few: Path) -> None:
    files.written(few / "tables" / "broken.toml", "title = 3\n")
    vague = TINY.replace('"t1"', '"t9"').replace('method = "mezo", dtype = "fp32"', 'artifact = "t1"')
    (few / "tables" / "vague.toml").write_text(vague)
    book = publish.publish(RESULTS, ("results/x.json: not JSON",), few / "out", lambda *_: None)
    assert book.problems[0] == "results/x.json: not JSON"
    assert any(text.startswith("not rendered: tables/broken: broken.toml: ") for text in book.problems)
    assert any(text.startswith("not rendered: p/t9: one paper value must match") for text in book.problems)
    page = (few / "out" / "index.html").read_text()
    assert "results/x.json: not JSON" in page
    assert (few / "out" / "tables" / "p" / "t1.md").is_file()


def test_a_figure_that_cannot_be_drawn_leaves_its_table(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> list[Path]:
        raise ValueError("at most 8 different series")

    monkeypatch.setattr(publish.figures, "save", refused)
    book = publish.publish(RESULTS, (), few / "out", lambda *_: None)
    assert "not drawn: p/figure1: at most 8 different series" in book.problems
    assert {path.name for path in (few / "out" / "figures" / "p").glob("figure1.*")} >= {"figure1.csv", "figure1.md"}


def test_names_of_any_script_are_numbers_of_their_own_and_one_key_for_two_leaves_the_page(few: Path) -> None:
    for first, second, problems in (("甲", "乙", ()), ("M 1", "M-1", ("not written: numbers.tex: two numbers of ",))):
        text = TINY.replace('"t1"', '"t9"').replace('["M1", "M2"]', f'["{first}", "{second}"]')
        files.written(few / "tables" / "script.toml", text)
        runs = [result(first), result(second, memory=9 * MIB)]
        book = publish.publish(runs, (), few / "out", lambda *_: None)
        assert all(map(str.startswith, book.problems, problems)), book.problems
        assert len(book.problems) == len(problems)
        assert (few / "out" / "index.html").is_file()
        assert (few / "out" / "numbers.tex").is_file() == (not problems)


@pytest.mark.slow
def test_a_machine_has_a_figure_of_its_own_and_figures_of_an_earlier_report_are_removed(few: Path) -> None:
    """Files of others stay."""
    before = written([result("M1", machine="a"), result("M1", machine="b.1")], few / "out")
    assert {"figures/p/figure1-a.svg", "figures/p/figure1-b.1.svg"} <= set(before)
    names = ("figure11.svg", "figure1.txt", "figure1-my-notes.md", "figure1-mine.svg", "figure1-mine.pdf")
    others = [few / "out" / "figures" / "p" / name for name in names]
    for path in others:
        path.touch()
    left = written([result("M1", machine="a")], few / "out")
    assert "figures/p/figure1.svg" in left
    assert not any(re.search(r"-(a|b\.1)\.\w+$", name) for name in left)
    assert all(path.is_file() for path in others)
