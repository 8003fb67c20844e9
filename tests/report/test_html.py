"""The HTML report: everything of the book is in it, nothing in a result becomes markup, and it loads nothing."""

import base64
import hashlib
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pages import ATTACK, artifact, book, chart, entry, page, result, sheet
from zobench.report.chart import Chart, Event, Panel
from zobench.report.html import embedded, runs, status, write
from zobench.report.sheet import Sheet
from zobench.result import Facts, Outcome


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
    for part in (*shown.summary, *(each for item in shown.artifacts for each in item.sheets)):
        for text in texts(part):
            assert squeezed(text) in parsed.text
    for item in shown.artifacts:
        assert item.title in parsed.text
        assert f"zobench reproduce {item.name}" in parsed.text or status(item) == "measured"
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
        ({"sheets": (REPORTED,), "runner": ""}, "not a measurement"),
        ({"sheets": (REPORTED,), "charts": (chart(),)}, "not measured"),
        ({"sheets": (), "charts": (chart(source="predicted"),)}, "predicted"),
        ({"sheets": (MEASURED, PREDICTED, REPORTED)}, "partly"),
        ({"sheets": (), "charts": (TIMELINE,)}, "measured"),
    ],
)
def test_the_badge_says_how_much_was_measured(changes: dict[str, Any], expected: str) -> None:
    shown = artifact(**changes)
    assert status(shown) == expected
    badges = [attrs for tag, attrs in Page(write(book(artifacts=(shown,)), {})).elements if tag == "span"]
    assert f"badge {expected.replace(' ', '-')}" in [attrs.get("class") for attrs in badges]


def test_the_same_spec_on_two_machines_has_two_places() -> None:
    first, second = runs([result(), result(machine="box-2")])
    assert first.name == f"run-{first.result.spec.hash}"
    assert second.name == f"run-{first.result.spec.hash}-2"


@settings(max_examples=30, deadline=None)
@given(st.text(), st.text())
def test_embedded_json_is_exact_and_cannot_end_its_element(reason: str, key: str) -> None:
    run = result(reason=reason, environment=Facts.from_dict({"machine": "box-1", key: reason + ATTACK}))
    text = embedded(run)
    assert not set(text) & set("<>&\u2028\u2029\n")
    assert json.loads(text) == run.to_dict()
