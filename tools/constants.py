"""Fits what a GPU reaches of its data sheet: ``python -m tools.constants``.

Eight constants from ZO2's table 1, throughput, alone, and one from its table 3, which go into
``zobench/cost/constants.toml``; and two of the H20 from two of its cells, into its own file. A weak prior holds what
one table cannot tell apart (docs/predictions.md).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench.cost import hardware, shapes
from zobench.cost.hardware import SHARES, Gpu
from zobench.cost.published import PaperCell, cell_of, evidence
from zobench.cost.published.evidence import papers_gpus
from zobench.cost.published.seconds import throughput

PRIOR = {
    "fp32_products": (0.90, 0.5, 1.0), "fp16_products": (0.78, 0.3, 1.0), "idle_tiles": (0.35, 0.01, 3.0),
    "passes": (0.85, 0.4, 0.95), "normals": (1.3, 0.2, 4.0), "kernel_us": (8.0, 1.0, 40.0),
    "link_both": (0.55, 0.2, 1.0), "pageable_gbs": (10.5, 3.0, 25.0),
}  # fmt: skip
"""Key -> what an engineer would say before any fit, and the bounds."""
PRIOR_WEIGHT = 0.15
"""Of one prior against one cell, both in logarithms."""
LOSS_SCALE = 0.1
"""Errors beyond this share count less than squared."""
ANCHORED = {"fp16_products": (0.9, 0.5, 1.0), "kernel_us": (3.0, 0.2, 30.0)}
"""As :data:`PRIOR`, of a second GPU."""


def measured(paper: str, artifact: str) -> list[tuple[PaperCell, float, evidence.Row]]:
    """The cells of a table with their throughput."""
    return [
        (cell_of(row), float(row["value"]), row)
        for row in evidence.rows("throughput", "tokens/s")
        if (row["paper"], row["artifact"]) == (paper, artifact)
    ]


def fit() -> dict[str, float]:
    """Key -> fitted value, of :data:`PRIOR`, in the unit of the key."""
    cells = [(cell, value) for cell, value, _ in measured(*evidence.FITTED)]
    gpu = papers_gpus(anchored=False)["A100-80GB"]
    return _solved(gpu, cells, PRIOR, PRIOR_WEIGHT, loss="soft_l1", f_scale=LOSS_SCALE)


def malloc() -> float:
    """Microseconds of one cudaMalloc with its cudaFree: the median of the models of :func:`evidence.allocations`.

    Memory that is not reused leaves ZO2's program no overlap either, because a cudaFree waits for the device. So a step
    without reusable memory takes what one without overlap takes, and an allocation for each tensor of each block.
    """
    measured = []
    for fresh, kept in evidence.allocations():
        cell = cell_of(fresh)
        more = cell.batch * cell.seq * (1 / float(fresh["value"]) - 1 / float(kept["value"]))
        measured.append(1e6 * more / (cell.model.layers * len(shapes.block(cell.model).tensors)))
    return statistics.median(measured)


def anchor(gpu: Gpu, cells: Sequence[tuple[PaperCell, float]]) -> dict[str, float]:
    """Key -> fitted value, of :data:`ANCHORED`, from ``cells`` that ran on ``gpu`` with their tokens per second."""
    return _solved(gpu, cells, ANCHORED, 0.0)


def _solved(
    gpu: Gpu, cells: Sequence[tuple[PaperCell, float]], prior: Mapping[str, tuple[float, float, float]], weight: float,
    **how: Any,
) -> dict[str, float]:  # fmt: skip
    """Minimises the errors of the logarithms, with ``weight`` on each constant's distance from its prior."""
    import numpy as np
    from scipy.optimize import least_squares

    start, low, high = (np.log([row[column] for row in prior.values()]) for column in range(3))

    def residuals(logarithms: Any) -> Any:
        known = changed(gpu, dict(zip(prior, map(math.exp, logarithms), strict=True)))
        errors = [math.log(throughput(cell, known) / value) for cell, value in cells]
        return np.array([*errors, *(weight * (logarithms - start) if weight else ())])

    solved = least_squares(residuals, start, bounds=(low, high), **how)
    return dict(zip(prior, map(math.exp, solved.x), strict=True))


def changed(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """``gpu`` with other constants, by the keys of its file."""
    shares: dict[str, Any] = {hardware.plain(key): value * SHARES[key] for key, value in values.items()}
    return dataclasses.replace(gpu, **shares)


def _write(path: Path, values: Mapping[str, float]) -> None:
    """Replaces the values, and the date, of the fitted group of the file."""
    before, mark, group = path.read_text(encoding="utf-8").partition('source = "fitted"')
    for key, value in {**values, "date": datetime.date.today().isoformat()}.items():
        text = value if isinstance(value, str) else f"{value:.6g}"
        group, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {text}", group, count=1)
        assert count == 1, f"{path.name} has no fitted {key}"
    path.write_text(before + mark + group, encoding="utf-8")


def main() -> None:
    """Fits, writes the two files, and prints what was fitted."""
    values = {**fit(), "malloc_us": malloc()}
    h20 = changed(papers_gpus(anchored=False)["H20-96GB"], values)
    anchors = [(cell, value) for cell, value, row in measured("distzo2", "table1") if evidence.is_anchor(row)]
    anchored = anchor(h20, anchors)
    _write(hardware.CONSTANTS, values)
    _write(hardware.CONSTANTS.parent / "hardware" / "h20.toml", anchored)
    print(f"ZO2, table 1: {values}\nH20: {anchored}")


if __name__ == "__main__":
    main()
