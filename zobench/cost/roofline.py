"""Seconds of single operations on a GPU: the slower of arithmetic and memory, and a kernel's own cost. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from zobench.cost.hardware import Gpu
from zobench.runspec.kinds import WIDTHS

TILE = 128 * 128
"""Outputs of one tile of a product, which one multiprocessor computes."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Prices on one ``gpu``, in seconds."""

    gpu: Gpu

    def product(self, rows: float, inner: int, columns: int, precision: str, count: float = 1) -> float:
        """``count`` products (rows x inner) (inner x columns) in one kernel.

        Beside the operations it wastes a share of one wave of tiles, so small products are slower; and it is never
        faster than its operands and results are moved.
        """
        rate = self.gpu.products(precision)
        wasted = self.gpu.idle_tiles * self.gpu.sms * TILE * 2 * inner
        width = WIDTHS["fp32" if precision == "tf32" else precision]
        nbytes = (rows * inner + inner * columns + rows * columns) * count * width
        arithmetic = (2 * rows * inner * columns * count + wasted) / rate
        return max(arithmetic, nbytes / self.gpu.bandwidth) + self.gpu.kernel

    def passes(self, nbytes: float, kernels: float) -> float:
        """Elementwise kernels that read and write ``nbytes`` together."""
        return nbytes / self.gpu.bandwidth + kernels * self.gpu.kernel

    def losses(self, nbytes: float) -> float:
        """Passes over logits, which compute exponentials; without the kernels' own cost."""
        return nbytes / (self.gpu.bandwidth * self.gpu.losses)

    def normals(self, elements: float, width: int) -> float:
        """torch's normals written as ``width`` bytes each; without the kernels' own cost."""
        return elements * max(1 / self.gpu.normals_per_second(width), width / self.gpu.bandwidth)
