"""Predicted bytes of a cell at its peak, and the planner that fits one into a given device memory."""

from __future__ import annotations

import os

from zobench import models
from zobench.spec import RunSpec, size_text

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one weight by dtype or wire format; fp8's scales (one per row) are below a thousandth of its values."""
SHARED_BLOCKS = 8
"""Host blocks that serve all layers with weights=shared."""
TILE_BYTES = 64 << 20
"""Largest unit with granularity=tile."""
HEAD_TILE_BYTES = 16 << 20
"""With counter noise the head is perturbed in tiles of its vocabulary of about this size."""
CPU_HEAP = 64 << 20
"""What the C library's heap keeps of freed pieces below 4 MiB while units are streamed (measured: 50 to 100 MB)."""
CONSOLIDATE_AFTER = 256
"""Steps whose updates a journal holds with writeback_every=inf; a checkpoint's blocks then get a copy on the disk."""
PARTS_STEPS = 5
"""Steps that ``parts`` adds."""
MARGIN = 0.9
"""Share of a given device memory that a plan uses: predictions are this good."""
FORMS = (("block", 3), ("linear", 3), ("tile", 3), ("tile", 2))
"""(granularity, slots) that the planner tries, the simplest first."""


def memory(spec: RunSpec) -> tuple[int, int, int]:
    """(device, host, disk) bytes at the peak. On a CPU the device's and the host's bytes are the same memory.

    Raises ``ValueError`` if the spec's own ``device_memory`` cannot hold it.
    """
    spec = fit(spec)[0]
    layers, block = models.get(spec.model).layers, models.block_parameter_count(spec.model)
    streamed = streamed_layers(spec)
    resident = models.resident_parameter_count(*models.variant(spec)) * BYTES[spec.dtype]
    device = resident + _scratch(spec) + activations(spec) + block * BYTES[spec.dtype] * (layers - streamed)
    if not streamed:
        return device, 0, 0
    stored, host, disk = block * wire_width(spec), 0, 0
    device += min(spec.slots * unit_bytes(spec, wire_width(spec)), streamed * stored)
    at_rest = stored * (min(SHARED_BLOCKS, layers) if spec.weights == "shared" else streamed)
    if spec.device == "cpu":
        device = max(device, resident + _filling(spec))
    else:
        host = max(_filling(spec), _staging(spec))
    if spec.tier == "checkpoint":
        disk = at_rest if _consolidates(spec) else 0
    elif spec.tier == "disk":
        disk = at_rest
    else:
        host += at_rest
    return device, host, disk


def streamed_layers(spec: RunSpec) -> int:
    """Blocks that rest outside the device."""
    layers = models.get(spec.model).layers
    return layers - min(spec.resident_blocks, layers) if spec.engine == "offload" else 0


def wire_width(spec: RunSpec) -> int:
    """Bytes of one offloaded weight at rest and on the link."""
    return BYTES[spec.dtype if spec.wire == "none" else spec.wire]


def unit_bytes(spec: RunSpec, width: int) -> int:
    """Bytes of the largest unit that one slot holds, at ``width`` bytes a weight."""
    if spec.granularity == "block":
        return models.block_parameter_count(spec.model) * width
    linear = models.largest_linear(spec.model) * width
    return linear if spec.granularity == "linear" else linear // -(-linear // TILE_BYTES)


def activations(spec: RunSpec) -> int:
    """Bytes of one block's activations, the hidden states of all points, and the loss in chunks.

    Block by block one point is computed at a time; with smaller units, attention takes all points at once.
    """
    architecture, width = models.get(spec.model), BYTES[spec.dtype]
    tokens, points = spec.tokens_per_step, 2 * spec.queries
    inner = 2 * int(architecture.config.get("ffn_dim") or architecture.config["intermediate_size"])
    at_once = 1 if spec.granularity == "block" else points
    states = 2 * architecture.hidden * (points + at_once) + inner * at_once
    mask = spec.batch_size * spec.seq_len**2 * width if spec.data == "ragged" else 0
    rows = HEAD_TILE_BYTES // (architecture.hidden * width) if spec.noise == "counter" else architecture.vocab
    logits = min(32 << 20, tokens * min(rows, architecture.vocab) * 4)
    return tokens * states * width + mask + 3 * logits


OPTIMIZERS = {"sgd": (0, 0), "adamw": (2, 1)}
"""First-order optimizers: copies of the weights that are their state, and copies that a step makes and frees. AdamW's
are the two moments and the root of the second, of all tensors at once (``foreach``, PyTorch's default on CUDA)."""


def first_order(spec: RunSpec, optimizer: str) -> int:
    """Predicted bytes at the peak of training ``spec``'s model by backpropagation with "sgd" or "adamw" on one device.

    Of ``spec`` only the model, its tying, dtype, batch and tokens count. Everything is in that dtype, as PyTorch and
    transformers have it: no gradient checkpointing, dropout on, loss and its gradients over all logits in float32,
    gradients freed before each forward. The peak is at one of three moments of a later step: where backward begins
    (activations and logits), where it ends (gradients; a tied table's exists three times), or in the optimizer's step.
    """
    architecture = models.get(spec.model)
    if architecture.model_type != "opt" or spec.autocast != "none":
        raise ValueError(
            f"first-order memory is predicted for OPT models with autocast=none, but got {spec.model} with "
            f"autocast={spec.autocast}; leave that cell out"
        )
    weights = models.parameter_count(*models.variant(spec)) * BYTES[spec.dtype]
    state, temporary = (copies * weights for copies in OPTIMIZERS[optimizer])
    table = architecture.vocab * _embedding_width(architecture) * BYTES[spec.dtype]
    logits = spec.tokens_per_step * architecture.vocab
    begins = saved_activations(spec) + max(3 * 4 * logits, BYTES[spec.dtype] * logits + table)
    tied = architecture.tied if spec.tie_embeddings is None else spec.tie_embeddings
    ends = weights + (2 * table if tied else 0)
    return weights + state + max(begins, ends, weights + temporary)


