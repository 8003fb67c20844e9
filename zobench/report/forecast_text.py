"""The text of a table on what was not run: its forecasts for the paper's GPU, for the machine at hand, or for both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from zobench.cost.published import Forecast
from zobench.cost.published.evidence import papers_gpus
from zobench.report.cells import TableCell
from zobench.report.sheet import NO_VALUE, CellText
from zobench.stats.intervals import Ratio as PairedRatio

OUT_OF_MEMORY = "-"
MEASURED_ALONE = "n/a"
OOM_AHEAD = f"~{OUT_OF_MEMORY} means predicted out of memory."
_PREDICTED_BY = {
    (True, False): "by a model of the paper's program", (False, True): "by a model of zobench's own engine",
    (True, True): "a paper's columns by a model of its program, others by one of zobench's own engine",
}  # fmt: skip
"""(Whether any is of a paper's program, whether any is of zobench's engine) -> words."""
SEPARATOR = "/"
"""Between what is predicted for the machine at hand and what is for the paper's GPU."""


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base`` if there are both and the base is not zero."""
    return value / base if value is not None and base else None


def times(value: float | None) -> str:
    """``(x0.57)``; three digits where two decimals would show fewer than two: ``(x0.0123)``."""
    if value is None:
        return ""
    return f"(x{value:.2f})" if value >= 0.1 or value == 0 else f"(x{value:.2g})"


def times_between(paired: PairedRatio) -> str:
    """``(x0.57, 0.55 to 0.60)``: a ratio with its interval, to as many digits as that is wide."""
    if paired.interval is None:
        return times(paired.value)
    width = paired.interval[1] - paired.interval[0]
    digits = min(4, max(2, -math.floor(math.log10(width / 2)))) if width > 0 else 4
    low, high = (f"{end:.{digits}f}" for end in paired.interval)
    return f"(x{paired.value:.{digits}f}, {low} to {high})"


def joined(texts: Iterable[str]) -> str:
    """The different texts, sorted so that 5 comes before 20."""
    return "/".join(sorted({text for text in texts if text}, key=lambda text: (len(text), text)))


def places(cells: Iterable[TableCell]) -> str:
    """The GPUs that the forecasts of ``cells`` are for, joined."""
    return joined(cell.forecast.gpu.name for cell in cells if cell.forecast)


def whose(cells: Iterable[TableCell]) -> str:
    """Returns the model by which the forecasts of ``cells`` are made; there must be one."""
    kinds = {cell.forecast.of_engine for cell in cells if cell.forecast}
    return _PREDICTED_BY[False in kinds, True in kinds]


def is_of_another_gpu(cells: Iterable[TableCell]) -> bool:
    """Whether a forecast of ``cells`` is for a GPU that none of the papers has measured on."""
    papers = {gpu.name for gpu in papers_gpus(anchored=False).values()}
    return any(cell.forecast.gpu.name not in papers for cell in cells if cell.forecast)


def predicted(cell: TableCell, to_paper: float | None) -> CellText:
    """The forecast of a cell; of a share, which only what was measured has, a word in its place."""
    if cell.forecast is None:
        return CellText(text=MEASURED_ALONE if cell.metric.quantity.share else NO_VALUE, tone="blank")
    text = _number(cell, cell.forecast)
    return CellText(text=text, detail=times(to_paper), tone="predicted", shared=cell.forecast.notes)


def both(cell: TableCell) -> CellText:
    """The forecast of a cell for the machine at hand, where it has one, and for the paper's GPU."""
    for_gpu = predicted(cell, None)
    if cell.on_machine is None:
        return for_gpu
    text = _number(cell, cell.on_machine) + (f"{SEPARATOR}{for_gpu.text}" if cell.forecast else "")
    return CellText(text=text, tone="predicted", shared=for_gpu.shared)


def _number(cell: TableCell, forecast: Forecast) -> str:
    return f"~{OUT_OF_MEMORY if forecast.value is None else cell.metric.text(forecast.value)}"


def predictors(cells: Sequence[TableCell]) -> list[str]:
    """Whose predictions the cells have, for which GPU, and how far off they may be."""
    lines = []
    if on_machine := [cell.on_machine for cell in cells if cell.on_machine]:
        lines.append(
            f"~a{SEPARATOR}~b: a is predicted for {joined(forecast.gpu.name for forecast in on_machine)} by its "
            "measured rates and its cells, nine of ten such values within "
            f"{100 * max(forecast.share for forecast in on_machine):.0f} %; b as below."
        )
    forecasts = [(cell.metric.header.partition(" (")[0], cell.forecast) for cell in cells if cell.forecast]
    if not forecasts:
        return lines
    shares: dict[str, list[str]] = {}
    for name, forecast in forecasts:
        shares.setdefault(name, []).append(f"{100 * forecast.share:.1f}")
    within = ", ".join(f"{joined(texts)} % ({name})" for name, texts in shares.items())
    error = f"Nine of ten such values are within {within} of the papers'."
    if is_of_another_gpu(cells):
        error = f"Of the papers' values on their GPUs, nine of ten were within {within} of such predictions for these."
    lines.append(f"~ is predicted for the {places(cells)}: {whose(cells)}. {error}")
    if any(forecast.of_engine and not forecast.gpu.was_run_on for _, forecast in forecasts):
        lines.append("zobench's engine has never run on such a GPU, so its own errors may be larger.")
    return [*lines, OOM_AHEAD * any(forecast.value is None for _, forecast in forecasts)]
