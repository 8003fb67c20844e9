"""Verdicts on a paper: what its claims, tables and figures come to, by its values, by measurements and predictions."""

from __future__ import annotations

import html
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

from zobench.cost.published.evidence import CONTRADICTIONS
from zobench.recipes.reference import PAPERS, Reference
from zobench.report import artifacts, claims, forecasts
from zobench.report.cells import Grid
from zobench.report.claims import CheckedClaim, ClaimRatio
from zobench.report.render import grids
from zobench.report.table import Table
from zobench.result import Result


class ClaimOutcome(StrEnum):
    """The outcome of a paper's claim, from the best to the worst."""

    REPRODUCED = "reproduced"
    SHAPE = "shape holds"
    UNSHOWN = "not shown"
    CONTRADICTED = "contradicted"


MEANINGS = {
    ClaimOutcome.REPRODUCED: "measured in all rows that the claim is about (and has values of in the paper), under "
    "the paper's conditions (model, dtype, batch, length; the hardware may be another), and within its bounds",
    ClaimOutcome.SHAPE: "measured in other sizes, dtypes or lengths, or in some of the rows, and within its bounds",
    ClaimOutcome.UNSHOWN: "not measured, or an interval reaches past a bound",
    ClaimOutcome.CONTRADICTED: "out of its bounds by the paper's own values, or by a measurement under the paper's "
    "conditions; or values that are at odds with one another or with physics",
}
_COLORS = dict(zip(ClaimOutcome, ("#2e7d32", "#5d8a1f", "#5f6368", "#b3261e"), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaim:
    """A claim, or a group of values that are judged together. ``evidence``: the numbers and where they are from."""

    text: str
    standing: ClaimOutcome
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedArtifact:
    """A table or figure ("zo2/table1") with its claims. ``remedy``: what would show what is not shown, "" if all is."""

    name: str
    title: str
    standing: ClaimOutcome
    evidence: str
    remedy: str
    claims: tuple[JudgedClaim, ...]


def verdicts(paper: str, results: Sequence[Result], reference: Reference) -> list[JudgedArtifact]:
    """Each table and figure of ``paper``, in reading order. Raises ``ValueError`` for one that is not in ``PAPERS``."""
    if paper not in PAPERS:
        raise ValueError(f"the paper must be one of {', '.join(PAPERS)}, but got {paper!r}; for example zo2")
    made: list[JudgedArtifact] = []
    by_runner: dict[str, list[JudgedClaim]] = {}
    for item in artifacts.load_all()[0]:
        if item.paper != paper:
            continue
        judged = []
        if isinstance(item, Table):
            judged = _claims_of(item, grids(item, results, None, reference, expected=False, foretold=False))
        by_runner.setdefault(item.runner, []).extend(judged)
        made.append(_of_artifact(item, judged, by_runner[item.runner] if item.runner else judged, reference))
    return made


def counts(judged: Iterable[JudgedClaim]) -> dict[ClaimOutcome, int]:
    """How many claims and groups of values have each standing."""
    number = Counter(claim.standing for claim in judged)
    return {standing: number[standing] for standing in ClaimOutcome}


def all_claims(items: Iterable[JudgedArtifact]) -> list[JudgedClaim]:
    """The claims of several tables and figures, each once."""
    return [claim for item in items for claim in item.claims]


def _of_artifact(
    item: artifacts.Recipe, measured_claims: Sequence[JudgedClaim], shared: Sequence[JudgedClaim], reference: Reference
) -> JudgedArtifact:
    """A table or figure stands as the weakest of its claims; without any, as the weakest of the ``shared`` claims,
    which are about cells of the same matrix."""
    judging = measured_claims or shared
    standing = max((claim.standing for claim in judging), key=list(ClaimOutcome).index, default=ClaimOutcome.UNSHOWN)
    evidence = summed(judging) or "no ratio is claimed of it that could be checked"
    if judging and not measured_claims:
        evidence = f"by the claims on the cells that it draws: {evidence}"
    unshown = standing is ClaimOutcome.UNSHOWN or any(claim.standing is ClaimOutcome.UNSHOWN for claim in judging)
    return JudgedArtifact(
        name=item.name, title=item.title, standing=standing, evidence=evidence,
        remedy=_remedy(item, reference) if unshown else "", claims=tuple(measured_claims),
    )  # fmt: skip


def _remedy(item: artifacts.Recipe, reference: Reference) -> str:
    """The command that measures as much as a machine can hold, and what the paper had."""
    paper, _, artifact = item.name.partition("/")
    if not item.runner:
        return f"it reports nothing that is measured; `zobench {'figure' if item.is_figure else 'table'} {item.name}`"
    cards = {row["gpu"] for row in reference.rows if (row["paper"], row["artifact"]) == (paper, artifact)} - {""}
    return f"`zobench reproduce {item.name}`" + (f"; the paper's GPU: {', '.join(sorted(cards))}" if cards else "")


def _claims_of(table: Table, filled: Sequence[tuple[str | None, Grid]]) -> list[JudgedClaim]:
    """The table's claims, then the groups of its values that contradict physics, or other values of the paper."""
    first = filled[0][1]
    checks = zip(
        claims.checked(table, first, claims.reported),
        claims.checked(table, forecasts.added(table, first), claims.predicted),
        strict=True,
    )
    by_machine = [grid for machine, grid in filled if machine is not None]
    measured = [claims.checked(table, grid, claims.measured) for grid in by_machine]
    elsewhere = [claims.checked(table, grid, claims.unlearned, extra=True) for grid in by_machine]
    judged = []
    for number, (paper, predicted) in enumerate(checks):
        ratios = [ratio for checked in measured for ratio in checked[number].ratios]
        others = [ratio for checked in elsewhere for ratio in checked[number].ratios]
        same = [ratio for ratio in ratios if not ratio.deviates]
        judged.append(judge(paper, same, [*(ratio for ratio in ratios if ratio.deviates), *others], predicted))
    for group in CONTRADICTIONS:
        if f"{group.paper}/{group.artifact}" == table.name:
            where = "; ".join(f"{key} {', '.join(values)}" for key, values in group.where.items())
            judged.append(
                JudgedClaim(text=f"the values of {where}", standing=ClaimOutcome.CONTRADICTED, evidence=group.reason)
            )
    return judged


def judge(
    paper: CheckedClaim, same: Sequence[ClaimRatio], other: Sequence[ClaimRatio], predicted: CheckedClaim
) -> JudgedClaim:
    """Returns the outcome of a claim by the ``paper``'s values, and by ratios measured under the ``same`` conditions
    and under ``other`` ones. What fails only under others contradicts nothing."""
    on_machine, elsewhere = _checked(paper, same, paper.expected), _checked(paper, other)
    parts = [f"measured: {on_machine.evidence}"] if same else []
    parts += [f"measured under other conditions: {elsewhere.evidence}"] if other else []
    evidence = "; ".join(parts) or "not measured"
    rows = {ratio.header for ratio in paper.ratios}  # without those where the paper itself ran out of memory
    is_whole = rows <= {ratio.header for ratio in same} if rows else on_machine.covered == paper.expected
    if paper.verdict == claims.FAILS:
        standing, evidence = ClaimOutcome.CONTRADICTED, f"by the paper's own values: {paper.evidence}; {evidence}"
    elif on_machine.verdict == claims.FAILS:
        standing = ClaimOutcome.CONTRADICTED
    elif is_whole and on_machine.verdict == claims.HOLDS:
        standing = ClaimOutcome.REPRODUCED
    elif (same or other) and {on_machine.verdict, elsewhere.verdict} <= {claims.HOLDS, claims.OPEN}:
        standing = ClaimOutcome.SHAPE
    else:
        standing, evidence = ClaimOutcome.UNSHOWN, f"{evidence}; {_forecast(predicted)}"
    return JudgedClaim(text=paper.claim.text, standing=standing, evidence=evidence)


def _forecast(predicted: CheckedClaim) -> str:
    """Returns the prediction of a claim in words."""
    if not predicted.ratios:
        return claims.UNTOLD
    low, high = min(ratio.low for ratio in predicted.ratios), max(ratio.high for ratio in predicted.ratios)
    error = f"with the predictions' errors {low:.2g} to {high:.2g}"
    return f"predicted: {predicted.verdict}, {predicted.range_text}, {error}"


def _checked(paper: CheckedClaim, ratios: Sequence[ClaimRatio], expected: int | None = None) -> CheckedClaim:
    """The paper's claim with other ``ratios``, of ``expected`` rows or columns; None: of those that they are in."""
    count = len({ratio.header for ratio in ratios}) if expected is None else expected
    return CheckedClaim(claim=paper.claim, ratios=tuple(ratios), expected=count)


def summed(judged: Iterable[JudgedClaim]) -> str:
    """``2 shape holds, 1 not shown``: the standings that any claim has."""
    return ", ".join(f"{number} {standing}" for standing, number in counts(judged).items() if number)


def as_json(paper: str, items: Sequence[JudgedArtifact]) -> str:
    """The verdicts with their counts, as JSON."""
    number = counts(all_claims(items))
    return json.dumps({"paper": paper, "counts": number, "artifacts": [asdict(item) for item in items]}, indent=1)


def as_markdown(paper: str, items: Sequence[JudgedArtifact]) -> str:
    """A section: the counts, and a row for each table and figure, with its claims below it."""
    lines = [f"## {PAPERS[paper]}: {summed(all_claims(items))}", ""]
    lines += ["| Where | What | Verdict | Evidence, and what would show it |", "|---|---|---|---|"]
    for item in items:
        evidence = "; ".join(filter(None, (item.evidence, item.remedy)))
        lines.append(_row(f"**{item.name.partition('/')[2]}**", item.title, item.standing, evidence))
        lines += [_row("", claim.text, claim.standing, claim.evidence) for claim in item.claims]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_badge(paper: str, items: Sequence[JudgedArtifact]) -> str:
    """A badge (SVG): the paper's name, and how many of its claims have each standing."""
    every = all_claims(items)
    parts = [(PAPERS[paper], "#3c4043")]
    parts += [(f"{number} {standing}", _COLORS[standing]) for standing, number in counts(every).items() if number]
    shapes, x = list[str](), 0
    for text, color in parts:
        width = 12 + round(7 * len(text))
        shapes.append(
            f'<rect x="{x}" width="{width}" height="20" fill="{color}"/>'
            f'<text x="{x + width / 2:g}" y="14" fill="#fff" text-anchor="middle" textLength="{width - 12}">'
            f"{html.escape(text)}</text>"
        )
        x += width
    title = html.escape(f"{PAPERS[paper]}: {summed(every)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="20" role="img" aria-label="{title}" '
        f'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"><title>{title}</title>{"".join(shapes)}</svg>\n'
    )


def as_text(paper: str, items: Sequence[JudgedArtifact], width: int) -> str:
    """A block for each table and figure, folded at ``width`` characters; then what the standings mean."""
    wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False, break_long_words=False)
    lines = wrap(f"{PAPERS[paper]}: {summed(all_claims(items))}")
    for item in items:
        lines += ["", *wrap(f"{item.name}  {item.standing.upper()}  {item.title}", subsequent_indent="  ")]
        if not item.claims:
            lines += wrap(item.evidence, initial_indent="  ", subsequent_indent="  ")
        for claim in item.claims:
            lines += wrap(f"{claim.standing:<13}{claim.text}", initial_indent="  ", subsequent_indent=" " * 15)
            lines += wrap(claim.evidence, initial_indent=" " * 15, subsequent_indent=" " * 15)
        lines += wrap(item.remedy.replace("`", ""), initial_indent="  > ", subsequent_indent="    ")
    lines.append("")
    for standing, meaning in MEANINGS.items():
        lines += wrap(f"{standing}: {meaning}.", subsequent_indent="  ")
    return "\n".join(lines) + "\n"