def saved_activations(spec: RunSpec) -> int:
    """Bytes that a forward of OPT keeps for its backward, without the logits.

    Each layer, per token: 8 hidden vectors (both norms' inputs and outputs, query, key, value, attention's output), the
    feed-forward's inner vector, two dropout masks of one byte an element; in float32 both norms' mean and deviation,
    and the log-sum-exp of each head. Around them: in and out of the last norm, or of the embedding's projections.
    """
    architecture, width = models.get(spec.model), BYTES[spec.dtype]
    hidden, inner = architecture.hidden, int(architecture.extra["ffn_dim"])
    layer = (8 * hidden + inner) * width + 2 * hidden + 4 * (4 + architecture.heads)
    embedding = _embedding_width(architecture)
    around = (hidden + (hidden if embedding == hidden else 2 * embedding)) * width
    return spec.tokens_per_step * (architecture.layers * layer + around)


def fit(spec: RunSpec) -> tuple[RunSpec, str]:
    """``spec`` with granularity, slots and resident blocks that fit its ``device_memory``, and why; else itself.

    The first of ``FORMS`` that fits, then as many blocks resident as the rest holds. ``ValueError`` if none does.
    """
    if not spec.device_memory:
        return spec, ""
    plain, room = spec.replace(device_memory=0), int(spec.device_memory * MARGIN)
    layers, told = models.get(spec.model).layers, f"device_memory={size_text(spec.device_memory)}"
    for granularity, slots in FORMS:
        chosen = plain.replace(granularity=granularity, slots=slots, resident_blocks=0)
        if (need := memory(chosen)[0]) <= room:
            kept = (chosen.replace(resident_blocks=count) for count in range(layers, -1, -1))
            chosen = next(candidate for candidate in kept if memory(candidate)[0] <= room)
            form = f"{granularity}s in {slots} slots need {megabytes(need)}"
            return chosen, f"{told}: {form}, and {chosen.resident_blocks} of {layers} blocks stay"
    least = megabytes(int(need / MARGIN))
    raise ValueError(
        f"`device_memory >= {least}` must hold for {spec.model} in {slots} slots of tiles, but got {told}; "
        "give it more memory or shorter batches (need predicted)"
    )


def limited(spec: RunSpec, nbytes: int) -> RunSpec:
    """``spec`` with ``device_memory``, so that the planner chooses what ``spec`` had chosen itself; unchanged where
    there is nothing to choose: a resident model, and torch noise, which needs whole blocks."""
    if spec.engine != "offload" or spec.noise != "counter":
        return spec
    return spec.replace(device_memory=nbytes, granularity="block", slots=3, resident_blocks=0, compile=False)


def megabytes(nbytes: int) -> str:
    """``5300MB``, rounded up."""
    return f"{-(-nbytes // 10**6)}MB"


def _embedding_width(architecture: models.Architecture) -> int:
    """Of a row of the word embedding; OPT-350M's is half of its hidden vector."""
    return int(architecture.extra.get("word_embed_proj_dim", architecture.hidden))


def _scratch(spec: RunSpec) -> int:
    """Bytes that the arithmetic needs beside the weights: noise, perturbed copies, unpacked weights."""
    width = BYTES[spec.dtype]
    packed = spec.wire != "none"
    in_pieces = spec.noise == "counter" or spec.wire == "fp8"  # what is encoded to fp8 is scaled a piece at a time
    heap = CPU_HEAP if spec.device == "cpu" and spec.engine == "offload" and in_pieces else 0
    if spec.noise == "torch":
        on_cuda = spec.device.startswith("cuda")
        noise = models.largest_resident(*models.variant(spec)) * width if on_cuda else 0
        return noise + heap + (models.block_parameter_count(spec.model) * width if packed else 0)
    unit = max(unit_bytes(spec, width), HEAD_TILE_BYTES)
    stays = spec.engine == "resident" or spec.resident_blocks > 0
    again = unit if packed or stays else HEAD_TILE_BYTES  # where pending updates are replayed that are not to stay
    return unit + (again if packed or spec.writeback_every != 1 else 0) + heap


def _filling(spec: RunSpec) -> int:
    """Bytes of host memory that the threads hold which fill a tier: a unit at rest each, where it is no memory itself,
    and the unit that it is packed from. A checkpoint is not filled."""
    if spec.tier == "checkpoint":
        return 0
    packed_from = unit_bytes(spec, BYTES[spec.dtype]) if spec.wire != "none" else 0
    at_rest = unit_bytes(spec, wire_width(spec)) if spec.tier == "disk" else 0
    return min(spec.slots, os.cpu_count() or 1) * (packed_from + at_rest)


def _staging(spec: RunSpec) -> int:
    """Bytes of host memory through which a CUDA device reads and writes a disk, and reads a checkpoint."""
    lanes = {"disk": 2, "checkpoint": 3 if _consolidates(spec) else 1}
    return lanes.get(spec.tier, 0) * unit_bytes(spec, wire_width(spec))


def _consolidates(spec: RunSpec) -> bool:
    """Whether a run of ``spec`` with writeback_every=inf is so long that its journal is written into the weights."""
    passes = spec.steps + spec.warmup + (PARTS_STEPS if spec.parts else 0) + spec.survival
    return passes > CONSOLIDATE_AFTER
