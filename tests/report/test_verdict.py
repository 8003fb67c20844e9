"""Verdicts: a word for each claim that follows from where it was measured, and every claim of the papers once."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.papers import REFERENCE
from tests.support.published import published
from tests.support.tables import CLAIMS, PAPER, TINY, table_from
from zobench.cost.published.evidence import CONTRADICTIONS
from zobench.recipes.reference import PAPERS
from zobench.report import artifacts, claims, verdict
from zobench.report.claims import CheckedClaim, ClaimRatio
from zobench.report.render import grids
from zobench.report.table import Claim, Table
from zobench.report.verdict import ClaimOutcome, JudgedArtifact


def ratio(low: float, high: float, *, header: str = "OPT-1.3B", deviates: bool = False) -> ClaimRatio:
    return ClaimRatio(header=header, value=(low + high) / 2, low=low, high=high, deviates=deviates)


IN, OUT, ACROSS = ratio(0.4, 0.5), ratio(1.2, 1.3), ratio(0.9, 1.1)
LARGER = ratio(0.4, 0.5, header="OPT-2.7B")


@pytest.mark.parametrize(
    ("same", "other", "paper", "standing"),
    [
        ([IN, LARGER], [], IN, ClaimOutcome.REPRODUCED),
        ([IN, LARGER] * 2, [], IN, ClaimOutcome.REPRODUCED),  # on two machines
        ([IN], [], IN, ClaimOutcome.SHAPE),  # of two rows
        ([IN, IN], [], IN, ClaimOutcome.SHAPE),  # on two machines
        ([], [IN], IN, ClaimOutcome.SHAPE),
        ([IN, LARGER], [OUT], IN, ClaimOutcome.REPRODUCED),  # another size falls short: the paper did not speak of it
        ([], [OUT], IN, ClaimOutcome.UNSHOWN),
        ([IN], [OUT], IN, ClaimOutcome.UNSHOWN),
        ([], [], IN, ClaimOutcome.UNSHOWN),
        ([ACROSS, IN], [], IN, ClaimOutcome.UNSHOWN),
        ([OUT, IN], [IN], IN, ClaimOutcome.CONTRADICTED),
        ([IN, IN], [], OUT, ClaimOutcome.CONTRADICTED),  # by the paper's own values
    ],
)
def test_a_claims_word_follows_from_where_it_was_measured(same, other, paper, standing, tmp_path) -> None:
    claim = Claim(text="half", metric="gpu_memory", ratio=("B", "A"), at_least=None, at_most=1)
    table = table_from(tmp_path, TINY + CLAIMS)
    reported = CheckedClaim(claim=claim, table=table, ratios=(paper,), expected=2)
    judged = verdict.judge(reported, same, other, dataclasses.replace(reported, ratios=()))
    assert judged.standing is standing
    assert ("not predicted" in judged.evidence) == (standing is ClaimOutcome.UNSHOWN)


@pytest.fixture(scope="module")
def all_papers() -> dict[str, list[JudgedArtifact]]:
    return {paper: verdict.verdicts(paper, published(), REFERENCE) for paper in PAPERS}


def test_every_claim_of_the_papers_is_listed_once_and_says_what_would_show_it(all_papers) -> None:
    stated = Counter(
        (item.name, claim.text)
        for item in artifacts.load_all()[0]
        if isinstance(item, Table) and item.paper
        for claim in item.claims
    )
    items = [item for paper in PAPERS for item in all_papers[paper]]
    groups = Counter((f"{group.paper}/{group.artifact}") for group in CONTRADICTIONS)
    listed = Counter((item.name, claim.text) for item in items for claim in item.claims)
    assert {key: number for key, number in listed.items() if key in stated} == stated
    assert Counter(name for name, _ in (listed - stated).elements()) == groups
    for item in items:
        unshown = any(claim.standing is ClaimOutcome.UNSHOWN for claim in item.claims)
        assert item.evidence
        assert item.remedy or not (unshown or item.standing is ClaimOutcome.UNSHOWN)
        assert all(claim.evidence for claim in item.claims)


def test_claims_that_the_papers_own_values_miss_are_contradicted(all_papers: dict[str, list[JudgedArtifact]]) -> None:
    missed = 0
    for item in artifacts.load_all()[0]:
        if not isinstance(item, Table) or not item.paper:
            continue
        grid = grids(item, [], None, REFERENCE)[0][1]
        (artifact,) = [judged for judged in all_papers[item.paper] if judged.name == item.name]
        standings = {claim.text: claim.standing for claim in artifact.claims}
        for checked in claims.checked(item, grid, claims.reported):
            if checked.verdict == claims.FAILS:
                assert standings[checked.claim.text] is ClaimOutcome.CONTRADICTED
                missed += 1
    assert missed == 12  # as the comparison of the papers with themselves counts them


def test_a_table_is_as_good_as_its_weakest_claim(all_papers: dict[str, list[JudgedArtifact]]) -> None:
    order = (ClaimOutcome.REPRODUCED, ClaimOutcome.SHAPE, ClaimOutcome.UNSHOWN, ClaimOutcome.CONTRADICTED)
    tables = {item.name for item in artifacts.load_all()[0] if not item.is_figure}
    judged = [item for items in all_papers.values() for item in items if item.name in tables and item.claims]
    assert judged
    for table in judged:
        assert order.index(table.standing) == max(order.index(claim.standing) for claim in table.claims), table.name


def test_json_page_and_badge_count_alike(all_papers: dict[str, list[JudgedArtifact]]) -> None:
    items = all_papers["zo2"]
    number = verdict.counts(verdict.all_claims(items))
    assert sum(number.values()) == sum(len(item.claims) for item in items)
    assert json.loads(verdict.as_json("zo2", items))["counts"] == number
    summed = ", ".join(f"{count} {standing}" for standing, count in number.items() if count)
    page = verdict.as_markdown("zo2", items).splitlines()
    assert page[0] == f"## ZO2: {summed}"
    assert page[2].startswith("| Where | What | Verdict |")
    assert len(page) == 4 + len(items) + sum(number.values())
    badge = ElementTree.fromstring(verdict.as_badge("zo2", items))
    assert badge[0].text == f"ZO2: {summed}"
    assert int(badge.attrib["width"]) == sum(int(part.attrib["width"]) for part in badge if part.tag.endswith("rect"))


def test_an_extra_row_is_another_size(tmp_path: Path) -> None:
    table = table_from(tmp_path, TINY + CLAIMS)
    extra = dataclasses.replace(table, rows=tuple(dataclasses.replace(row, extra=True) for row in table.rows))
    grid = grids(table, [], None, PAPER)[0][1]
    assert all(not checked.ratios for checked in claims.checked(table, grid, claims.unlearned, extra=True)), (
        "no row of its is extra"
    )
    assert not any(claims.checked(extra, grids(extra, [], None, PAPER)[0][1], claims.reported)[0].ratios)


def test_an_unknown_paper_is_told_the_five(all_papers: dict[str, list[JudgedArtifact]]) -> None:
    with pytest.raises(ValueError, match=r"the paper must be one of zo-offloading-neurips24, .* but got 'zo3'"):
        verdict.verdicts("zo3", [], REFERENCE)
