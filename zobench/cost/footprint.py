"""Predicted bytes of a cell at its peak, and the planner that fits one into a given device memory."""

from __future__ import annotations

import functools
import os

from zobench import models
from zobench.cost import backward, shapes, sizes
from zobench.engine.base import CONSOLIDATE_AFTER, CUDA_CONSOLIDATE_AFTER, HEAD_BYTES, TILE_BYTES, rows_per_chunk
from zobench.parallel.mesh import divided, is_out_of_place
from zobench.runspec import METHODS, RunSpec, scheme_of, size_text
from zobench.runspec.kinds import ENGINES, GRANULARITIES, NOISES, TIERS, WIDTHS, WIRES

SHARED_BLOCKS = 8
"""Host blocks that serve all layers with weights=shared."""
STAGING_BYTES = 128 << 20
"""Most bytes through which a lane reads or writes files, in two pieces (zobench/engine/weights/tiers.py)."""
CPU_HEAP = 64 << 20
"""The bytes that the C library's heap keeps of freed pieces below 4 MiB while units are streamed (measured: 50 to 100
MB)."""
CPU_LIBRARIES = 24 << 20
"""The bytes that the libraries of products keep on a CPU beside tensors, operands in the order in which they read them
(measured: 15 to 45 MB); the heap above has room for these too."""
PARTS_STEPS = 5
"""Steps that ``parts`` adds."""
RANK_BYTES = 300 << 20
"""The bytes of host memory that a further rank's interpreter and libraries take."""
SNAPSHOTS = 3
"""Checkpoints of a run that are on the disk at once: the last two, and the one that is being written."""
TOGETHER = 1024
"""Tokens of several points that go through a block at once where these share its products."""
FACTOR_WIDTH = 4
"""Bytes of a number in U or V."""
POPULATION_STATES = 5
"""Hidden states of a whole population that exist at once (counted on the meta device)."""
MARGIN = 0.9
"""Share of a given device memory that a plan uses: predictions are this good."""
ATTENTION_MATRICES = 6
"""The matrices of tokens x tokens in all heads that plain attention with tangents holds at once."""
EAGER_MATRICES = 3
"""The matrices of tokens x tokens in all heads that attention without a fused kernel holds at once: scores, their
shares, a mask."""
FORMS = (("block", 3), ("linear", 3), ("tile", 3), ("tile", 2))
"""(granularity, slots) that the planner tries, the simplest first."""


def memory(spec: RunSpec) -> tuple[int, int, int]:
    """(device, host, disk) bytes at the peak: of one device, and of one of the spec's nodes with all of its ranks.

    On a CPU the device's and the host's bytes are the same memory, and the other ranks' are counted with the host's.
    Raises ``ValueError`` if the spec's own ``device_memory`` cannot hold it.
    """
    spec = fit(spec)[0]
    device, host, disk, shared = _of_a_rank(spec)
    ranks = spec.gpus // spec.nodes
    kept, copied = _saved(spec)
    host = shared + host * ranks + copied
    if spec.device == "cpu":
        host += (ranks - 1) * (device + RANK_BYTES)
    return device, host, disk * ranks + kept


@functools.lru_cache(maxsize=1 << 13)
def _of_a_rank(spec: RunSpec) -> tuple[int, int, int, int]:
    """(device, host, disk) bytes of one rank alone, and of the weights in host memory that those of a node share."""
    if METHODS.get(spec.method).backpropagates:
        return max(backward.peak(spec), _resident_bytes(spec) + activations(spec)), 0, 0, 0
    layers, streamed, host = models.of(spec).layers, streamed_layers(spec), 0
    device = weights_bytes(spec) + _scratch(spec) + activations(spec)
    if not streamed:
        return device, 0, 0, 0
    stored = min(SHARED_BLOCKS, layers) if spec.weights == "shared" else streamed
    at_rest = _blocks_bytes(spec, stored, wire_width(spec))
    if spec.device == "cpu":
        device = max(device, _resident_bytes(spec) + _filling(spec))
    else:
        host = max(_filling(spec), _staging(spec))
    tier = TIERS[spec.tier]
    if not tier.is_file:
        return device, host, 0, at_rest
    return device, host, at_rest if tier.is_filled or consolidates(spec) else 0, 0


