"""Claims: what the papers say of their tables, held against their own values, and what was measured and predicted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from zobench.report.cells import Grid, TableCell
from zobench.report.compose import paired
from zobench.report.forecast_text import ratio
from zobench.report.table import Claim, Table
from zobench.result import Result
from zobench.result.quantity import Interval, Quantity
from zobench.store import evidence

HOLDS, FAILS, UNSHOWN, OPEN = "holds", "does not hold", "not shown", "not measured"
UNTOLD = "not predicted"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRatio:
    """The claim's ratio in one row (or column). ``low`` and ``high``: its 95 % interval; the value itself where it has
    no spread (memory, a paper's value, a claim that two are the same), and anything at all where there are too few
    steps for an interval, or where a mean over several runs is shown. ``deviates``: a run differs from the paper's
    conditions, such as its dtype."""

    header: str
    value: float
    low: float
    high: float
    deviates: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedClaim:
    """One claim held against one set of values: its ratios where there are both values, and what they come to.

    ``expected``: how many rows (or columns) the claim is about.
    """

    claim: Claim
    ratios: tuple[ClaimRatio, ...]
    expected: int

    @property
    def verdict(self) -> str:
        """``FAILS`` if an interval lies outside the bounds, ``HOLDS`` if all lie within; else nothing is shown."""
        if not self.ratios:
            return OPEN
        if any(outside(self.claim, ratio) for ratio in self.ratios):
            return FAILS
        return HOLDS if all(inside(self.claim, ratio) for ratio in self.ratios) else UNSHOWN

    @property
    def covered(self) -> int:
        """How many rows (or columns) have a ratio, on one machine or on several."""
        return len({ratio.header for ratio in self.ratios})

    @property
    def range_text(self) -> str:
        """``0.97 to 1.01 in 5 of 7``: the least and the most of the ratios, and in how many rows (or columns)."""
        if not self.ratios:
            return ""
        values = [ratio.value for ratio in self.ratios]
        low, high = f"{min(values):.3g}", f"{max(values):.3g}"
        count = f" in {self.covered} of {self.expected}" if self.expected > 1 else ""
        return (low if low == high else f"{low} to {high}") + count

    @property
    def evidence(self) -> str:
        """``0.97 to 1.01 in 5 of 7; not within: 0.82 (0.8 to 0.84) in OPT-1.3B``: the range, the ratios beyond the
        bounds, and those whose interval lies across one."""
        beyond = [_ratio_text(ratio) for ratio in self.ratios if outside(self.claim, ratio)]
        across = [_ratio_text(r) for r in self.ratios if not inside(self.claim, r) and not outside(self.claim, r)]
        words = (("not within", beyond), ("not shown by", across))
        return "; ".join([self.range_text, *(f"{word}: {', '.join(texts)}" for word, texts in words if texts)])


Values = Callable[[Claim, str, TableCell, TableCell], ClaimRatio | None]
"""The ratio of two cells that a claim is about, whose row (or column) is called so; None where a value is lacking."""


def _ratio_text(ratio: ClaimRatio) -> str:
    if ratio.low == ratio.high:
        return f"{ratio.value:.3g} in {ratio.header}"
    few = ratio.low == 0 and ratio.high == math.inf
    spread = "no interval: too few processes or steps" if few else f"{ratio.low:.3g} to {ratio.high:.3g}"
    return f"{ratio.value:.3g} ({spread}) in {ratio.header}"


def inside(claim: Claim, ratio: ClaimRatio) -> bool:
    """Whether the whole interval is within the claim's bounds, which are inclusive."""
    low, high = claim.at_least, claim.at_most
    return (low is None or ratio.low >= low) and (high is None or ratio.high <= high)


def outside(claim: Claim, ratio: ClaimRatio) -> bool:
    """Whether the whole interval is beyond one of the claim's bounds."""
    low, high = claim.at_least, claim.at_most
    return (low is not None and ratio.high < low) or (high is not None and ratio.low > high)


def predicted(claim: Claim, header: str, over: TableCell, under: TableCell) -> ClaimRatio | None:
    """The ratio of two predictions; its interval takes their errors as independent of each other."""
    first, second = over.forecast, under.forecast
    if first is None or second is None or first.value is None or not second.value:
        return None
    value, share = first.value / second.value, math.hypot(first.share, second.share)
    return ClaimRatio(header=header, value=value, low=value / (1 + share), high=value * (1 + share))


def reported(claim: Claim, header: str, over: TableCell, under: TableCell) -> ClaimRatio | None:
    """The ratio of the paper's own values."""
    value = ratio(over.paper_value, under.paper_value)
    return None if value is None else ClaimRatio(header=header, value=value, low=value, high=value)


def measured(claim: Claim, header: str, over: TableCell, under: TableCell) -> ClaimRatio | None:
    """The ratio of what was measured."""
    value = ratio(over.value, under.value)
    if value is None or over.result is None or under.result is None:
        return None
    quantity, low, high = over.quantity, value, value
    if len(over.results) > 1 or len(under.results) > 1:  # a mean, of which no interval is known
        low, high = 0.0, math.inf
    elif quantity.timed:
        from_rounds, low, high = _timed(quantity, over.result, under.result)
        value = from_rounds or value
    elif quantity.per_run:
        paired_ratio = paired(over, under)
        value = paired_ratio.value if paired_ratio else value
        alone = (value, value) if quantity.steady else (0.0, math.inf)
        low, high = (paired_ratio.interval if paired_ratio else None) or alone
    elif claim.at_least != claim.at_most:
        low, high = _quotient(quantity.interval(over.result), quantity.interval(under.result)) or (value, value)
    return ClaimRatio(
        header=header, value=value, low=low, high=high, deviates=bool(over.deviations or under.deviations)
    )


def unlearned(claim: Claim, header: str, over: TableCell, under: TableCell) -> ClaimRatio | None:
    """As :func:`measured`, but nothing of what another model has learned, as its accuracy."""
    return None if over.quantity.learned else measured(claim, header, over, under)


def _quotient(over: Interval | None, under: Interval | None) -> Interval | None:
    """The quotients of two intervals' ends: at least 95 %, and more where both are of the same examples."""
    if over is None or under is None:
        return None
    return over[0] / under[1], over[1] / under[0] if under[0] else math.inf


def _timed(quantity: Quantity, over: Result, under: Result) -> tuple[float | None, float, float]:
    """The ratio of two step times, or of two rates, from the rounds that both ran in, None if they were in none, and
    the ends of its interval: see :func:`zobench.store.evidence.times_ratio`. Of one process a side there is none:
    another one may be slower or faster than its steps differ by."""
    first, second = (under, over) if quantity.rate else (over, under)
    times = evidence.times_ratio(first, second)
    tokens = over.tokens_per_step / under.tokens_per_step if quantity.rate else 1.0
    if times is None or evidence.are_alone(over, under):
        return None, 0.0, math.inf
    low, high = times.interval or (0.0, math.inf)
    return times.value * tokens if times.pairs else None, low * tokens, high * tokens


def checked(table: Table, grid: Grid, of: Values, *, extra: bool = False) -> list[CheckedClaim]:
    """The table's claims, held against :func:`reported`, :func:`measured` or :func:`predicted` values of the rows that
    they are about; ``extra``: of the extra rows (or columns), which the paper's table lacks."""
    made = []
    for claim in table.claims:
        by_column = claim.ratio[0] in [column.header for column in table.columns]
        lines = table.rows if by_column else [column for column in table.columns if column.minus is None]
        meant = [line.header for line in lines if line.extra == extra]
        headers = [header for header in meant if not claim.only or header in claim.only]
        j = [metric.name for metric in table.metrics].index(claim.metric)
        cells = {
            (cell.row.header, cell.column.header) if by_column else (cell.column.header, cell.row.header): cell
            for row in grid for cell in row[j] if by_column or not cell.row.extra
        }  # fmt: skip
        first, second = claim.ratio
        sides = [(header, cells.get((header, first)), cells.get((header, second))) for header in headers]
        ratios = [of(claim, header, over, under) for header, over, under in sides if over and under]
        made.append(CheckedClaim(claim=claim, ratios=tuple(filter(None, ratios)), expected=len(headers)))
    return made


def bounds(claim: Claim) -> str:
    """``ZO2 / MeZO at most 1``."""
    return f"{' / '.join(claim.ratio)} {limits(claim)}"


def limits(claim: Claim, scale: float = 1) -> str:
    """``at least 0.9 and at most 1.1``, each times ``scale``."""
    pairs = (("at least", claim.at_least), ("at most", claim.at_most))
    return " and ".join(f"{word} {bound * scale:g}" for word, bound in pairs if bound is not None)
