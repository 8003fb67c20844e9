"""Seconds of a step of the published programs: what each block computes and moves, on ZO2's algorithm 2; and the rates
of transfers between host and several GPUs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from zobench.cost import roofline, shapes
from zobench.cost.hardware import Gpu
from zobench.cost.published import PaperCell, evidence
from zobench.cost.roofline import Roofline
from zobench.cost.simulation import Clock
from zobench.engine.transfers.schedule import Op
from zobench.runspec.kinds import WIDTHS

LEARNED_POSITIONS = 2048
"""Rows of OPT's table of positions, which longer sequences extend."""
SCORE_BYTES = {"fp32": 24, "fp16": 20, "bf16": 16}
"""Per score of plain attention: written, masked, clamped, normalised in float32, read by the second product."""
AUTOCAST_SCORE_BYTES = 24
PERTURB_BYTES, UPDATE_BYTES = 7, 12
"""Times a weight's width: z is drawn, scaled twice and added; the update takes decay and learning rate besides."""
PERTURB_KERNELS, UPDATE_KERNELS = 4, 6
LINK_ANCHOR = "OPT-1.3B"
"""The model whose two rates without slices say what the host gives to all GPUs together, up and down."""
LINK_METRIC = ("link_rate", "1e9 params/s")


def step_seconds(cell: PaperCell, gpu: Gpu) -> float:
    """Seconds of one step of ``cell`` on ``gpu``, of each of its ranks."""
    costs = ProgramCosts(cell, gpu)
    if not cell.offloaded:
        return cell.model.layers * costs.block() + costs.outside()
    upload, offload = costs.transfers()
    outside = costs.outside()
    seconds = {
        "embed": outside / 4, "head": outside * 3 / 4, "upload": upload + costs.mallocs(), "offload": offload,
        "compute": costs.block(update=cell.fused_update), "update": costs.update(),
    }  # fmt: skip

    def traversal(work: str) -> float:
        return Clock().run(algorithm2(cell.model.layers, cell.overlap, work), lambda op: seconds[op.kind])

    return traversal("compute") + (0.0 if cell.fused_update else traversal("update"))


def throughput(cell: PaperCell, gpu: Gpu) -> float:
    """Tokens per second, as the papers count them: of the whole batch, once for both forwards."""
    return cell.batch * cell.seq / step_seconds(cell, gpu)


