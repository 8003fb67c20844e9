"""SubZero: ZO-SGD along U Z V^T, Z random, in a subspace of orthonormal U and V that stays for a while.

Yu et al., 2024 (arXiv 2410.08989), "Zeroth-Order Fine-Tuning of LLMs in Random Subspaces", and its program,
zimingyy/SubZero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zobench.methods.base import LOW_RANK, at_least_one
from zobench.methods.subspaces import InSubspaces
from zobench.runspec.kinds import Definition, MethodKind, Structure

if TYPE_CHECKING:
    from zobench.engine.directions.factors import LowRank
    from zobench.runspec import RunSpec


rank = at_least_one("rank", "SubZero's example uses options.rank=24")
interval = at_least_one("interval", "SubZero's example uses options.interval=1000")


def make(spec: RunSpec) -> InSubspaces:
    """The method of ``spec``."""
    return InSubspaces.of(spec, interval=interval(spec))


def directions(spec: RunSpec) -> LowRank:
    """SubZero's directions; its program's are as long as normal numbers."""
    from zobench.engine.directions.factors import Core

    return Core(rank(spec), scaled=spec.definition == "as-shipped")


WRITTEN = Definition(
    formula="w -= lr * ghat, z = U Z V^T in every matrix, Z r x r; orthonormal U and V drawn every `interval` steps",
    make="zobench.methods.subzero:make",
)
KIND = MethodKind(
    name="subzero",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * ghat, z = sqrt(rows columns) / r U Z V^T in every matrix, Z r x r; orthonormal U and V "
        "drawn every `interval` steps",
    ),
    structure=Structure(
        make="zobench.methods.subzero:directions",
        rank=rank,
        lasts=interval,
        per_direction=lambda rows, columns, rank: min(rank, rows) * min(rank, columns),
        shared=lambda rows, columns, rank: rank * (rows + columns),
        has_core=True,
        orthonormal=2,
    ),
    needs=LOW_RANK,
    options={"rank": 24, "interval": 1000},
)
