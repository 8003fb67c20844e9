"""What a table shows of what was not run: its forecasts for the paper's GPU, for the machine at hand, or for both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from zobench.predict.forecast import Forecast
from zobench.report.cells import TableCell
from zobench.report.quantity import rounded
from zobench.report.sheet import CellText
from zobench.runspec.registries import METRICS
from zobench.stats.intervals import Ratio as PairedRatio

NO_VALUE = "·"
OUT_OF_MEMORY = "-"
MEASURED_ALONE = "n/a"
OOM_AHEAD = f"~{OUT_OF_MEMORY} means predicted out of memory."
_PREDICTED_BY = {
    (True, False): "by a model of the paper's program", (False, True): "by a model of zobench's own engine",
    (True, True): "a paper's columns by a model of its program, others by one of zobench's own engine",
}  # fmt: skip
"""(Whether any is of a paper's program, whether any is of zobench's engine) -> words."""
BESIDE = "/"
"""Between what is predicted for the machine at hand and what is for the paper's GPU."""


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base`` if there are both and the base is not zero."""
    return value / base if value is not None and base else None


def times(value: float | None) -> str:
    """``(x0.57)``; three digits where two decimals would show fewer than two: ``(x0.0123)``."""
    if value is None:
        return ""
    return f"(x{value:.2f})" if value >= 0.1 or value == 0 else f"(x{value:.2g})"


def times_between(known: PairedRatio) -> str:
    """``(x0.57, 0.55 to 0.60)``: a ratio with its interval, to as many digits as that is wide."""
    if known.interval is None:
        return times(known.value)
    width = known.interval[1] - known.interval[0]
    digits = min(4, max(2, -math.floor(math.log10(width / 2)))) if width > 0 else 4
    low, high = (f"{end:.{digits}f}" for end in known.interval)
    return f"(x{known.value:.{digits}f}, {low} to {high})"


def joined(texts: Iterable[str]) -> str:
    """The different texts, sorted so that 5 comes before 20."""
    return "/".join(sorted({text for text in texts if text}, key=lambda text: (len(text), text)))


def places(cells: Iterable[TableCell]) -> str:
    """The GPUs that the forecasts of ``cells`` are for, joined."""
    return joined(cell.forecast.gpu.name for cell in cells if cell.forecast)


def whose(cells: Iterable[TableCell]) -> str:
    """By what model the forecasts of ``cells`` are made; there must be one."""
    own = {cell.forecast.own for cell in cells if cell.forecast}
    return _PREDICTED_BY[False in own, True in own]


def predicted(cell: TableCell, to_paper: float | None) -> CellText:
    """The forecast of a cell; of a share, which only what was measured has, a word in its place."""
    if cell.forecast is None:
        return CellText(text=MEASURED_ALONE if METRICS.get(cell.metric.name).share else NO_VALUE, tone="blank")
    if cell.forecast.value is None:
        return CellText(text=f"~{OUT_OF_MEMORY}", tone="predicted", shared=cell.forecast.notes)
    return CellText(
        text=_number(cell, cell.forecast), detail=times(to_paper), tone="predicted", shared=cell.forecast.notes
    )  # fmt: skip


def both(cell: TableCell) -> CellText:
    """The forecast of a cell for the machine at hand, where it has one, and for the paper's GPU."""
    theirs = predicted(cell, None)
    if cell.here is None:
        return theirs
    texts = [_number(cell, cell.here), *([theirs.text] if cell.forecast else [])]
    return CellText(text=BESIDE.join(texts), tone="predicted", shared=theirs.shared)


def _number(cell: TableCell, known: Forecast) -> str:
    if known.value is None:
        return f"~{OUT_OF_MEMORY}"
    return f"~{rounded(known.value / cell.metric.scale, cell.metric.format)}"


def predictors(cells: Sequence[TableCell]) -> list[str]:
    """Whose predictions the cells have, for which GPU, and how far off they may be."""
    known = [(cell.metric.header.partition(" (")[0], cell.forecast) for cell in cells if cell.forecast]
    own = {one.own for _, one in known}
    here = _of_this_machine(cells)
    if not known:
        return here
    shares: dict[str, list[str]] = {}
    for name, one in known:
        shares.setdefault(name, []).append(f"{100 * one.share:.1f}")
    within = ", ".join(f"{joined(texts)} % ({name})" for name, texts in shares.items())
    told = [
        *here,
        f"~ is predicted for the {places(cells)}: {whose(cells)}. Nine of ten such values are within {within} of the "
        "papers'.",
    ]
    if True in own:
        told.append("zobench's engine has never run on such a GPU, so its own errors may be larger.")
    return told + ([OOM_AHEAD] if any(one.value is None for _, one in known) else [])


def _of_this_machine(cells: Sequence[TableCell]) -> list[str]:
    """What stands before the stroke, if anything does."""
    own = [cell.here for cell in cells if cell.here]
    if not own:
        return []
    return [
        f"~a{BESIDE}~b: a is predicted for {joined(one.gpu.name for one in own)} by its measured rates and its cells, "
        f"nine of ten such values within {100 * max(one.share for one in own):.0f} %; b as below."
    ]