def weights_bytes(spec: RunSpec) -> int:
    """Bytes of weights that a device holds at once, its slots among them, whatever the device and the cores."""
    streamed = streamed_layers(spec)
    kept = _resident_bytes(spec) + _blocks_bytes(spec, models.of(spec).layers - streamed, sizes.base_width(spec))
    if not streamed:
        return kept
    return kept + min(spec.slots * unit_bytes(spec, wire_width(spec)), _blocks_bytes(spec, streamed, wire_width(spec)))


def _blocks_bytes(spec: RunSpec, count: int, width: float) -> int:
    """Bytes of ``count`` blocks at ``width`` bytes a weight, with their adapters and state."""
    model = models.of(spec)
    added = sizes.state_width(spec) + sizes.adapter_width(spec)
    return int(models.blocks_parameter_count(model, count) * width) + sizes.trained_count(spec, count) * added


def _saved(spec: RunSpec) -> tuple[int, int]:
    """Bytes of snapshots on the disk, of which two are kept while the next is written; and in host memory, of the copy
    that asynchronous ones are made from (ZO-Offloading, section 5.5)."""
    if spec.checkpoint == "none":
        return 0, 0
    if METHODS.get(spec.method).backpropagates:
        return SNAPSHOTS * sizes.snapshot_bytes(spec), 0
    streamed, outside = streamed_layers(spec), sizes.trained(spec)[1]
    width = sizes.trained_width(spec) + sizes.state_width(spec)
    at_rest = (wire_width(spec) if sizes.tunes_all(spec) else sizes.adapter_width(spec)) + sizes.state_width(spec)
    stays = sizes.trained_count(spec, models.of(spec).layers - streamed)
    kept = int(sizes.trained_count(spec, streamed) * at_rest) + (stays + outside) * width
    return SNAPSHOTS * kept, kept if spec.checkpoint == "async" else 0


def _resident_bytes(spec: RunSpec) -> int:
    """Bytes of all weights outside the blocks, with their adapters and state."""
    return models.resident_parameter_count(*models.variant(spec)) * WIDTHS[spec.dtype] + sizes.added(spec)[1]


def streamed_layers(spec: RunSpec) -> int:
    """Blocks that rest outside the device."""
    layers = models.of(spec).layers
    return layers - min(spec.resident_blocks, layers) if ENGINES[spec.engine].is_streamed else 0


def wire_width(spec: RunSpec) -> float:
    """Bytes of one offloaded weight at rest and on the link."""
    if WIRES[spec.wire].is_packed:
        return WIRES[spec.wire].width(spec.dtype)
    return models.stored_width(spec) or sizes.base_width(spec)


def is_packed(spec: RunSpec) -> bool:
    """Whether offloaded weights rest in another form than that of the device, so that they are unpacked there."""
    return WIRES[spec.wire].is_packed or models.stored_width(spec) is not None


def unit_bytes(spec: RunSpec, width: float) -> int:
    """Bytes of the largest unit that one slot holds, at ``width`` bytes a weight, with its adapter and state."""
    if GRANULARITIES[spec.granularity].is_block:
        return _bare_bytes(spec, width) + sizes.added(spec)[0]
    return _bare_bytes(spec, width, sizes.state_width(spec) if sizes.tunes_all(spec) else 0)


