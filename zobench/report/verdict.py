"""Verdicts on a paper: what its claims, tables and figures come to, by its values, by measurements and predictions."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from zobench.predict.published.evidence import CONTRADICTIONS
from zobench.recipes.reference import PAPERS, Reference
from zobench.report import artifacts, claims
from zobench.report.claims import CheckedClaim, Ratio
from zobench.report.compose import Grid
from zobench.report.render import grids
from zobench.report.table import Claim, Table
from zobench.result import Result

REPRODUCED, SHAPE, UNSHOWN, CONTRADICTED = WORDS = ("reproduced", "shape holds", "not shown", "contradicted")
MEANINGS = {
    REPRODUCED: "measured in all rows that the claim is about, under the paper's conditions, and within its bounds",
    SHAPE: "measured in other sizes, dtypes or lengths, or in some of the rows, and within its bounds",
    UNSHOWN: "not measured, or an interval reaches past a bound",
    CONTRADICTED: "the paper's own values are out of its bounds or at odds with one another, or a measurement "
    "under the paper's conditions is out of them",
}
_COLORS = {REPRODUCED: "#2e7d32", SHAPE: "#5d8a1f", UNSHOWN: "#5f6368", CONTRADICTED: "#b3261e"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperVerdict:
    """What one ``kind`` ("claim", "values", "table" or "figure") of ``artifact`` ("zo2/table1") comes to.

    ``verdict`` is one of ``WORDS``; ``evidence`` the numbers behind it and where they are from; ``command`` what would
    show it, "" where it is shown.
    """

    artifact: str
    kind: str
    text: str
    verdict: str
    evidence: str
    command: str = ""


def verdicts(paper: str, results: Sequence[Result], reference: Reference) -> list[PaperVerdict]:
    """Each table and figure of ``paper`` in reading order, after a table the claims and values that it is judged by.

    ``ValueError`` for a paper that is not one of ``PAPERS``.
    """
    if paper not in PAPERS:
        raise ValueError(f"the paper must be one of {', '.join(PAPERS)}, but got {paper!r}; zobench verdict zo2")
    items = [item for item in artifacts.load_all()[0] if item.paper == paper]
    made: list[PaperVerdict] = []
    by_runner: dict[str, list[PaperVerdict]] = {}
    for item in items:
        table, details = artifacts.laid_out(item), list[PaperVerdict]()
        if table is not None:
            filled = grids(table, results, None, reference)
            details = [_of_claim(claim, table, filled) for claim in range(len(table.claims))]
            details += _of_values(table)
            by_runner.setdefault(item.runner, []).extend(details)
        shared = details or by_runner.get(item.runner, []) if item.runner else details
        made += [_of_artifact(item, shared, own=bool(details)), *details]
    return made


def counts(items: Iterable[PaperVerdict]) -> dict[str, int]:
    """How many claims (and groups of values) have each verdict; tables and figures follow from them."""
    number = Counter(item.verdict for item in items if item.kind in ("claim", "values"))
    return {word: number[word] for word in WORDS}


def _of_artifact(item: artifacts.Recipe, details: Sequence[PaperVerdict], *, own: bool) -> PaperVerdict:
    """The verdict on a table by its claims, on a figure by those of the tables of the same matrix."""
    kind = "figure" if item.is_figure else "table"
    words = {detail.verdict for detail in details}
    word = next((word for word in (CONTRADICTED, UNSHOWN, SHAPE) if word in words), REPRODUCED if words else UNSHOWN)
    evidence = ", ".join(f"{number} {name}" for name, number in counts(details).items() if number)
    if not evidence:
        evidence = "no ratio that could be checked is claimed of it"
    elif not own:
        evidence = f"by the claims on the cells that it draws: {evidence}"
    command = f"zobench reproduce {item.name}" if word == UNSHOWN and item.runner else ""
    if word == UNSHOWN and not command:
        command = f"zobench {'figure' if item.is_figure else 'table'} {item.name} shows its values; nothing is measured"
    return PaperVerdict(
        artifact=item.name, kind=kind, text=item.title, verdict=word, evidence=evidence, command=command
    )


def _of_values(table: Table) -> Iterator[PaperVerdict]:
    """Groups of values that contradict physics, or other values of the paper."""
    for known in CONTRADICTIONS:
        if f"{known.paper}/{known.artifact}" == table.name:
            place = "; ".join(f"{key} {', '.join(values)}" for key, values in known.where.items())
            yield PaperVerdict(
                artifact=table.name, kind="values", text=f"the values of {place}", verdict=CONTRADICTED,
                evidence=known.reason,
            )  # fmt: skip


def _of_claim(number: int, table: Table, filled: Sequence[tuple[str | None, Grid]]) -> PaperVerdict:
    """The verdict on the table's claim ``number``, from the paper's values, then from every machine's."""
    claim, first = table.claims[number], filled[0][1]
    paper = claims.reported(table, first)[number]
    same, other = list[Ratio](), list[Ratio]()
    for machine, grid in filled:
        if machine is not None:
            for ratio in claims.measured(table, grid)[number].ratios:
                (other if ratio.deviates else same).append(ratio)
            other += claims.elsewhere(table, grid)[number].ratios
    word, evidence = _judged(claim, table, same, other, paper)
    if word == UNSHOWN:
        ahead = claims.predicted(table, first)[number]
        evidence += f"; predicted: {ahead.verdict}, {ahead.told}" if ahead.ratios else f"; {claims.UNTOLD}"
    return PaperVerdict(
        artifact=table.name, kind="claim", text=claim.text, verdict=word, evidence=evidence,
        command=f"zobench reproduce {table.name}" if word == UNSHOWN else "",
    )  # fmt: skip