def algorithm2(blocks: int, overlap: bool, work: str) -> Iterator[Op]:
    """ZO2's algorithm 2: block i + 1 is uploaded beside the ``work`` on block i, once that on i - 1 is through, and
    block i - 1 is offloaded beside both. A traversal for the update alone has no embedding and no head."""
    up, down = ("upload", "offload") if overlap else ("compute", "compute")
    if work == "compute":
        yield Op("embed", 0, 0, "compute")
    yield Op("upload", 0, 0, up)
    for i in range(blocks):
        done = ((work, i - 1),) if i else ()
        if i and overlap:
            yield Op("offload", i - 1, 0, down, done)
        yield Op(work, i, 0, "compute", (("upload", i), *done))
        if not overlap:
            yield Op("offload", i, 0, down, ((work, i),))
        if i + 1 < blocks:
            yield Op("upload", i + 1, 0, up, (("upload", i), *done))
    if overlap:
        yield Op("offload", blocks - 1, 0, down, ((work, blocks - 1),))
    if work == "compute":
        yield Op("head", 0, 0, "compute", ((work, blocks - 1),))


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramCosts:
    """Seconds of the parts of a step of ``cell`` on ``gpu``."""

    cell: PaperCell
    gpu: Gpu

    @property
    def _roofline(self) -> Roofline:
        return Roofline(self.gpu)

    def block(self, *, update: bool = True) -> float:
        """The forwards of one block with its perturbations, and the pending ``update``."""
        cell, tensors = self.cell, shapes.block(self.cell.model).tensors
        seconds = cell.forwards * self._forward() + self._moves(tensors, draws=cell.forwards + 1, updates=update)
        if cell.offloaded and cell.autocast and cell.wire not in ("", "fp32"):  # unpacked and packed again
            moved = 2 * sum(tensors) * (cell.width + cell.wire_width)
            seconds += self._roofline.passes(moved, 2 * len(tensors))
        return seconds

    def update(self) -> float:
        """The update of one block alone."""
        return self._moves(shapes.block(self.cell.model).tensors, draws=0, updates=1)

    def outside(self) -> float:
        """Embedding and head: their perturbations, the product with the vocabulary, the loss."""
        cell, price, model = self.cell, self._roofline, self.cell.model
        sizes = dataclasses.replace(cell, seq=max(cell.seq, LEARNED_POSITIONS)).outside
        rows, logit = cell.rows * cell.seq, 4 if cell.program.float32_loss else WIDTHS[cell.precision]
        forward = price.product(rows, model.hidden, model.vocab, cell.precision)
        forward += price.passes(rows * model.vocab * 6 * logit, 8)
        forward += price.passes(rows * model.hidden * 10 * cell.width, 10)
        if cell.autocast:
            forward += price.passes(rows * model.vocab * 8, 2) + price.passes(model.vocab * model.hidden * 6, 1)
        return self._moves(sizes, draws=cell.forwards + 1, updates=1) + cell.forwards * forward

    def transfers(self) -> tuple[float, float]:
        """One block's upload and offload. Copies that are not pinned share one path through host memory; several ranks
        bring a slice each, get the others' over NVLink (DistZO2, equation 3) and write their own back."""
        cell, gpu = self.cell, self.gpu
        nbytes = shapes.block(cell.model).parameters * cell.wire_width
        pinned = cell.overlap and self._pinned_bytes() <= cell.program.pinned_limit
        if not pinned:
            seconds = nbytes / (gpu.pageable if not cell.overlap else gpu.pageable / 2)
            return seconds, seconds
        links = roofline.Links(link=gpu.link_both * gpu.pcie, peers=gpu.nvlink or None)
        return roofline.sliced_seconds(nbytes, cell.gpus, links), roofline.offload_seconds(nbytes, cell.gpus, links)

    def mallocs(self) -> float:
        """The seconds of a block's memory where it is not reused: an allocation for each tensor."""
        return 0.0 if self.cell.reusable_memory else self.gpu.malloc * len(shapes.block(self.cell.model).tensors)

    def _pinned_bytes(self) -> int:
        """Bytes of pinned host memory: torch rounds every tensor there up to a power of two."""
        sizes = (size * self.cell.wire_width for size in shapes.block(self.cell.model).tensors)
        return self.cell.model.layers * sum(1 << math.ceil(math.log2(size)) for size in sizes)

    def _forward(self) -> float:
        """One forward of one block."""
        cell, price, block = self.cell, self._roofline, shapes.block(self.cell.model)
        rows = cell.rows * cell.seq
        seconds = sum(price.product(rows, inner, columns, cell.precision) for inner, columns in block.linears)
        if cell.autocast:  # weights are cast at every use
            seconds += price.passes(block.parameters * 6, len(block.tensors))
        elements = 24 * cell.model.hidden + (5 if block.gated else 2) * cell.model.inner
        width = 4 if cell.autocast else cell.width
        return seconds + price.passes(rows * elements * width, 40 if block.gated else 20) + self._attention()

    def _attention(self) -> float:
        cell, price, model = self.cell, self._roofline, self.cell.model
        queries = model.attention_widths[0]
        if cell.program.fused_attention:
            share = 1.0 if cell.precision == "fp32" else self.gpu.fused_attention
            rate = self.gpu.products(cell.precision) * share
            return 2 * cell.rows * cell.seq**2 * queries / rate + price.passes(0, 6)
        matrices = cell.rows * model.heads
        products = 2 * price.product(cell.seq, queries // model.heads, cell.seq, cell.precision, matrices)
        width = AUTOCAST_SCORE_BYTES if cell.autocast else SCORE_BYTES[cell.precision]
        return products + price.passes(matrices * cell.seq**2 * width, 6)

    def _moves(self, sizes: Sequence[int], draws: int, updates: int) -> float:
        """``draws`` perturbations and ``updates`` of tensors with ``sizes`` elements, each with normals of its own."""
        cell, elements = self.cell, sum(sizes)
        nbytes = elements * cell.width * (PERTURB_BYTES * draws + UPDATE_BYTES * updates)
        kernels = len(sizes) * (PERTURB_KERNELS * draws + UPDATE_KERNELS * updates)
        normals = self._roofline.normals((draws + updates) * elements, cell.width)
        return normals + self._roofline.passes(nbytes, kernels)


def link_rate(row: Mapping[str, str], gpu: Gpu) -> float:
    """Parameters per second that DistZO2's table 2 has in this row, each counted once, however many GPUs it goes to.

    The GPUs share what the host gives, slices are exchanged over NVLink (its equation 3), and without slices each GPU
    brings its whole copy back."""
    ranks, width, (way, _, sliced) = int(row["gpus"]), WIDTHS[row["dtype"]], row["setting"].partition("+")
    host = _unsliced()[way] * ranks * width
    shared = roofline.Links(link=gpu.pcie * gpu.link_one, host=host, peers=gpu.nvlink or None)
    if not sliced:
        return 1 / roofline.whole_seconds(width, ranks, shared)
    move = roofline.sliced_seconds if way == "upload" else roofline.offload_seconds
    return 1 / move(width, ranks, shared)


@functools.cache
def _unsliced() -> Mapping[str, float]:
    """Direction -> what the paper reports of :data:`LINK_ANCHOR` without slices, in parameters per second."""
    return {row["setting"]: float(row["value"]) * 1e9 for row in evidence.rows(*LINK_METRIC) if is_link_anchor(row)}


def is_link_anchor(row: Mapping[str, str]) -> bool:
    """Whether ``row`` is one of the two that are fitted."""
    return row["metric"] == "link_rate" and row["model"] == LINK_ANCHOR and "+" not in row["setting"]


@functools.cache
def link_share(gpu: Gpu) -> float:
    """The error that nine of ten of the other rates stay within."""
    errors = [abs(link_rate(row, gpu) / (float(row["value"]) * 1e9) - 1) for row in evidence.rows(*LINK_METRIC)
              if not is_link_anchor(row)]  # fmt: skip
    return evidence.quantile(errors, 0.9)
