"""Verdicts: a word for each claim that follows from where it was measured, and every claim of the papers once."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.papers import REFERENCE
from tests.support.tables import CLAIMS, PAPER, TINY, table_from
from zobench import recipes
from zobench.recipes.reference import PAPERS
from zobench.report import artifacts, claims, verdict
from zobench.report.claims import CheckedClaim, Ratio
from zobench.report.render import grids
from zobench.report.table import Claim, Table
from zobench.store import Store


def ratio(low: float, high: float, *, deviates: bool = False) -> Ratio:
    return Ratio(header="OPT-1.3B", value=(low + high) / 2, low=low, high=high, deviates=deviates)


IN, OUT, ACROSS = ratio(0.4, 0.5), ratio(1.2, 1.3), ratio(0.9, 1.1)


@pytest.mark.parametrize(
    ("same", "other", "paper", "word"),
    [
        ([IN, IN], [], IN, verdict.REPRODUCED),
        ([IN], [], IN, verdict.SHAPE),  # of two rows
        ([], [IN], IN, verdict.SHAPE),
        ([IN, IN], [OUT], IN, verdict.REPRODUCED),  # another size falls short: the paper did not speak of it
        ([], [OUT], IN, verdict.UNSHOWN),
        ([IN], [OUT], IN, verdict.UNSHOWN),
        ([], [], IN, verdict.UNSHOWN),
        ([ACROSS, IN], [], IN, verdict.UNSHOWN),
        ([OUT, IN], [IN], IN, verdict.CONTRADICTED),
        ([IN, IN], [], OUT, verdict.CONTRADICTED),  # by the paper's own values
    ],
)
def test_a_claims_word_follows_from_where_it_was_measured(
    same: list[Ratio], other: list[Ratio], paper: Ratio, word: str, tmp_path: Path
) -> None:
    claim = Claim(text="half", metric="gpu_memory", ratio=("B", "A"), at_least=None, at_most=1, only=())
    table = table_from(tmp_path, TINY + CLAIMS)
    held = CheckedClaim(claim=claim, table=table, ratios=(paper,), expected=2)
    assert verdict._judged(claim, table, same, other, held)[0] == word


@pytest.fixture(scope="module")
def all_papers() -> dict[str, list[verdict.PaperVerdict]]:
    results = Store(recipes.folder("published")).load()
    return {paper: verdict.verdicts(paper, results, REFERENCE) for paper in PAPERS}


def test_every_claim_of_the_papers_is_listed_once_and_says_what_would_show_it(
    all_papers: dict[str, list[verdict.PaperVerdict]],
) -> None:
    stated = Counter(
        (item.name, claim.text)
        for item in artifacts.load_all()[0]
        if isinstance(item, Table) and item.paper
        for claim in item.claims
    )
    items = [item for paper in PAPERS for item in all_papers[paper]]
    assert Counter((item.artifact, item.text) for item in items if item.kind == "claim") == stated
    assert all(item.command for item in items if item.verdict == verdict.UNSHOWN)
    assert all(item.evidence and item.verdict in verdict.WORDS for item in items)


def test_claims_that_the_papers_own_values_miss_are_contradicted(
    all_papers: dict[str, list[verdict.PaperVerdict]],
) -> None:
    for item in artifacts.load_all()[0]:
        if not isinstance(item, Table) or not item.paper:
            continue
        grid = grids(item, [], None, REFERENCE)[0][1]
        words = {line.text: line.verdict for line in all_papers[item.paper] if line.artifact == item.name}
        for checked in claims.reported(item, grid):
            assert (checked.verdict != claims.FAILS) or words[checked.claim.text] == verdict.CONTRADICTED


def test_a_table_is_as_good_as_its_weakest_claim(all_papers: dict[str, list[verdict.PaperVerdict]]) -> None:
    rank = {verdict.REPRODUCED: 0, verdict.SHAPE: 1, verdict.UNSHOWN: 2, verdict.CONTRADICTED: 3}
    for items in all_papers.values():
        for table in (item for item in items if item.kind == "table"):
            details = [rank[line.verdict] for line in items if line.artifact == table.artifact and line != table]
            assert rank[table.verdict] == max(details, default=rank[verdict.UNSHOWN]), table.artifact


def test_json_page_and_badge_count_alike(all_papers: dict[str, list[verdict.PaperVerdict]]) -> None:
    items = all_papers["zo2"]
    number = verdict.counts(items)
    assert json.loads(verdict.as_json("zo2", items))["counts"] == number
    summed = ", ".join(f"{count} {word}" for word, count in number.items() if count)
    assert summed in verdict.as_markdown("zo2", items).splitlines()[0]
    badge = ElementTree.fromstring(verdict.as_badge("zo2", items))
    assert badge[0].text == f"ZO2: {summed}"
    assert int(badge.attrib["width"]) == sum(int(part.attrib["width"]) for part in badge if part.tag.endswith("rect"))


def test_an_extra_row_is_another_size(tmp_path: Path) -> None:
    table = table_from(tmp_path, TINY + CLAIMS)
    extra = dataclasses.replace(table, rows=tuple(dataclasses.replace(row, extra=True) for row in table.rows))
    grid = grids(table, [], None, PAPER)[0][1]
    assert all(not checked.ratios for checked in claims.elsewhere(table, grid)), "no row of its is extra"
    assert not any(claims.reported(extra, grids(extra, [], None, PAPER)[0][1])[0].ratios)


def test_an_unknown_paper_is_told_the_five(all_papers: dict[str, list[verdict.PaperVerdict]]) -> None:
    with pytest.raises(ValueError, match=r"the paper must be one of zo-offloading-neurips24, .* but got 'zo3'"):
        verdict.verdicts("zo3", [], REFERENCE)
