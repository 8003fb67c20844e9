"""zobench's own engine on a GPU that need not be there: seconds of a step, bytes, and what bounds it. No torch.

Operations are priced by :class:`~zobench.cost.roofline.Roofline`; the engine's schedule runs on a virtual clock;
memory is the planner's with the allocator's rounding and the driver's share. docs/predictions.md says how good that is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zobench import models
from zobench.cost import backward, footprint, roofline, seconds, shapes, sizes
from zobench.cost.hardware import Gpu
from zobench.cost.roofline import LowRankCosts, Roofline
from zobench.cost.simulation import Allocator, simulate, timeline
from zobench.engine.base import HEAD_BYTES, TILE_BYTES, rows_per_chunk
from zobench.engine.transfers.schedule import Event
from zobench.parallel.mesh import is_out_of_place
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import AUTOCASTS, GRANULARITIES, NOISES, TIERS, WIDTHS

ERRORS = Path(__file__).with_name("errors.toml")
MOVE_WIDTHS, UPDATE_WIDTHS = 5, 7
"""Times a weight's width that in-place passes read and write beside drawing z: z is scaled and added; the update scales
twice and subtracts (:mod:`zobench.engine.directions.perturb`)."""
STORED_WIDTHS = 3
"""Times a weight's width that each use of a stored z takes: it is copied, and at its first use written."""
MOVE_KERNELS, UPDATE_KERNELS = 3, 4
NORM_WIDTHS, NORM_KERNELS = 1, 1
"""The passes and kernels that the norm of a gradient takes, of every tensor in a first-order step
(:mod:`zobench.engine.backprop`)."""
FOREACH_ELEMENTS = 320 << 16
"""Elements that one kernel of torch's ``foreach`` operators changes on CUDA: 320 pieces of 2^16 (MultiTensorApply)."""
PERTURB_WIDTHS, FLIP_WIDTHS, KEEP_WIDTHS = 2, 3, 1
"""The widths that passes move with counter noise: W to W and S; 2 W - S, of a pair's point that is not drawn; W where
an update stays."""
WHOLE_LOSS, RUNNING_LOSS = (8, 5), (24, 16)
"""(Bytes per logit in float32 beside what its product writes, kernels for each piece of the logits): of a softmax over
the whole vocabulary, and of a maximum, a difference, exponentials and their sum, piece by piece."""
LOOP_KERNELS = 8
"""Kernels for each token of a recurrence where no fused kernel has it: a guess from transformers' loops."""
LONGEST = 16
"""Steps from one write-back to the next up to which a timeline is of the step that writes back."""
_MOVING = ("upload", "offload")


def bounds(value: float, share: float, slower: float = 0.0, faster: float = 0.0) -> tuple[float, float]:
    """Returns the bounds of a predicted ``value`` in nine of ten cases; ``share``: the error that nine of ten held-out
    values stay within; of a rate, ``slower``: by how much more a step may take, ``faster``: by how much less, as shares
    of it."""
    return value / (1 + share + slower), value / (1 - share) / (1 - faster)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction for ``spec`` on ``gpu``: seconds of a step, bytes at the peak of one device and of its host and
    disk.

    ``parts``: seconds of a step by what takes them: products, attention, passes over activations, noise (with the
    passes over weights), kernels' launches, upload, offload; those of the link may lie beside the others. ``share`` and
    ``memory_share``: the errors that nine of ten held-out values stay within, as shares. ``slower``: by how much longer
    a step may take beside that, as a share, for what the sentences of ``notes`` say is not counted, and ``faster``: by
    how much less, as a share, for what they say is counted in full.
    """

    spec: RunSpec
    gpu: Gpu
    step_seconds: float
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    parts: Mapping[str, float]
    share: float
    memory_share: float
    slower: float = 0.0
    faster: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """As the papers count tokens: of the batch, once for all forwards."""
        return self.spec.batch_size * sizes.usual(self.spec) / self.step_seconds

    @property
    def range(self) -> tuple[float, float]:
        """Tokens per second that nine of ten such predictions would be within."""
        return bounds(self.tokens_per_second, self.share, self.slower, self.faster)

    @property
    def computing(self) -> Mapping[str, float]:
        """``parts`` without the link's."""
        return {name: value for name, value in self.parts.items() if name not in _MOVING}

    @property
    def stall(self) -> float:
        """Seconds of a step in which nothing is computed, for transfers or allocations."""
        return max(0.0, self.step_seconds - sum(self.computing.values()))

    @property
    def bound(self) -> str:
        """The longest part of what a step cannot do without."""
        computing = self.computing
        moving = max(_MOVING, key=lambda way: self.parts.get(way, 0.0))
        if self.parts.get(moving, 0.0) > sum(computing.values()):
            return "disk" if TIERS[self.spec.tier].is_file else f"link ({moving})"
        return max(computing, key=computing.__getitem__)

    @property
    def fits(self) -> bool:
        """Whether the device's memory holds it."""
        return self.device_bytes <= self.gpu.memory


