"""Predicted bytes of a cell at its peak, and the planner that fits one into a given device memory."""

from __future__ import annotations

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
MARGIN = 0.9
"""Share of a given device memory that a plan uses: predictions are this good."""
FORMS = (("block", 3), ("linear", 3), ("tile", 3), ("tile", 2))
"""(granularity, slots) that the planner tries, the simplest first."""


def memory(spec: RunSpec) -> tuple[int, int, int]:
    """(device, host, disk) bytes at the peak. On a CPU the device's and the host's bytes are the same memory.

    Raises ``ValueError`` if the spec's own ``device_memory`` cannot hold it.
    """
    spec = fit(spec)[0]
    architecture = models.get(spec.model)
    block = models.block_parameter_count(spec.model) * BYTES[spec.dtype]
    resident = models.resident_parameter_count(spec.model, spec.tie_embeddings) * BYTES[spec.dtype]
    device = resident + _scratch(spec) + activations(spec)
    if spec.engine == "resident":
        return device + block * architecture.layers, 0, 0
    streamed = streamed_layers(spec)
    stored = models.block_parameter_count(spec.model) * wire_width(spec)
    device += block * (architecture.layers - streamed)
    device += min(spec.slots * unit_bytes(spec, wire_width(spec)), streamed * stored)
    if spec.tier == "checkpoint":
        return device, 0, 0
    stored *= min(SHARED_BLOCKS, architecture.layers) if spec.weights == "shared" else streamed
    return device, stored if spec.tier != "disk" else 0, stored if spec.tier == "disk" else 0


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


def megabytes(nbytes: int) -> str:
    """``5300MB``, rounded up."""
    return f"{-(-nbytes // 10**6)}MB"


def _scratch(spec: RunSpec) -> int:
    """Bytes that the arithmetic needs beside the weights: noise, perturbed copies, unpacked weights."""
    width = BYTES[spec.dtype]
    packed = spec.wire != "none"
    if spec.noise == "torch":
        on_cuda = spec.device.startswith("cuda")
        noise = models.largest_resident(spec.model, spec.tie_embeddings) * width if on_cuda else 0
        return noise + (models.block_parameter_count(spec.model) * width if packed else 0)
    unit = max(unit_bytes(spec, width), HEAD_TILE_BYTES)
    heap = CPU_HEAP if spec.device == "cpu" and spec.engine == "offload" else 0
    stays = spec.engine == "resident" or spec.resident_blocks > 0
    again = unit if packed or stays else HEAD_TILE_BYTES  # where pending updates are replayed that are not to stay
    return unit + (again if packed or spec.writeback_every != 1 else 0) + heap
