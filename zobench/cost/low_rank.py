"""What directions of low rank take beside the products with W, as a device meets them: thin products, sums, kernels,
and what makes an estimate the update of its factors. No torch.

Counted from :mod:`zobench.engine.directions.low_rank_unit` and :mod:`zobench.engine.directions.factor_rules`; of
populations, whose points have each their own V (:class:`zobench.engine.passes.products.RowForwards`), roughly.
"""

from __future__ import annotations

from dataclasses import dataclass

from zobench.cost.roofline import Roofline
from zobench.cost.shapes import Block
from zobench.runspec import RunSpec
from zobench.runspec.kinds import WIDTHS, Structure

SHARE = 0.08
"""By how much a step that is priced operator by operator may be off these counts (tests/finetune/test_virtual): what
the range of a prediction is wider by."""
QR_KERNELS = 3
"""Kernels for each column of a QR decomposition: its length, its products with the others, their change. A guess: what
a GPU's library issues is not known here."""


@dataclass(frozen=True, slots=True)
class LowRankCosts:
    """Costs of ``spec``, whose directions have this ``structure``, by ``price``, with products of ``precision``."""

    spec: RunSpec
    structure: Structure
    price: Roofline
    precision: str

    @property
    def rank(self) -> int:
        """That of the directions."""
        return self.structure.rank(self.spec)

    def product(self, rows: float, inner: int, columns: int, together: float) -> float:
        """Seconds of what a point adds to one product of ``rows`` tokens: its share of x B, which ``together`` points
        may have in common, its product with L = A F, or with F, and A F itself where it is made."""
        rank, price = min(self.rank, inner, columns), self.price
        core = price.product(columns, rank, rank, "fp32") if self.structure.has_core else 0.0
        shared = together if self.structure.shares_inner else 1.0
        first = price.product(rows * shared, inner, rank, self.precision) / shared
        added = price.passes(rows * columns * WIDTHS[self.spec.dtype], 0)  # reads what the last of them is added to
        return core + first + price.product(rows, rank, columns, self.precision) + added

    def kernels(self, block: Block, forwards: float, calls: float) -> float:
        """Kernels of all ``forwards`` of a block beside those of a model without directions, in ``calls`` of its own
        forward. A vector that a point makes is cast to 32 bits and back; a bias is a column of what is added."""
        linears, narrow = len(block.linears), WIDTHS[self.spec.dtype] < 4
        if self.structure.is_apart:
            return forwards * 2 * linears
        vectors = len(block.vectors) * (3 if narrow else 1) + 3 * block.biases
        norms = block.norms if calls < forwards else 0  # put together again
        return linears * self.product_kernels(forwards, calls) + forwards * vectors + calls * norms

    def product_kernels(self, forwards: float, calls: float) -> float:
        """Of one product with W, which is made ``calls`` times for ``forwards`` points: x B, and what is added to it at
        each point; a factor is cast to 16 bits first."""
        narrow = WIDTHS[self.spec.dtype] < 4
        outer, inner = 1 + narrow + self.structure.has_core, 1 + narrow
        return forwards * outer + (calls if self.structure.shares_inner else forwards) * inner

    def update(self, block: Block) -> tuple[float, float]:
        """(seconds of the products, kernels) that make the estimates of a block's tensors their updates, with its share
        of the decompositions that a subspace begins with."""
        rank, kind = self.rank, self.structure
        shapes = [shape for inner, columns in block.linears for shape in kind.update(columns, inner, rank)]
        products = sum(self.price.product(*shape, "fp32") for shape in shapes)
        kernels = len(shapes) + kind.update_kernels * len(block.linears) + kind.vector_kernels * len(block.vectors)
        decompositions = kind.orthonormal * len(block.linears) * QR_KERNELS * rank / kind.lasts(self.spec)
        return products, kernels + decompositions
