"""Verdicts: a word for each claim that follows from where it was measured, and every claim of the papers once."""

import dataclasses
from collections import Counter

import pytest

from tests.support.papers import REFERENCE
from tests.support.tables import published
from zobench.cost.published.evidence import CONTRADICTIONS
from zobench.recipes.reference import PAPERS
from zobench.report import artifacts, verdict
from zobench.report.claims import CheckedClaim, ClaimRatio
from zobench.report.table import Claim, Table
from zobench.report.verdict import ClaimOutcome, JudgedArtifact


def ratio(low: float, high: float, *, header: str = "OPT-1.3B", deviates: bool = False) -> ClaimRatio:
    return ClaimRatio(header=header, value=(low + high) / 2, low=low, high=high, deviates=deviates)


IN, OUT, ACROSS = ratio(0.4, 0.5), ratio(1.2, 1.3), ratio(0.9, 1.1)
LARGER = ratio(0.4, 0.5, header="OPT-2.7B")
BOTH = [IN, LARGER]


@pytest.mark.parametrize(
    ("same", "other", "paper", "standing"),
    [
        ([LARGER], [], [LARGER], ClaimOutcome.REPRODUCED),  # in the other row the paper itself ran out of memory
        ([IN], [], [LARGER], ClaimOutcome.SHAPE),
        ([IN], [], [], ClaimOutcome.SHAPE),
        ([IN, LARGER], [], BOTH, ClaimOutcome.REPRODUCED),
        ([IN], [], BOTH, ClaimOutcome.SHAPE),  # of two rows
        ([IN, IN], [], BOTH, ClaimOutcome.SHAPE),  # on two machines
        ([], [IN], BOTH, ClaimOutcome.SHAPE),
        ([IN, LARGER], [OUT], BOTH, ClaimOutcome.REPRODUCED),  # another size falls short: the paper did not speak of it
        ([IN], [OUT], BOTH, ClaimOutcome.UNSHOWN),
        ([], [], BOTH, ClaimOutcome.UNSHOWN),
        ([ACROSS, IN], [], BOTH, ClaimOutcome.UNSHOWN),
        ([OUT, IN], [IN], BOTH, ClaimOutcome.CONTRADICTED),
        ([IN, IN], [], [OUT], ClaimOutcome.CONTRADICTED),  # by the paper's own values
    ],
)
def test_a_claims_word_follows_from_where_it_was_measured(same, other, paper, standing) -> None:
    claim = Claim(text="half", metric="gpu_memory", ratio=("B", "A"), at_least=None, at_most=1)
    reported = CheckedClaim(claim=claim, ratios=tuple(paper), expected=2)
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


def test_a_table_is_as_good_as_its_weakest_claim(all_papers: dict[str, list[JudgedArtifact]]) -> None:
    order = (ClaimOutcome.REPRODUCED, ClaimOutcome.SHAPE, ClaimOutcome.UNSHOWN, ClaimOutcome.CONTRADICTED)
    tables = {item.name for item in artifacts.load_all()[0] if not item.is_figure}
    judged = [item for items in all_papers.values() for item in items if item.name in tables and item.claims]
    assert judged
    for table in judged:
        assert order.index(table.standing) == max(order.index(claim.standing) for claim in table.claims), table.name
