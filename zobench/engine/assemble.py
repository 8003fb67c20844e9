"""What an engine is assembled from: the checks before, the tier, the slots, the precision of its products."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from zobench.engine.base import EngineConfig
from zobench.engine.blocks import Unit
from zobench.engine.tiers import CheckpointTier, DiskTier, Extent, HostTier, NoTier, Tier, allocate
from zobench.engine.wire import FORMATS
from zobench.measure.device import choose_device
from zobench.weights import PretrainedWeights, Weights


@contextlib.contextmanager
def precision(config: EngineConfig) -> Iterator[None]:
    """Inside, products run in the precision that ``config.autocast`` names."""
    if config.autocast == "tf32":
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    elif config.autocast != "none":
        # without its cache of casts, which would keep the first point's weights for the second
        with torch.autocast(config.device.split(":")[0], FORMATS[config.autocast], cache_enabled=False):
            yield
    else:
        yield


def streamed_modules(blocks: Sequence[nn.Module], config: EngineConfig) -> set[int]:
    """The modules inside the blocks that are streamed. Resident ones are spread evenly, to keep the link busy."""
    kept = config.resident_blocks if config.placement == "offload" else len(blocks)
    count = len(blocks)
    streamed = [block for n, block in enumerate(blocks) if (n + 1) * kept // count == n * kept // count]
    return {id(module) for block in streamed for module in block.modules()}


def make_tier(config: EngineConfig, units: Sequence[Unit], sizes: list[int], ring: int, weights: Weights) -> Tier:
    """Where the streamed units rest; ``sizes``: bytes of each, ``ring``: how many of them have a place of their own."""
    folder = Path(config.disk_dir or tempfile.gettempdir())
    if config.device == "meta":
        return NoTier()
    if config.tier == "checkpoint":
        return CheckpointTier(sizes, [_extents(unit, weights) for unit in units], folder)
    if config.tier == "disk":
        return DiskTier(sizes, folder, ring=ring)
    return HostTier(sizes, pinned=config.tier == "pinned", ring=ring, device=config.device)


def _extents(unit: Unit, weights: Weights) -> list[Extent]:
    """Where a unit's tensors are in the checkpoint that they come from."""
    if not isinstance(weights, PretrainedWeights):
        raise ValueError(
            f"`tier=checkpoint` needs the weights of a checkpoint, but got {type(weights).__name__}; use "
            "PretrainedWeights or tier=disk"
        )
    found = []
    for item in unit.fields:
        if not item.is_parameter:
            raise ValueError(f"`tier=checkpoint` needs blocks without buffers, but {item.name} is one; use tier=disk")
        file, offset, dtype = weights.locate(item.name)
        if dtype != item.dtype:
            raise ValueError(
                f"`tier=checkpoint` needs a checkpoint in the model's {item.dtype}, but {item.name} is {dtype}; use "
                "that dtype or tier=disk"
            )
        found.append(Extent(file, offset + item.start * dtype.itemsize, item.nbytes, item.offset))
    return found


def check(model: nn.Module, config: EngineConfig, weights: Weights | None) -> None:
    """Refuses what would fail later, or be wrong: the loss is the head's output, so nothing may follow the head."""
    if config.device != "meta":  # there nothing is computed: memory alone is counted
        choose_device(config.device)
    if weights is None and any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the model must hold its weights, but some are on the meta device; give weights=")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("some parameter must require gradients, but none does; nothing would be trained")
    dtype = next(model.parameters()).dtype
    if dtype != torch.float32 and (config.autocast != "none" or config.wire in ("fp16", "bf16")):
        raise ValueError(
            f"`autocast` and the wires fp16 and bf16 need a model in float32, but got {dtype}; use autocast=none, and "
            "wire=none or fp8"
        )
    if config.wire == "fp8" and config.device.startswith("cuda"):
        capability = torch.cuda.get_device_capability(config.device)
        if capability < (8, 9):
            raise ValueError(
                f"`wire=fp8` needs a GPU of compute capability 8.9 or more, but {config.device} has "
                f"{capability[0]}.{capability[1]}; use wire=none"
            )
    for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"):
        value = getattr(model.config, name, None)
        if value is not None and value != 1.0:
            raise ValueError(
                f"a model's logits must be its head's output, but {type(model).__name__} has {name}={value}; "
                "use a model without it"
            )


def new_slot(nbytes: int, config: EngineConfig) -> Tensor:
    """A uint8 buffer on the device."""
    if config.device.startswith("cuda") and not config.reusable_memory:
        # The ablation pays the device's own malloc per transfer, as the paper describes; the cache would hide it.
        torch.cuda.empty_cache()
    return allocate(nbytes, config.device)
