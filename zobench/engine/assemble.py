"""The parts that an engine is assembled from: checks of its arguments, the tier, the slots, the precision of
products."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zobench.engine.base import EngineConfig
from zobench.engine.directions.factors import LowRank
from zobench.engine.passes.drive import holder_of, may_adopt, unused_parameter
from zobench.engine.updates.rules import UpdateRule
from zobench.engine.weights.blocks import Unit, is_tuned
from zobench.engine.weights.tiers import CheckpointTier, DiskTier, Extent, Hosts, HostTier, NoTier, Tier, allocate
from zobench.engine.weights.wire import FORMATS
from zobench.machine.accelerator import Accelerator, tf32
from zobench.machine.device import choose_device
from zobench.models.weights import Weights
from zobench.runspec.kinds import AUTOCASTS, NOISES, TIERS, WIRES


@contextlib.contextmanager
def precision(config: EngineConfig) -> Iterator[None]:
    """Inside, products run in the precision that ``config.autocast`` names."""
    kind = AUTOCASTS[config.autocast]
    if kind.is_tf32:
        with tf32(True):
            yield
    elif kind.is_cast:
        # without its cache of casts, which would keep the first point's weights for the second
        with torch.autocast(config.device.split(":")[0], FORMATS[kind.name], cache_enabled=False):
            yield
    else:
        yield


def streamed_modules(blocks: Sequence[nn.Module], config: EngineConfig) -> set[int]:
    """The modules inside the blocks that are streamed. Resident ones are spread evenly, to keep the link busy."""
    kept = config.resident_blocks if config.streams else len(blocks)
    count = len(blocks)
    streamed = [block for n, block in enumerate(blocks) if (n + 1) * kept // count == n * kept // count]
    return {id(module) for block in streamed for module in block.modules()}


def make_tier(
    config: EngineConfig, units: Sequence[Unit], sizes: list[int], ring: int,
    extents: Callable[[Unit], list[Extent]], hosts: Hosts | None,
) -> Tier:  # fmt: skip
    """Where the streamed units rest; ``sizes``: bytes of each, ``ring``: how many of them have a place of their own;
    ``extents``: where a checkpoint has a unit."""
    folder, kind = Path(config.disk_dir or tempfile.gettempdir()), TIERS[config.tier]
    if config.device == "meta":
        return NoTier()
    if not kind.is_filled:
        return CheckpointTier(sizes, [extents(unit) for unit in units], folder)
    if kind.is_file:
        return DiskTier(sizes, folder, ring=ring)
    if hosts is not None:
        return hosts.tier(sizes[:ring], pinned=kind.is_pinned, device=config.device)
    return HostTier(sizes, pinned=kind.is_pinned, ring=ring, device=config.device)


def located(unit: Unit, weights: Weights) -> list[Extent]:
    """Where a unit's tensors are in the checkpoint that they come from."""
    extents = []
    for item in unit.fields:
        if not item.is_parameter:
            raise ValueError(f"`tier=checkpoint` needs blocks without buffers, but {item.name} is one; use tier=disk")
        location = weights.locate(item.name)
        if location is None:
            raise ValueError(
                f"`tier=checkpoint` needs the weights of a checkpoint, but got {type(weights).__name__}; use "
                "PretrainedWeights or tier=disk"
            )
        file, offset, dtype = location
        if dtype != item.dtype:
            raise ValueError(
                f"`tier=checkpoint` needs a checkpoint in the model's {item.dtype}, but {item.name} is {dtype}; use "
                "that dtype or tier=disk"
            )
        extents.append(Extent(file, offset + item.start * dtype.itemsize, item.nbytes, item.offset))
    return extents


def by_tensor(units: Sequence[Unit], thresholds: Mapping[str, float]) -> dict[int, float]:
    """``thresholds`` by tensor id; ``ValueError`` for a name that is no trainable parameter's."""
    ids = {item.name: item.tensor_id for unit in units for item in unit.trainable}
    if unknown := sorted(set(thresholds) - set(ids)):
        raise ValueError(f"`thresholds` must name trainable parameters, but got {unknown[0]}; leave it out")
    return {ids[name]: threshold for name, threshold in thresholds.items()}


