"""The page *Coverage of the papers*: every element of the papers has a row, and every name in a row exists."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import module_at
from tests.support.own_model import packages
from tests.support.tables import published
from zobench import models, recipes
from zobench.cost import seconds
from zobench.cost.budget import price
from zobench.recipes import campaign
from zobench.recipes.reference import PAPERS, Reference
from zobench.report import artifacts
from zobench.report.artifacts import load_all
from zobench.result import Outcome, Result
from zobench.runspec import METHODS
from zobench.runspec.registry import resolve

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = Reference.load()
NUMBERED = ("algorithm", "equation", "table", "figure")


elements = module_at(DOCS / "elements.py")
ROWS = elements.rows()


def test_every_element_of_the_papers_has_one_row_in_the_papers_order() -> None:
    numbers = {paper: [row.at for row in ROWS if row.paper == paper] for paper in PAPERS}
    assert numbers == elements.contents()
    assert [len(of) - len(set(of)) for of in numbers.values()] == [0] * 5
    for paper, of in numbers.items():
        for kind in NUMBERED:  # none is left out between the first and the last
            numbered = [int(at.split()[1]) for at in of if re.fullmatch(rf"{kind} \d+", at)]
            assert numbered == list(range(1, len(numbered) + 1)), (paper, kind)


def test_tables_and_figures_with_numbers_have_recipes_and_recipes_have_rows() -> None:
    made = {item.name: item for item in load_all()[0] if item.paper}
    assert {row.recipe for row in ROWS if row.recipe} == set(made)
    assert {f"{row['paper']}/{row['artifact']}" for row in REFERENCE.rows} <= set(made)
    assert sum(item.is_figure for item in made.values()) == 11
    assert sum(not item.is_figure for item in made.values()) == 30
    assert sum(row.drawing for row in ROWS) == 13
    assert {item.runner for item in made.values()} - {""} <= set(recipes.names("runners"))
    assert {name for row in ROWS for name in row.shows} <= set(made)


def test_code_and_pages_that_rows_name_are_there() -> None:
    assert all(resolve(f"zobench.{place}") is not None for row in ROWS for place in row.code)
    for page in {row.page for row in ROWS if row.page}:
        name, _, anchor = page.partition("#")
        headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.M)
        anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, page


def test_a_row_says_where_its_element_is_or_why_it_is_not() -> None:
    for row in ROWS:
        places = [row.text, row.drawing, bool(row.code or row.recipe), bool(row.why) and not (row.code or row.recipe)]
        assert sum(places) == 1, row
        assert not row.drawing or row.page, row
        assert row.recipe or row.what, row
        assert not row.code or row.page, row
        assert "partly" not in f"{row.what} {row.why}".lower() or row.why, row


def test_the_page_counts_what_was_published() -> None:
    results = published()
    text = elements.text(results, [], REFERENCE)
    hybrid = {result.spec.hash for result in results if result.spec.method == "hybrid" and result.spec.seq_len == 64}
    shown = elements.shown(results, [], REFERENCE)
    assert hybrid & shown["zo-bench/table7"].cells
    ran = {result.spec.hash for result in results if result.spec.method == "hybrid" and result.outcome == "ok"}
    [row] = [line for line in text.splitlines() if line.startswith("| method hybrid |")]
    assert f"| {len(ran)} cells |" in row
    empty = [row for row in ROWS if row.recipe and not (shown[row.recipe].cells or shown[row.recipe].is_facts)]
    assert [row.recipe for row in empty if not row.why] == []
    assert "{include} generated/coverage.inc" in (DOCS / "coverage.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[campaign.PartOn]]:
    """Of the campaign real-accuracy, with small models in the place of its packages'."""
    with pytest.MonkeyPatch.context() as patch:
        packages(tmp_path_factory.mktemp("packages"), patch)
        yield campaign.load(recipes.find("campaigns", "real-accuracy")).on("cpu", price)


def test_each_reported_accuracy_has_a_counterpart_on_a_real_model_or_a_sentence_why_not(parts) -> None:
    reported = sum(row["metric"] == "accuracy" for row in REFERENCE.rows)
    none = elements.counterparts(REFERENCE, [])
    assert sum(counts["no model"] for counts in none.values()) == reported == 184
    assert {row.recipe for row in ROWS if row.lacks} == set(none)
    text = elements.text([], [], REFERENCE)
    assert f"Of the {reported} that the papers report, " in text
    assert all(row.lacks in text for row in ROWS)
    real = [cell for on in parts for cell in on.cells if "SmolLM2" in cell.model_path]
    made = elements.counterparts(REFERENCE, real)  # once the campaign has run
    assert {place for counts in made.values() for place in counts} == {"another pretrained model"}
    tables = {name: artifacts.load(name) for name in made}
    unseen = [
        row for row in REFERENCE.rows if row["metric"] == "accuracy" and not any(
            elements.is_alike(cell, row) and artifacts.shows(tables[f"{row['paper']}/{row['artifact']}"], cell)
            for cell in real
        )
    ]  # fmt: skip
    assert unseen == []
    named = re.findall(r"papers-[a-z0-9-]+", " ".join(row.lacks for row in ROWS))
    assert set(named) == {on.part.name for on in parts if on.part.name.startswith("papers-")}
    ran = [Result(spec=cell, outcome=Outcome.OK, evaluation={"start": {}}) for cell in real]
    text = elements.text(ran, [], REFERENCE)
    assert not any(row.lacks and row.lacks in text for row in ROWS)


def test_runs_of_a_papers_table_take_as_many_steps_and_with_several_directions_as_many_forwards(parts) -> None:
    papers = {on.part.name: on.cells for on in parts if on.part.name.startswith("papers-")}
    several = defaultdict[tuple[str, str], set[float]](set)
    for name, cells in papers.items():
        for cell in cells:
            if METHODS.get(cell.method).pairs(cell, models.of(cell).layers) > 1:
                several[name, cell.task].add(seconds.looks(cell) * cell.steps)
            else:
                assert cell.steps == 400, cell.label
    assert several == {("papers-blocks", task): {2496} for task in ("sst2", "winogrande")}