def _judged(
    claim: Claim, table: Table, same: Sequence[Ratio], other: Sequence[Ratio], paper: CheckedClaim
) -> tuple[str, str]:
    """The verdict, and its evidence. What fails only under other conditions contradicts nothing."""

    def of(ratios: Sequence[Ratio], expected: int) -> CheckedClaim:
        return CheckedClaim(claim=claim, table=table, ratios=tuple(ratios), expected=expected)

    here, elsewhere = of(same, paper.expected), of(other, len(other))
    if paper.verdict == claims.FAILS:
        return CONTRADICTED, f"by the paper's own values: {paper.told}"
    if here.verdict == claims.FAILS:
        return CONTRADICTED, f"measured: {here.told}"
    parts = [f"measured: {here.told}"] if same else []
    parts += [f"measured under other conditions: {elsewhere.told}"] if other else []
    evidence = "; ".join(parts) or "not measured"
    if len(same) == paper.expected and here.verdict == claims.HOLDS:
        return REPRODUCED, evidence
    if (same or other) and all(part.verdict in (claims.HOLDS, claims.OPEN) for part in (here, elsewhere)):
        return SHAPE, evidence
    return UNSHOWN, evidence


def as_json(paper: str, items: Sequence[PaperVerdict]) -> str:
    """The verdicts with their counts, as JSON."""
    return json.dumps({"paper": paper, "counts": counts(items), "verdicts": [asdict(item) for item in items]}, indent=1)


def as_markdown(paper: str, items: Sequence[PaperVerdict]) -> str:
    """A page: the counts, what the words mean, and a row for each claim, group of values, table and figure."""
    lines = [f"# {PAPERS[paper]}: {_summed(items)}", ""]
    lines += [*(f"- **{word}**: {meaning}." for word, meaning in MEANINGS.items()), ""]
    lines += ["| Where | What | PaperVerdict | Evidence, and what would show it |", "|---|---|---|---|"]
    for item in items:
        where = f"**{item.artifact.split('/')[1]}**" if item.kind in ("table", "figure") else ""
        command = f". `{item.command}`" if item.command.startswith("zobench reproduce") else _also(item.command)
        cells = (where, item.text, item.verdict, item.evidence + command)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _also(text: str) -> str:
    return f"; {text}" if text else ""


def _summed(items: Sequence[PaperVerdict]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts(items).items() if number) or "no claims"


def as_badge(paper: str, items: Sequence[PaperVerdict]) -> str:
    """A badge (SVG): the paper's name, and how many of its claims have each verdict."""
    parts = [(PAPERS[paper], "#3c4043")]
    parts += [(f"{number} {word}", _COLORS[word]) for word, number in counts(items).items() if number]
    shapes, x = list[str](), 0
    for text, color in parts:
        width = 12 + round(6.4 * len(text))
        shapes.append(
            f'<rect x="{x}" width="{width}" height="20" fill="{color}"/>'
            f'<text x="{x + width / 2:g}" y="14" fill="#fff" text-anchor="middle" textLength="{width - 12}">'
            f"{html.escape(text)}</text>"
        )
        x += width
    title = html.escape(f"{PAPERS[paper]}: {_summed(items)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="20" role="img" aria-label="{title}" '
        f'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"><title>{title}</title>{"".join(shapes)}</svg>\n'
    )