def check_directions(
    directions: LowRank | None, config: EngineConfig, rule: UpdateRule | None, thresholds: Mapping[str, float] | None
) -> None:
    """Raises ``ValueError`` for what directions of low rank cannot be combined with."""
    if directions is None:
        return
    if NOISES[config.noise].in_place:
        raise ValueError(
            f"`directions` of low rank need noise=counter, but got noise={config.noise}: U and V are drawn one by one; "
            "use noise=counter"
        )
    if config.compile:
        raise ValueError(
            "`directions` of low rank need compile=false, but got compile=true: its products are not the blocks' own; "
            "use compile=false"
        )
    if rule is not None or thresholds:
        raise ValueError(
            "`directions` of low rank need an update of lr * g * z, but got a rule or thresholds, which ask for each "
            "element of z; leave them out"
        )
    if directions.is_apart and (config.packed or config.accumulate > 1):
        raise ValueError(
            "`directions` of which each point has its own need packed=false and accumulate=1, but got packed="
            f"{config.packed}, accumulate={config.accumulate}: members have rows of their own; use both"
        )


def check(model: nn.Module, config: EngineConfig, weights: Weights | None, rule: UpdateRule | None = None) -> None:
    """Refuses what would fail later, or be wrong: nothing unknown may come between hidden states, head and loss."""
    check_kind(model)
    _check_head(model)
    wire, autocast = WIRES[config.wire], AUTOCASTS[config.autocast]
    if config.device != "meta":  # there nothing is computed: memory alone is counted
        choose_device(config.device)
    if weights is None and any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the model must hold its weights, but some are on the meta device; give weights=")
    if not any(map(is_tuned, model.parameters())):
        raise ValueError("some parameter must require gradients, but none does; nothing would be trained")
    if rule is not None and rule.states and (wire.is_packed or config.keep_steps > 1):
        raise ValueError(
            f"a rule with state needs wire=none and writeback_every=1, but got wire={config.wire}, "
            f"writeback_every={config.writeback_every}; its state changes with every update and travels as it is"
        )
    dtype = next(model.parameters()).dtype
    if dtype != torch.float32 and (autocast.is_cast or autocast.is_tf32 or wire.needs_fp32):
        raise ValueError(
            f"`autocast` and the wires fp16 and bf16 need a model in float32, but got {dtype}; use autocast=none, and "
            "wire=none or fp8"
        )


def check_kind(model: nn.Module) -> None:
    """Refuses what is no language model of transformers with a head onto the vocabulary."""
    config = getattr(model, "config", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    description = type(model).__name__
    if config is None or not hasattr(model, "get_output_embeddings"):
        description = f"{description}, which is none of transformers"
    elif getattr(config, "is_encoder_decoder", False):
        description = f"{description}, which has an encoder and a decoder"
    elif not isinstance(head, nn.Linear):
        description = f"{description}, which has no head onto the vocabulary"
    else:
        return
    raise ValueError(
        f"the model must be a causal or masked language model, but got {description}; build one with "
        "AutoModelForCausalLM or AutoModelForMaskedLM"
    )


def _check_head(model: nn.Module) -> None:
    """Refuses parameters beside the head that its holder does not use."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    holder = holder_of(head, model)
    used = set(head.parameters())
    for name, parameter in holder.named_parameters(recurse=False):
        if parameter not in used and not may_adopt(head, name, parameter):
            raise ValueError(f"{unused_parameter(holder, name)}; build the model with tied embeddings")


def slot_maker(config: EngineConfig) -> Callable[[int], Tensor]:
    """Returns a function that allocates a uint8 buffer of so many bytes on the device."""
    if config.device.startswith("cuda") and not config.reusable_memory:
        return FreshMemory(config.device)
    return lambda nbytes: allocate(nbytes, config.device)


class FreshMemory:
    """uint8 buffers on a CUDA device, each from a cudaMalloc of its own.

    The ablation of reusable memory pays for one with every transfer, as the paper describes (ZO2 section D.2); the
    allocator's cache would hide it. Each buffer has a memory pool of its own: what others have cached stays, and a
    buffer takes whole segments of the allocator, 2 MiB up to 1 MiB of data, 20 MiB up to 10 MiB.
    """

    def __init__(self, device: str) -> None:
        self._device = Accelerator(device)
        self._lent: list[tuple[Any, weakref.ref[Tensor]]] = []

    def __call__(self, nbytes: int) -> Tensor:
        """A uint8 buffer of ``nbytes``; what :meth:`free` can give back is given back before."""
        self.free()
        pool = self._device.pool()
        with self._device.within(pool):
            buffer = allocate(nbytes, str(self._device.device))
        self._lent.append((pool, weakref.ref(buffer)))
        return buffer

    def free(self) -> None:
        """A cudaFree of each buffer that nobody has any more. The host waits until the lanes that read it are done."""
        self._lent = [(pool, buffer) for pool, buffer in self._lent if buffer() is not None]
