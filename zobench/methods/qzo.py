"""QZO: integer weights whose scales are tuned by ZO-SGD, with a directional derivative that is clipped.

Shang et al., 2025 (arXiv 2505.13430), and its program, maifoundations/QZO.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from zobench.methods.base import FORM, INTEGERS
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need, SchemeKind
from zobench.runspec.options import Option


class QZO(ZOSGD):
    """ZO-SGD of the scales, with each g cut at +-``clip``. A g that is not finite is skipped, not cut."""

    spec_options = MappingProxyType({"clip": float})

    def __init__(self, *, clip: float = 100.0, **constants: Any) -> None:
        super().__init__(**constants)
        self.clip = clip

    def _coefficient(self, g: float) -> float:
        return min(max(g, -self.clip), self.clip)


WRITTEN = Definition(
    formula="s = max(s - lr * clip(ghat), 0), w = s q: of integer weights the scales s; the codes q stay",
    make="zobench.methods.qzo:QZO.of",
    rule="zobench.methods.rules:least_scale",
    copies=2,
    piece_copies=3,
)
KIND = MethodKind(
    name="qzo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="s = max(s - lr * clip(ghat), 1e-7), w = s q: of integer weights the scales s; the codes q stay",
    ),
    scheme=SchemeKind(
        name="scales",
        make="zobench.schemes.integers:scales",
        adapter=lambda widths, spec: (-(-widths.matrices // int(spec.option("group"))), 0),
        base=lambda spec: int(spec.option("bits")) / 8,
    ),
    needs=(*INTEGERS, Need("survival", False, "its updates end at 0; use survival=false")),
    options={**FORM, "clip": Option(100.0, above=0)},
    grid="qzo",
)
