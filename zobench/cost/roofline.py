"""Seconds of single operations on a GPU, the slower of arithmetic and memory, and a kernel's own cost; what directions
of low rank add to them; and of transfers between a host and several devices (DistZO2, appendix C). No torch.

Directions of low rank are counted from :mod:`zobench.engine.directions.low_rank_unit` and
:mod:`zobench.engine.directions.factor_rules`; of populations, whose points have each their own V
(:class:`zobench.engine.passes.products.RowForwards`), roughly.
"""

from __future__ import annotations

from dataclasses import dataclass

from zobench.cost.hardware import Gpu
from zobench.cost.shapes import Block
from zobench.runspec import RunSpec
from zobench.runspec.kinds import WIDTHS, Structure

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

    def passes(self, nbytes: float, kernels: float = 0) -> float:
        """Elementwise kernels that read and write ``nbytes`` together."""
        return nbytes / self.gpu.bandwidth + kernels * self.gpu.kernel

    def losses(self, nbytes: float) -> float:
        """Passes over logits, which compute exponentials; without the kernels' own cost."""
        return nbytes / (self.gpu.bandwidth * self.gpu.losses)

    def normals(self, elements: float, width: int) -> float:
        """torch's normals written as ``width`` bytes each; without the kernels' own cost."""
        return elements * max(1 / self.gpu.normals_per_second(width), width / self.gpu.bandwidth)


LOW_RANK_SHARE = 0.08
"""The share by which a step that is priced operator by operator may be off these counts (tests/tools/test_virtual):
what the range of a prediction is wider by."""
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
        """The rank of the directions."""
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
        """Kernels of one product with W, which is made ``calls`` times for ``forwards`` points: x B, and what is added
        to it at each point; a factor is cast to 16 bits first."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Bandwidths of a machine: ``link`` between host memory and one device when no other device uses it (B_PCIe);
    ``host``: what the links of all devices come to together, None if each has all of its own at any time;
    ``peers``: what a device receives from the others, all of them at once (B_NVLink), None if it is not known.
    """

    link: float
    host: float | None = None
    peers: float | None = None

    def share(self, ranks: int) -> float:
        """Returns the bytes/s of the host's links that each of ``ranks`` devices gets when all use them."""
        return self.link if self.host is None else min(self.link, self.host / ranks)


def whole_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until each of ``ranks`` devices has all ``nbytes`` of a block from the host (figure 3a)."""
    return nbytes / links.share(ranks)


def sliced_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until they have it in slices: each brings one from the host, and the others from its peers.

    Equation 3: M / (n B_PCIe) + (n - 1) M / (n B_NVLink). Without a known way between peers that is the host's link,
    which is never faster than whole transfers, as the paper says of machines without NVLink.
    """
    slice_, others = nbytes / ranks, nbytes * (ranks - 1) / ranks
    between = links.share(ranks) if links.peers is None else links.peers
    return slice_ / links.share(ranks) + others / between


def offload_seconds(nbytes: float, ranks: int, links: Links) -> float:
    """Seconds until a block is in host memory again: all devices have the same bytes, and each writes its slice
    (section 6.1). So does an engine that uploads whole blocks, since the ranks of a machine share one copy."""
    return nbytes / ranks / links.share(ranks)
