"""The HTML report: everything of the book is in it, nothing in a result becomes markup, and it loads nothing."""

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pages import ATTACK, SVG, artifact, book, chart, entry, page, result, sheet
from zobench.report import artifacts, fits
from zobench.report import html as package
from zobench.report.chart import Chart, Event, Panel
from zobench.report.contents import ReportContents
from zobench.report.html import _short, embedded, machines, runs, status, write
from zobench.report.sheet import Sheet, without_blanks
from zobench.result import Facts, Outcome

"""What a result may say anywhere; a reader must see exactly this."""
FOLDER = Path(package.__file__).parent


class Page(HTMLParser):
    """What a browser would make of the text: elements with their attributes, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            (self.scripts if self._inside == "script" else self.styles)[-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.elements if attribute in attrs]


def texts(shown: Sheet) -> Iterator[str]:
    """Every piece of text of a sheet."""
    yield from (shown.source, shown.row_header, *shown.remarks, *shown.notes)
    for group in shown.groups:
        for part in (group.header, *group.columns, *(cell for row in group.body for cell in row)):
            yield from (part.text, part.detail)
    yield from (label.text for label in shown.rows)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_everything_of_the_book_is_on_the_page_without_any_script() -> None:
    shown = book()
    parsed = Page(page(shown))
    for part in (*shown.summary, *(each for one in shown.artifacts for each in one.sheets)):
        for text in texts(part):
            assert squeezed(text) in parsed.text
    for one in shown.artifacts:
        assert one.title in parsed.text
        assert f"zobench reproduce {one.name}" in parsed.text or status(one) == "measured"
    for text in ("A report", "bad.json", "opt-125m", "box-1"):
        assert text in parsed.text


def test_nothing_that_a_book_says_becomes_markup() -> None:
    run = result(
        "opt" + ATTACK,
        machine="box" + ATTACK,
        outcome=Outcome.FAILED,
        reason="why" + ATTACK,
        traceback="trace" + ATTACK,
        warnings=["warning" + ATTACK],
        environment=Facts(machine="box" + ATTACK, description=ATTACK, other={"key" + ATTACK: [{ATTACK: ATTACK}]}),
    )
    other = Facts(machine="box-2", other={"key": [{"a.b": "c"}]})
    harmless = Page(page(book((result(outcome=Outcome.FAILED, reason="why", environment=other), result("b")))))
    parsed = Page(page(book((run, result()), word=ATTACK)))
    assert [tag for tag, _ in parsed.elements if tag == "img"] == ["img"]  # the figure
    assert {tag for tag, _ in parsed.elements} == {tag for tag, _ in harmless.elements}
    assert len(parsed.scripts) == len(harmless.scripts)
    assert not [name for _, attrs in parsed.elements for name in attrs if name.startswith("on")]
    for start in (
        "A report", "Memory", "Speed", "Medians of five steps.", "A note.", "opt", "why", "bad.json: not JSON",
    ):  # fmt: skip
        assert squeezed(start + ATTACK) in parsed.text  # shown as it is
    assert json.loads(parsed.scripts[0]) == run.to_dict()


def test_links_lead_to_places_on_the_page_only() -> None:
    parsed = Page(page())
    places = parsed.values("id")
    assert len(places) == len(set(places))
    assert {"zo2/figure3", "zo2/table1", "own_table", "runs", "summary", "machines", "problems"} <= set(places)
    links = [link for link in parsed.values("href") if link != "data:,"]
    assert {link[0] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(places)
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parsed.values("src"))


def test_the_policy_allows_exactly_the_pages_own_script_and_style() -> None:
    parsed = Page(page())
    (policy,) = [
        attrs["content"] for _, attrs in parsed.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    (style,) = parsed.styles
    script = parsed.scripts[-1]

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert not parsed.values("style")  # the policy would drop them


def test_the_script_makes_no_markup_from_text_and_fetches_nothing() -> None:
    script = (FOLDER / "script.js").read_text()
    for word in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(", "http",
    ):  # fmt: skip
        assert word not in script.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in (FOLDER / "style.css").read_text()


def test_figures_are_images_that_carry_their_own_text() -> None:
    ((_, image),) = [element for element in Page(page()).elements if element[0] == "img"]
    assert base64.b64decode((image["src"] or "").split(",")[1]).decode() == SVG
    assert (image["width"], image["height"]) == ("457", "280")  # 244.8 x 150 points, at 1.4 of the printed size
    assert image["alt"] == "Memory of four methods. measured on box-1. X: does not fit."


def test_an_empty_book_says_so() -> None:
    text = Page(write(ReportContents(title="Empty", summary=(), artifacts=(), results=()), {})).text
    assert "Nothing has been measured yet." in text
    assert "No run was found." in text


MEASURED = sheet(("A", entry("1"), entry("2")))
REPORTED = sheet(("A", entry("1", "reported"), entry("2", "reported")))
PREDICTED = sheet(("A", entry("~1", "predicted"), entry("~-", "predicted")))
BLANK = sheet(("A", entry("·", "blank"), entry("·", "blank")))
TIMELINE = Chart(
    name="t", kind="timeline", title="t", source="s",
    panels=(Panel(events=(Event(lane="upload", kind="upload", block=0, start=0, end=1),)),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sheets": (MEASURED,)}, "measured"),
        ({"sheets": (MEASURED, REPORTED)}, "partly"),
        ({"sheets": (BLANK, REPORTED)}, "not measured"),
        ({"sheets": (MEASURED, BLANK), "paper": ""}, "partly"),
        ({"sheets": (REPORTED,), "runner": ""}, "not a measurement"),
        ({"sheets": (REPORTED,), "charts": (chart(),)}, "not measured"),
        ({"sheets": (), "charts": (chart(),)}, "measured"),
        ({"sheets": (), "charts": (chart(source="predicted"),)}, "predicted"),
        ({"sheets": (PREDICTED, REPORTED)}, "predicted"),
        ({"sheets": (MEASURED, PREDICTED, REPORTED)}, "partly"),
        ({"sheets": (), "charts": (TIMELINE,)}, "measured"),
    ],
)
def test_the_badge_says_how_much_was_measured(changes: dict[str, Any], expected: str) -> None:
    shown = artifact(**changes)
    assert status(shown) == expected
    badges = [attrs for tag, attrs in Page(write(book(artifacts=(shown,)), {})).elements if tag == "span"]
    assert f"badge {expected.replace(' ', '-')}" in [attrs.get("class") for attrs in badges]


def test_the_parts_are_measured_predicted_reported_and_all_but_the_first_are_folded() -> None:
    names = {"zo2/a1": MEASURED, "zo2/a2": PREDICTED, "zo2/a3": REPORTED}
    shown = [artifact(name, sheets=(one,)) for name, one in reversed(names.items())]
    text = write(book(artifacts=tuple(shown)), {})
    order = [text.index(f'<article id="{name}"') for name in names]
    folds = [text.rindex('<section id="', 0, place) for place in order]
    assert order == sorted(order)
    assert [text[fold + 13 : text.index('"', fold + 13)] for fold in folds] == ["measured", "predicted", "reported"]
    assert [text[fold:place].count('class="part"') for fold, place in zip(folds, order, strict=True)] == [0, 1, 1]


def test_a_figure_is_drawn_once_and_what_has_nothing_to_draw_says_why() -> None:
    one, empty = chart(), Chart(name="e", kind="bars", title="t", source="", panels=(Panel(message="Nothing yet."),))
    first, again = (artifact(f"zo2/figure{i}", kind="figure", charts=(one,)) for i in (1, 2))
    text = write(book(artifacts=(first, again, artifact("zo2/figure3", charts=(empty,)))),
                 {"zo2/figure1": [SVG], "zo2/figure2": [SVG], "zo2/figure3": []})  # fmt: skip
    assert text.count("<img") == 1
    assert 'It draws what <a href="#zo2/figure1">zo2/figure1</a> draws.' in text
    assert "Nothing yet." in text


def test_columns_and_rows_without_any_value_are_named_and_not_shown() -> None:
    blank = entry("·", "blank")
    part = without_blanks(sheet(("A", entry("1"), blank), ("B", blank, blank)))
    assert [label.text for label in part.rows] == ["A"]
    assert [column.text for column in part.groups[0].columns] == ["MeZO (FP32)"]
    assert part.remarks[-1] == "Without any value, and not shown: B, ZO2 (FP32)."
    assert without_blanks(BLANK) is BLANK
    full = sheet(("A", entry("1"), entry("2")), ("B", blank, blank)).groups[0]
    first = sheet(("A", entry("1"), blank), ("B", blank, blank))
    both = dataclasses.replace(first, groups=(*first.groups, dataclasses.replace(full, header=entry("Memory"))))
    told = "Without any value, and not shown: B, ZO2 (FP32) (Throughput (tokens/s) ↑)."
    assert without_blanks(both).remarks[-1] == told


def test_names_in_the_contents_differ_in_their_first_twenty_letters() -> None:
    recipes, _ = artifacts.load_all()
    names = [_short(artifact(one.name, paper=one.paper, kind="figure" if one.is_figure else "table"))
             for one in recipes]  # fmt: skip
    assert len({name[:20] for name in names}) == len(names)
    assert fits.TITLE.startswith(_short(fits.artifact()))


def test_a_run_is_listed_with_exact_numbers_to_sort_by() -> None:
    (run,) = runs([result("OPT-13B", engine="offload", seed=3)])
    assert (run.result.spec.model, run.engine, run.dtype, run.settings) == (
        "OPT-13B",
        "offload/disk",
        "fp32",
        "b1 s64 seed=3",
    )
    assert run.numbers == (("171", repr(64 / 0.375)), ("0.375", "0.375"), ("200", "209715200"), ("", ""))


def test_a_run_that_did_not_end_well_has_no_numbers_but_a_reason() -> None:
    (run,) = runs([result(outcome=Outcome.OOM, reason="device memory")])
    assert set(run.numbers) == {("", "")}


def test_a_cell_of_several_processes_says_that_its_numbers_are_medians_and_its_traces_the_firsts() -> None:
    slow, fast = (replace(result(), samples={"step_seconds": [seconds] * 3}) for seconds in (0.5, 0.3))
    repeated = replace(slow, repeats=(slow, fast))
    (run,) = runs([repeated])
    assert (run.numbers[1][0], run.settings.endswith("median of 2 processes")) == ("0.400", True)
    shown = Page(page(book((repeated,)))).text
    assert "Of one that ran in several processes each number is the median; its traces and its JSON are the" in shown
    assert "several processes" not in Page(page(book((slow,)))).text


def test_the_same_spec_on_two_machines_has_two_places() -> None:
    first, second = runs([result(), result(machine="box-2")])
    assert first.name == f"run-{first.result.spec.hash}"
    assert second.name == f"run-{first.result.spec.hash}-2"


@given(st.text(), st.text())
def test_embedded_json_is_exact_and_cannot_end_its_element(reason: str, key: str) -> None:
    run = result(reason=reason, environment=Facts.from_dict({"machine": "box-1", key: reason + ATTACK}))
    text = embedded(run)
    assert not set(text) & set("<>&\u2028\u2029\n")
    assert json.loads(text) == run.to_dict()


def test_machines_are_counted() -> None:
    (machine,) = machines([result(), result(outcome=Outcome.OOM)])
    assert (machine.name, machine.about, machine.outcomes) == ("box-1", "Box, 2 cores", (("ok", 1), ("oom", 1)))


def test_columns_of_numbers_are_flush_right_and_others_are_not() -> None:
    shown = sheet(
        ("A", entry("1,200"), entry("holds")),
        ("B", entry("-", "failure"), entry("5")),
        ("C", entry("x0.5"), entry("—")),
    )
    text = write(book(summary=(shown,), artifacts=()), {})
    cells = re.findall(r'<td class="(num|text) (?:value|failure)[^"]*">', text)
    assert cells == ["num", "text"] * 3


def test_a_table_without_rows_still_has_its_heading() -> None:
    assert "ZO2 (FP32)" in Page(write(book(summary=(sheet(),), artifacts=()), {})).text


def test_the_list_has_a_column_of_accuracies_where_any_run_has_one() -> None:
    seen = {"step": 4, "loss": 0.5, "accuracy": 0.6875, "count": 16}
    evaluated = dataclasses.replace(result(machine="box-2"), evaluation={"start": seen, "best": seen, "test": seen})
    with_it, without = ([evaluated, result()], [result()])
    assert [run.numbers[-1] for run in runs(with_it)] == [("68.8", "0.6875"), ("", "")]
    pages = [write(ReportContents(title="t", summary=(), artifacts=(), results=tuple(some), problems=()), {})
             for some in (with_it, without)]  # fmt: skip
    assert ["Test accuracy (%)" in page for page in pages] == [True, False]
    assert '<td class="num" data-sort="0.6875">68.8</td>' in pages[0]
