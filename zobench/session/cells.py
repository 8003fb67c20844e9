"""The cells of a matrix with changes of a sweep's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench.cost import Rates
from zobench.cost.budget import price
from zobench.cost.footprint import limited
from zobench.recipes import matrix
from zobench.recipes.matrix import Matrix
from zobench.runspec import RunSpec, check_value, size_text


def matrix_cells(
    path: Path, device: str, values: dict[str, Any], narrow: Callable[[], str | None] = lambda: "bf16",
    rates: Callable[[], Rates] | None = None, part: Mapping[str, Any] | None = None,
) -> tuple[Matrix, tuple[RunSpec, ...], str]:  # fmt: skip
    """The matrix in ``path`` on ``device``, its cells changed by ``values``, and a note on ``device_memory``, or "".
    ``narrow`` and ``part``: see :func:`zobench.recipes.matrix.load`; ``rates``: this machine's, from which a budget in
    seconds is priced."""
    changes = {key: value for key, value in values.items() if key != "device_memory"}
    cells = matrix.load(path, device, changes, narrow, lambda unit, spec: price(unit, spec, rates), part)
    size = check_value("device_memory", values.get("device_memory", 0))
    if size and cells.contest:
        raise ValueError(f"`device_memory` is not for the protocol {path.name}; leave it out")
    return cells, *(limited_cells(cells.cells, size, path.name) if size else (cells.cells, ""))


def limited_cells(cells: Sequence[RunSpec], size: int, name: str) -> tuple[tuple[RunSpec, ...], str]:
    """``cells`` without repeats, limited to ``device_memory=size`` where they offload, and a note on how many are.

    Raises ``ValueError`` if none can be limited.
    """
    distinct = tuple(dict.fromkeys(limited(cell, size) for cell in cells))
    limited_count = sum(cell.device_memory == size for cell in distinct)
    if not limited_count:
        raise ValueError(
            f"`device_memory` needs a cell with engine=offload and noise=counter, but {name} has none; "
            "leave it out, or add --set engine=offload --set noise=counter"
        )
    others = "; the others are resident or have torch noise, which leaves a planner no choice"
    note = f"device_memory={size_text(size)} holds for {limited_count} of {len(distinct)} cells"
    return distinct, note + (others if limited_count < len(distinct) else "")