@functools.lru_cache(maxsize=1 << 13)  # a report asks for a stored run's in every table that it could correct
def predict(spec: RunSpec, gpu: Gpu, disk: float = 0.0) -> Prediction:
    """Returns the prediction of a step of ``spec`` (resolved for a CUDA device) on ``gpu``; ``disk``: bytes/s of a tier
    there."""
    spec = footprint.fit(spec)[0]
    costs, model = Costs(spec, gpu, disk), models.of(spec)
    every, outside = costs.blocks(), costs.outside()
    parts = {name: every[name] + outside[name] for name in every} | costs.moving()
    device, host, kept = footprint.memory(spec)
    shares = errors(gpu.errors)
    step = costs.step(sum(every.values()), sum(outside.values()))
    return Prediction(
        spec=spec, gpu=gpu, step_seconds=step, host_bytes=host, slower=costs.uncounted() / step,
        faster=costs.overcounted() / step, notes=model.uncounted + model.overcounted,
        device_bytes=_reserved(spec, device) + int(gpu.driver), disk_bytes=kept, parts=parts,
        share=shares["throughput"] + (roofline.LOW_RANK_SHARE if costs.low_rank else 0.0),
        memory_share=shares["memory"],
    )  # fmt: skip


@functools.cache
def errors(kind: str) -> Mapping[str, float]:
    """ "throughput" and "memory" -> the error that nine of ten held-out values stay within, as a share; ``kind``: one
    of :data:`zobench.cost.hardware.ERRORS`."""
    of_kind: Mapping[str, float] = tomllib.loads(ERRORS.read_text(encoding="utf-8"))[kind]
    return of_kind


def _reserved(spec: RunSpec, device: int) -> int:
    """Bytes of the segments that the engine's ``device`` bytes lie in. Slots and resident blocks are flat buffers.
    Memory that is not reused has a pool for each allocation, one for each tensor of a block that is not packed and that
    no ranks share."""
    allocator, model, streamed = Allocator(), models.of(spec), footprint.streamed_layers(spec)
    width = footprint.wire_width(spec)
    slot = [footprint.unit_bytes(spec, width)]
    is_one = spec.reusable_memory or spec.wire != "none" or spec.gpus > 1
    if not is_one and GRANULARITIES[spec.granularity].is_block:
        tensors = [int(size * width) for size in shapes.block(model).tensors]
        rest = slot[0] - sum(tensors)
        slot = [*tensors, *([rest] if rest > 0 else [])]
    slots = slot * spec.slots if streamed else []
    blocks = [model.block * WIDTHS[spec.dtype]] * (model.layers - streamed)
    for number, nbytes in enumerate(slots):
        allocator.allocate(nbytes, 0 if spec.reusable_memory else 1 + number)
    for nbytes in (*blocks, max(device - sum(slots) - sum(blocks), 0)):
        allocator.allocate(nbytes)
    return allocator.reserved