def _bare_bytes(spec: RunSpec, width: float, state: int = 0) -> int:
    """Bytes of the largest unit's weights, with ``state`` more bytes beside each."""
    if GRANULARITIES[spec.granularity].is_block:
        return int(models.of(spec).block * (width + state))
    linear = models.of(spec).largest_linear
    pieces = int(-(-linear * width // TILE_BYTES)) if GRANULARITIES[spec.granularity].is_cut else 1
    return int(linear * (width + state) // pieces)


def activations(spec: RunSpec) -> int:
    """Bytes of one block's activations, the hidden states of all points, and the loss in chunks.

    Block by block one point is computed at a time; with smaller units, attention takes all points at once.
    """
    architecture, width = models.of(spec), WIDTHS[spec.dtype]
    longest = sizes.longest(spec)
    tokens, points = sizes.rows_at_once(spec) * longest, _points(spec)
    inner = int(shapes.feed_forward(architecture))
    at_once = together(spec, points, tokens) if GRANULARITIES[spec.granularity].is_block else points
    states = 2 * architecture.hidden * (points + at_once) + inner * at_once
    states += 4 * architecture.hidden * at_once if spec.packed else 0  # attention's operands and output, row by row
    masked = spec.data == "ragged" or spec.task != "none"
    mask = sizes.rows_at_once(spec) * longest**2 * width if masked else 0
    rows = HEAD_BYTES // (architecture.hidden * width) if not NOISES[spec.noise].in_place else architecture.vocab
    structure = METHODS.get(spec.method).structure
    judged = sizes.judged(spec) // spec.accumulate * (1 if structure is None else points)
    logits = min(backward.LOGITS_BYTES, judged * min(rows, architecture.vocab) * 4)
    scores = EAGER_MATRICES * sizes.rows_at_once(spec) * architecture.heads * longest**2 * width * at_once
    if structure is not None and structure.is_apart:
        return _of_a_population(spec, tokens * points, logits) + mask * points
    lost = 3 * logits
    if NOISES[spec.noise].in_place:  # float32 logits of a few tokens and their softmax
        lost = 2 * 4 * architecture.vocab * min(judged, rows_per_chunk(architecture.vocab, backward.LOGITS_BYTES))
    whole = scores if sizes.has_whole_attention(spec) else 0
    libraries = CPU_LIBRARIES if spec.device == "cpu" and not _heap(spec) else 0
    return tokens * states * width + mask + lost + whole + libraries


def _heap(spec: RunSpec) -> int:
    """Returns the bytes that the C library keeps on a CPU of memory that is freed in pieces, which are those of units
    and of fp8, scaled a piece at a time."""
    in_pieces = not NOISES[spec.noise].in_place or WIRES[spec.wire].is_scaled
    return CPU_HEAP if spec.device == "cpu" and ENGINES[spec.engine].is_streamed and in_pieces else 0


def _of_a_population(spec: RunSpec, tokens: int, logits: int) -> int:
    """Bytes of a population's activations: ``tokens`` of all members, of which some are in a block at once."""
    architecture, width = models.of(spec), WIDTHS[spec.dtype]
    states = tokens * architecture.hidden * width
    widths = 2 * architecture.hidden + int(shapes.feed_forward(architecture))
    at_once = min(tokens, max(TOGETHER, sizes.longest(spec))) * widths * width
    blocks = POPULATION_STATES * states + (at_once if architecture.whole_attention else 0)
    return max(blocks, 2 * (states + logits), 2 * states + at_once)


def together(spec: RunSpec, points: int, tokens: int) -> int:
    """Points that go through a block at once: where they share products, as many as fit, a divisor of all."""
    room = 1 if METHODS.get(spec.method).structure is None else max(1, TOGETHER // tokens)
    return max(size for size in range(1, points + 1) if points % size == 0 and size <= room)


def _points(spec: RunSpec) -> int:
    """Points (weights +- eps z) at which the largest pass computes; with PertP a rank computes one of each pair."""
    kind = METHODS.get(spec.method)
    singles = 0 if kind.singles is None else kind.singles(spec)
    return max(1, 2 * kind.pairs(spec, models.of(spec).layers) // divided(spec)[1] + singles, kind.candidates)


def fit(spec: RunSpec) -> tuple[RunSpec, str]:
    """``spec`` with granularity, slots and resident blocks that fit its ``device_memory``, and why; else itself.

    The first of ``FORMS`` that fits, then as many blocks resident as the rest holds. ``ValueError`` if none does.
    """
    if not spec.device_memory:
        return spec, ""
    plain, room = spec.replace(device_memory=0), int(spec.device_memory * MARGIN)
    layers, limit = models.of(spec).layers, f"device_memory={size_text(spec.device_memory)}"
    for granularity, slots in forms(spec):
        chosen = plain.replace(granularity=granularity, slots=slots, resident_blocks=0)
        if (need := memory(chosen)[0]) <= room:
            kept = (chosen.replace(resident_blocks=count) for count in range(layers, -1, -1))
            chosen = next(candidate for candidate in kept if memory(candidate)[0] <= room)
            form = f"{granularity}s in {slots} slots need {megabytes(need)}"
            return chosen, f"{limit}: {form}, and {chosen.resident_blocks} of {layers} blocks stay"
    least = megabytes(int(need / MARGIN))
    raise ValueError(
        f"`device_memory >= {least}` must hold for {spec.model} in {slots} slots of {granularity}s, but got {limit}; "
        "give it more memory or shorter batches (need predicted)"
    )


def is_sized(spec: RunSpec) -> bool:
    """Whether the sizes of a stored run can be had: its model is known, and its ``device_memory`` holds it still."""
    try:
        return models.is_known(spec) and bool(fit(spec))
    except ValueError:  # planned by the formulas of another version
        return False


def forms(spec: RunSpec) -> tuple[tuple[str, int], ...]:
    """Those of :data:`FORMS` that ``spec`` can have: tangents need whole blocks, and so does a model whose matrices are
    not all in linear layers, such as stacks of experts."""
    return FORMS[:1] if METHODS.get(spec.method).tangents or not models.of(spec).all_linear else FORMS


def limited(spec: RunSpec, nbytes: int) -> RunSpec:
    """``spec`` with ``device_memory``, so that the planner chooses what ``spec`` had chosen itself; unchanged where
    there is nothing to choose: a resident model, and torch noise, which needs whole blocks."""
    if not ENGINES[spec.engine].is_streamed or NOISES[spec.noise].in_place:
        return spec
    return spec.replace(device_memory=nbytes, granularity="block", slots=3, resident_blocks=0, compile=False)


def megabytes(nbytes: int) -> str:
    """``5300MB``, rounded up."""
    return f"{-(-nbytes // 10**6)}MB"


def _scratch(spec: RunSpec) -> int:
    """Bytes that the arithmetic needs beside the weights: noise, perturbed copies, unpacked weights, tangents."""
    packed = is_packed(spec)
    heap = _heap(spec)
    kind = METHODS.get(spec.method)
    definition = kind.definition(spec)
    heap += _tangents(spec) if kind.tangents else 0
    heap += _made(spec)
    on_cuda = spec.device.startswith("cuda")
    if on_cuda and WIRES[spec.wire].bits:
        heap += min(_PIECE, _largest_trained(spec)) * 4
    if NOISES[spec.noise].in_place:
        largest = _largest_trained(spec) if on_cuda else 0
        together = spec.queries if definition.rule else 1  # a rule needs all of a step's directions at once
        heap += _copy_bytes(spec) if is_out_of_place(spec) else 0
        noise = largest * (together * kind.normals * sizes.trained_width(spec) + 4 * definition.copies)
        noise += _stored(spec)
        return noise + heap + (models.of(spec).block * WIDTHS[spec.dtype] if packed else 0)
    if kind.structure is not None:
        return _factors(spec) + heap + (_bare_bytes(spec, WIDTHS[spec.dtype]) if packed else 0)
    pieces = min(_PIECE, _largest_trained(spec)) * 4 * definition.piece_copies if on_cuda else 0
    bare = _bare_bytes(spec, WIDTHS[spec.dtype]) if sizes.tunes_all(spec) else 0
    unit = max(bare, HEAD_BYTES)
    stays = not ENGINES[spec.engine].is_streamed or spec.resident_blocks > 0
    again = unit if packed or stays else HEAD_BYTES  # where pending updates are replayed that are not to stay
    return unit + (again if packed or spec.writeback_every != 1 else 0) + pieces + heap


def _stored(spec: RunSpec) -> int:
    """Bytes of the directions of a pass that stay in memory: Forward-Grad has a pass for each query."""
    kind = METHODS.get(spec.method)
    if not NOISES[spec.noise].is_stored:
        return 0
    directions = 1 if kind.tangents else spec.queries
    return directions * kind.normals * (sizes.trained_count(spec) + sizes.trained(spec)[1]) * sizes.trained_width(spec)


def _copy_bytes(spec: RunSpec) -> int:
    """Bytes of the largest tuned unit, which W + c z is written into: a block, or the head's table."""
    if not sizes.tunes_all(spec):
        return max(sizes.trained(spec)) * sizes.trained_width(spec)
    return max(models.of(spec).block * WIDTHS[spec.dtype], backward.table_bytes(spec))


def _made(spec: RunSpec) -> int:
    """Bytes of the largest matrix that is made of integers for its product."""
    return 0 if scheme_of(spec).base is None else models.of(spec).largest_linear * WIDTHS[spec.dtype]


def _factors(spec: RunSpec) -> int:
    """Bytes of what is pending and shared of all that is tuned, and of a rule's state, in float32; of every point's
    factors in the largest unit, and a change of these; and of two tables of positions outside the blocks. Factors of a
    population exist twice for a moment where a unit is updated."""
    structure = METHODS.get(spec.method).structure
    assert structure is not None, f"{spec.method} has directions of full rank"
    if structure.is_apart:
        return 2 * FACTOR_WIDTH * spec.queries * sizes.largest_factors(spec)
    separate, shared = sizes.factors(spec)
    at_points = (_points(spec) + 1) * sizes.largest_factors(spec)
    tables = sorted(models.resident_sizes(*models.variant(spec))) if sizes.tunes_all(spec) else [0]
    words = tables[-1]
    made = 2 * max((size for size in tables if size < words), default=0) * WIDTHS[spec.dtype]
    return FACTOR_WIDTH * ((1 + structure.states) * separate + shared + at_points) + made


_PIECE = 1 << 24
"""Elements that a rule, a mask or an encoding to integers takes at once on a CUDA device."""


def _largest_trained(spec: RunSpec) -> int:
    """Elements of the largest tuned tensor."""
    return sizes.largest_tensor(spec) if sizes.tunes_all(spec) else max(sizes.adapter(spec))


def _tangents(spec: RunSpec) -> int:
    """Bytes that Forward-Grad needs: the direction of a block or a table, a tangent for every activation, and whole
    matrices of attention, because no fused kernel has a forward derivative."""
    units = max(sizes.trained(spec)[0], backward.table_bytes(spec) // WIDTHS[spec.dtype] * sizes.tunes_all(spec))
    matrix = sizes.rows_at_once(spec) * models.of(spec).heads * sizes.longest(spec) ** 2 * WIDTHS[spec.dtype]
    return units * sizes.trained_width(spec) + activations(spec) + ATTENTION_MATRICES * matrix


def _filling(spec: RunSpec) -> int:
    """Bytes of host memory that the threads hold which fill a tier: a unit at rest each, where it is no memory itself,
    and the unit that it is packed from. A checkpoint is not filled."""
    tier = TIERS[spec.tier]
    if not tier.is_filled:
        return 0
    packed_from = unit_bytes(spec, WIDTHS[spec.dtype]) if WIRES[spec.wire].is_packed else 3 * _made(spec)
    at_rest = unit_bytes(spec, wire_width(spec)) if tier.is_file else 0
    return min(spec.slots, os.cpu_count() or 1) * (packed_from + at_rest)


def _staging(spec: RunSpec) -> int:
    """Bytes of host memory through which a CUDA device reads and writes a disk, and reads a checkpoint."""
    tier = TIERS[spec.tier]
    if not tier.is_file:
        return 0
    lanes = 2 if tier.is_filled else 3 if consolidates(spec) else 1
    return lanes * min(unit_bytes(spec, wire_width(spec)), STAGING_BYTES)


def consolidates(spec: RunSpec) -> bool:
    """Whether a run of ``spec`` with writeback_every=inf is so long that its journal is written into the weights."""
    read_only = WIRES[spec.wire].is_read_only or models.stored_width(spec) is not None
    return run_passes(spec) > consolidate_after(spec) and not read_only


def steps_of(spec: RunSpec) -> int:
    """Steps that a cell takes, warm-up and those of its parts included."""
    return spec.steps + spec.warmup + (PARTS_STEPS if spec.parts else 0)


def run_passes(spec: RunSpec) -> int:
    """Traversals of the model that may write: the steps of a run, and what it does beside them."""
    return steps_of(spec) + spec.survival


def consolidate_after(spec: RunSpec) -> int:
    """After how many steps writeback_every=inf writes pending updates into the weights at rest all the same."""
    is_written = spec.device.startswith("cuda") and TIERS[spec.tier].is_filled
    return CUDA_CONSOLIDATE_AFTER if is_written else CONSOLIDATE_AFTER