class Costs:
    """Seconds of the parts of a step of ``spec`` on one of its devices, a ``gpu``; ``disk``: bytes/s of a tier there.

    ``kept``: write-backs of each block per step. ``pieces``: units of a block. ``tokens``: of a micro-batch, which each
    of the ``forwards`` computes. ``low_rank``: of the directions that a forward adds to its products, where they are of
    low rank. ``together``: points that share a product with W.
    """

    def __init__(self, spec: RunSpec, gpu: Gpu, disk: float) -> None:
        self.spec, self.gpu, self.disk = spec, gpu, disk
        self.model, self.kind = models.of(spec), METHODS.get(spec.method)
        self.block = shapes.block(self.model)
        self.price = Roofline(dataclasses.replace(gpu, kernel=0.0))  # kernels' own seconds are counted apart
        self.precision, self.width = sizes.precision(spec), WIDTHS[spec.dtype]
        self.wire_width = footprint.wire_width(spec)
        self.tokens = sizes.rows_at_once(spec) * sizes.computed(spec)
        self.forwards = seconds.passes(spec)
        self.kept = 1 / seconds.kept_steps(spec)
        unit = GRANULARITIES[spec.granularity]
        self.is_whole, self.pieces = unit.is_block, 1
        if not unit.is_block:
            tile = TILE_BYTES if unit.is_cut else 1 << 62
            self.pieces = sum(int(-(-rows * columns * self.wire_width // tile)) for rows, columns in self.block.linears)
        self.low_rank: LowRankCosts | None = None
        self.together: float = 1
        if self.kind.structure is not None and sizes.tunes_all(spec):
            self.low_rank = LowRankCosts(spec, self.kind.structure, self.price, self.precision)
            self.together = self.forwards
            if self.is_whole:
                self.together = footprint.together(spec, int(self.forwards), int(self.tokens))

    def blocks(self, chosen: float = math.inf) -> dict[str, float]:
        """Seconds of all blocks, by what takes them, of a mixture with at most ``chosen`` experts for each token."""
        kinds = [(self._of_block(block.through(chosen)), count) for block, count in shapes.blocks(self.model)]
        return {name: sum(parts[name] * count for parts, count in kinds) for name in kinds[0][0]}

    def _of_block(self, block: shapes.Block) -> dict[str, float]:
        """Seconds of one block, by what takes them."""
        tensors, moved = len(block.tensors) if sizes.tunes_all(self.spec) else 4, sizes.moved(self.spec)[0]
        units, tuned = 1 if self.is_whole else self.pieces + block.norms, sizes.trained_count(self.spec)
        share = moved / tuned if tuned else 1.0
        noise, kernels = self._noise(moved / self.model.layers, tensors * share, units)
        if self.wire_width != self.width:  # unpacked, and packed where it is kept
            moves = sizes.uploads(self.spec) + self.kept
            noise += self.price.passes(block.parameters * (self.wire_width + self.width) * moves)
        times = self.forwards * self.spec.accumulate
        parts = {name: value * times for name, value in self._forward(block).items()} | {"noise": noise}
        if self.low_rank is not None:
            update, issued = self.low_rank.update(block)
            parts["products"] += update
            kernels += issued
        parts["kernels"] = (kernels + self._launches(block) * self.spec.accumulate) * self.gpu.kernel
        return parts

    def uncounted(self) -> float:
        """Seconds that a step may take beside those counted: of a recurrence that goes token by token through torch's
        own operators, their launches; of what chooses the pairs of attention, as much as attention over all of them."""
        model, tokens = self.model, sizes.usual(self.spec)
        if not model.uncounted:
            return 0.0
        without = sum(count for block, count in shapes.blocks(model) if not any(block.attention))
        launches = LOOP_KERNELS * tokens * (without or model.layers) * self.gpu.kernel
        pairs = max(block.pairs(tokens) for block, _ in shapes.blocks(model)) * model.layers
        operations = 2 * sizes.rows_at_once(self.spec) * pairs
        return self.forwards * self.spec.accumulate * max(launches, operations / self.gpu.attention(self.precision))

    def overcounted(self) -> float:
        """Seconds by which a step is shorter if a token goes through one expert, where all are counted because their
        number is not known."""
        if not self.model.overcounted:
            return 0.0
        outside = sum(self.outside().values())
        every, least = (self.step(sum(self.blocks(chosen).values()), outside) for chosen in (math.inf, 1.0))
        return every - least

    def outside(self) -> dict[str, float]:
        """Seconds of embedding and head, by what takes them."""
        spec, model, forwards, width = self.spec, self.model, self.forwards, self.width
        times, judged = forwards * spec.accumulate, min(sizes.judged(spec) // spec.accumulate, self.tokens)
        shared = 1.0 if self.low_rank is None else forwards  # points whose logits are made at once, in smaller pieces
        per_logit, in_piece, pieces = self._loss(judged * shared)
        rows, columns = (
            (judged / pieces, model.vocab) if NOISES[spec.noise].in_place else (judged, model.vocab // pieces)
        )
        product = pieces * self.price.product(rows * shared, model.embedding_width, columns, self.precision) / shared
        added = 0.0
        if self.low_rank is not None:
            product += pieces * self.low_rank.product(rows, model.embedding_width, columns, shared)
            added = pieces * self.low_rank.product_kernels(forwards, 1) * spec.accumulate
        nbytes = judged * model.vocab * (per_logit + (width + 4 if width < 4 else 0))
        noise, kernels = self._noise(sizes.moved(spec)[1], 4, 3)
        return {
            "products": product * times, "attention": 0.0,
            "passes": (self.price.losses(nbytes) + self.price.passes(self.tokens * model.hidden * 10 * width)) * times,
            "noise": noise, "kernels": (kernels + added + (in_piece * pieces + 12) * times) * self.gpu.kernel,
        }  # fmt: skip

    def _loss(self, judged: float) -> tuple[int, int, int]:
        """(bytes per logit beside its cast to float32, kernels for each piece of the logits, number of pieces): chunks
        of tokens where the head's weights are perturbed in place, else pieces of the vocabulary."""
        vocab, logits = self.model.vocab, backward.LOGITS_BYTES
        if NOISES[self.spec.noise].in_place:
            return (*WHOLE_LOSS, -(-int(judged) // rows_per_chunk(vocab, logits)))
        head = HEAD_BYTES // (self.model.embedding_width * self.width)
        return (*RUNNING_LOSS, -(-vocab // max(1, min(head, logits // (4 * int(judged))))))

    def moving(self) -> dict[str, float]:
        """Seconds of a step's transfers, by direction; none where nothing travels."""
        if not footprint.streamed_layers(self.spec):
            return {}
        rounds = 1 if self.spec.fused_update else 2  # each of which writes back
        times = sizes.uploads(self.spec)
        reads, writes = self.transfers(both=False), self.transfers(both=True)
        upload = self.kept * writes["upload"] + (times - self.kept) * reads["upload"]
        return {"upload": rounds * upload, "offload": rounds * self.kept * writes["offload"]}

    def transfers(self, *, both: bool) -> dict[str, float]:
        """Seconds of moving all streamed blocks once, each way; ``both``: with the link in use both ways."""
        spec, gpu, ranks = self.spec, self.gpu, self.spec.gpus // self.spec.nodes
        up, down = seconds.traversal_bytes(spec)
        if TIERS[spec.tier].is_file:
            return {"upload": up * ranks / self.disk, "offload": down * ranks / self.disk}
        rate = gpu.pcie * (gpu.link_both if both else gpu.link_one) if TIERS[spec.tier].is_pinned else gpu.pageable / 2
        way = roofline.Links(link=rate, peers=gpu.nvlink or None)
        wanted = spec.transfers == "sliced" or (spec.transfers not in ("whole", "naive") and gpu.nvlink > rate)
        move = roofline.sliced_seconds if ranks > 1 and wanted else roofline.whole_seconds
        back = roofline.whole_seconds if spec.transfers == "naive" else roofline.offload_seconds
        return {"upload": move(up, ranks, way), "offload": back(down, ranks, way)}

    def lanes(self, *, writes: bool) -> dict[str, float]:
        """Seconds of each lane of transfers in one way through the model, which is one that ``writes`` back or not."""
        moved = self.transfers(both=writes)
        up, down = moved["upload"], moved["offload"] if writes else 0.0
        if TIERS[self.spec.tier].is_file:  # both ways share the disk
            return {"upload": up + down, "offload": 0.0}
        return {"upload": up, "offload": down}

    def step(self, blocks: float, outside: float) -> float:
        """Seconds of a step whose blocks compute for ``blocks`` seconds: in the mean of those that write back and
        those that do not. A further upload of a method writes nothing back."""
        if not footprint.streamed_layers(self.spec):
            return max(blocks, self._gathering()) + outside
        uploads, reads, writes = sizes.uploads(self.spec), 0.0, 0.0
        if self.kept < 1 or uploads > 1:
            reads = self._traversal(blocks / uploads, outside / uploads, writes=False)
        if self.kept:
            writes = self._traversal(blocks / uploads, outside / uploads, writes=True)
        return self.kept * writes + (uploads - self.kept) * reads

    def _gathering(self) -> float:
        """Seconds in which ranks that share gradients out gather the blocks' weights, for the forward and for the
        backward pass, and add up their gradients: each time what the others hold, over NVLink or the host's link."""
        spec, gpu = self.spec, self.gpu
        if spec.parallel != "fsdp":
            return 0.0
        weights = models.blocks_parameter_count(self.model) * self.width
        return 3 * weights * (spec.gpus - 1) / spec.gpus / (gpu.nvlink or gpu.pcie)

    def timeline(self) -> list[Event]:
        """Operations of a step, as a run records them; none where nothing is streamed. They are those of a step that
        writes back, unless there are more than :data:`LONGEST` from one such to the next."""
        if not footprint.streamed_layers(self.spec):
            return []
        uploads, begin, events = sizes.uploads(self.spec), 0.0, list[Event]()
        blocks, outside = (sum(parts.values()) / uploads for parts in (self.blocks(), self.outside()))
        for writes in [False] * (uploads - 1) + [self.kept * LONGEST >= 1]:
            taken, operations = timeline(self.spec, *self._units(blocks, outside, writes=writes), halt=self.malloc)
            events += [(lane, kind, block, begin + a, begin + b) for lane, kind, block, a, b in operations]
            begin += taken
        return events

    def _traversal(self, blocks: float, outside: float, *, writes: bool) -> float:
        """Seconds of one way through the model, or of two without the fused update."""
        return simulate(self.spec, *self._units(blocks, outside, writes=writes), halt=self.malloc)

    def _units(self, blocks: float, outside: float, *, writes: bool) -> tuple[int, dict[str, float]]:
        """(streamed units, seconds of each kind of operation of one of them) in :meth:`_traversal`."""
        spec, units = self.spec, footprint.streamed_layers(self.spec) * self.pieces
        update = 0.0 if spec.fused_update else self._update()
        moved = {way: taken / units for way, taken in self.lanes(writes=writes).items()}
        if not spec.reusable_memory:  # an upload to a CPU's memory meets pages that are new
            moved["upload"] += self.gpu.touch * footprint.unit_bytes(spec, self.wire_width)
        return units, {"compute": (blocks - update) / units, "update": update / units, "head": outside} | moved

    @property
    def malloc(self) -> float:
        """Seconds in which the host allocates an upload's memory, where that is not reused, with the device idle: an
        allocation for each tensor, or one for a unit on a packed wire, or of which ranks upload shares."""
        if self.spec.reusable_memory:
            return 0.0
        is_one = self.spec.wire != "none" or self.spec.gpus > 1
        return self.gpu.malloc * (1 if is_one else len(self.block.tensors) / self.pieces)

    def _forward(self, block: shapes.Block) -> dict[str, float]:
        """Seconds of one forward of one block, by what takes them, without its kernels' own."""
        spec, price, tokens, shared = self.spec, self.price, self.tokens, self.together
        products = sum(price.product(tokens * shared, *sides, self.precision) / shared for sides in block.linears)
        products += sum(self._routed(stack, tokens * shared) / shared for stack in block.experts)
        if self.low_rank is not None:
            products += sum(self.low_rank.product(tokens, *sides, shared) for sides in block.linears)
        cast = AUTOCASTS[spec.autocast].is_cast
        width = 4 if cast else self.width
        nbytes = tokens * (block.elementwise(width).per_token + 2 * block.gathered(self.is_whole) * width)
        rows, usual, is_whole = sizes.rows_at_once(spec), sizes.usual(spec), sizes.has_whole_attention(spec)
        attention = 2 * rows * block.pairs(usual, is_whole) / self.gpu.attention(self.precision)
        if is_whole and any(block.attention):
            attention += price.passes(rows * usual**2 * self.model.heads * 6 * width)
        passes = price.passes(nbytes + (6 * block.parameters if cast else 0))
        return {"products": products, "attention": attention, "passes": passes}

    def _routed(self, stack: shapes.Experts, tokens: float) -> float:
        """Seconds of the products of a stack of experts: each that is hit multiplies its share of the tokens' copies,
        and its weights are read."""
        hit = stack.hit(tokens)
        return self.price.product(tokens * stack.chosen / hit, stack.inputs, stack.outputs, self.precision, hit)

    def _launches(self, block: shapes.Block) -> float:
        """Kernels of all forwards of a micro-batch in one block: of units smaller than a block each point takes its
        products and norms, whose results are put together, and all points together the rest."""
        passes, casts, forwards = block.elementwise(self.width), AUTOCASTS[self.spec.autocast].is_cast, self.forwards
        single, linears = passes.norms + (len(block.tensors) if casts else 0), len(block.linears) + len(block.experts)
        if self.low_rank is not None:
            calls = forwards / self.together
            added = self.low_rank.kernels(block, forwards, calls)
            return forwards * single + calls * (linears + passes.others + 1) + added + 1
        if self.is_whole:
            return forwards * (single + linears + passes.others + 1) + 1
        return forwards * (single + 2 * linears) + block.norms + passes.others + 1

    def _noise(self, elements: float, tensors: float, units: int) -> tuple[float, float]:
        """Seconds of drawing z for ``elements`` tuned weights and of passing over them, and the number of kernels:
        some for each of ``tensors`` with torch noise, one for each of ``units`` with counter noise."""
        spec, kind, price, noise = self.spec, self.kind, self.price, NOISES[self.spec.noise]
        if not kind.draws:
            return self._by_gradients(elements, tensors)
        if kind.structure is not None:
            elements *= sizes.drawn(spec) / (sizes.trained_count(spec) + sizes.trained(spec)[1])
        width, queries = sizes.trained_width(spec), spec.queries
        state = price.passes(elements * sizes.optimizer_width(spec) * 2)
        if noise.in_place:
            moves = seconds.draws(spec) - 1
            drawn = price.normals(noise.draws(moves + 1) * kind.normals * elements, width)
            copied = STORED_WIDTHS * (moves + 1) * kind.normals if noise.is_stored else 0
            passes = price.passes(elements * width * (MOVE_WIDTHS * moves + UPDATE_WIDTHS + copied))
            return queries * (drawn + passes) + state, queries * tensors * (MOVE_KERNELS * moves + UPDATE_KERNELS)
        paired = 2 * kind.uploads if kind.pairs(spec, self.model.layers) and not is_out_of_place(spec) else 0
        each = spec.accumulate * queries
        looks, flips = kind.counter_draws * each, max(paired - kind.counter_draws, 0) * each
        draws = (looks + seconds.pending(spec) * each) * kind.normals
        drawn = draws * elements / self.gpu.normals_per_second(width, counter=True)
        made = price.passes(elements * width * (PERTURB_WIDTHS * looks + KEEP_WIDTHS))
        flipped = price.passes(elements * width * FLIP_WIDTHS * flips)
        return max(drawn, made) + flipped + state, float(looks + flips) * units

    def _by_gradients(self, elements: float, tensors: float) -> tuple[float, float]:
        """Seconds of the gradients' norm and of the optimizer's step, and the number of kernels."""
        widths, kernels = self.kind.optimizer(self.spec)
        is_joint = self.spec.foreach and self.spec.device.startswith("cuda")
        elements /= self.spec.gpus if self.spec.parallel == "fsdp" else 1  # whose ranks share gradients out
        launches = kernels * (math.ceil(elements / FOREACH_ELEMENTS) if is_joint else tensors)
        nbytes = elements * sizes.trained_width(self.spec) * (widths + NORM_WIDTHS)
        return self.price.passes(nbytes), launches + NORM_KERNELS * tensors

    def _update(self) -> float:
        """Seconds of the update of all blocks alone, which is a part of their noise."""
        elements, width = sizes.trained_count(self.spec), sizes.trained_width(self.spec)
        copied = self.price.passes(elements * width * STORED_WIDTHS)
        drawn = copied if NOISES[self.spec.noise].is_stored else self.price.normals(elements, width)
        kernels = UPDATE_KERNELS * len(self.block.tensors) * self.model.layers * self.gpu.kernel
        return drawn + self.price.passes(elements * width * UPDATE_WIDTHS) + kernels
