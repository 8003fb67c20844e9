"""The engine: losses at points ``W + c * z(seed)`` in one pass over the model, and a journal of updates.

``probe`` drives the model's own forward on one copy of the batch per point. Each unit of weights is moved from point to
point while it is on the device; journal entries it has not seen yet are replayed first. The same code serves a resident
model (MeZO) and an offloaded one (ZO2): only where the blocks come from differs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from zobench.data import Batch
from zobench.engine import embedding, perturb
from zobench.engine.base import BASE, EngineConfig, Entry, Point, transitions
from zobench.engine.blocks import Unit, find_units, move_buffers, stream_layout
from zobench.engine.checkpoint import save_checkpoint
from zobench.engine.fold import fold
from zobench.engine.lanes import CudaLanes, Event, Lanes, ThreadLanes
from zobench.engine.loss import causal_loss, rows_per_chunk
from zobench.engine.noise import TorchNoise
from zobench.engine.pipeline import Pipeline
from zobench.engine.tiers import DiskTier, HostTier, Tier, allocate
from zobench.measure.device import choose_device
from zobench.models import blocks as find_blocks
from zobench.weights import ModelWeights, Weights


class Engine:
    """One model under zeroth-order fine-tuning.

    ``model`` is a ``transformers`` causal model, real or on the meta device. The engine takes its weights over;
    read them with :meth:`named_tensors` or :meth:`save_pretrained` before closing it. ``weights`` gives initial values,
    by default the model's own. ``lanes`` replaces the lanes that the device calls for.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, *, weights: Weights | None = None, lanes: Lanes | None = None
    ) -> None:
        _check(model, config, weights)
        self.model, self.config = model.eval(), config
        self.journal: list[Entry] = []
        self._points: Sequence[Point] = (BASE,)
        self._rows = 1
        weights = weights or ModelWeights(model)
        blocks = list(find_blocks(model))
        self.blocks, self.residents = find_units(model, blocks)
        self._units = [*self.blocks, *self.residents]
        self.noise = TorchNoise(stream_layout(self._units), config.device)
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self._pipeline: Pipeline | None = None
        self._lanes: Lanes | None = None
        self._tier: Tier | None = None
        self._wrapped: list[nn.Module] = []
        self._closed = False
        with torch.inference_mode():
            if config.placement == "offload":
                self._offload(weights, lanes)
            else:
                self.residents = [*self.residents, *self.blocks]
            for unit in self.residents:
                self._place(unit, weights)
        move_buffers(model, blocks, config.device)
        self._wrap(blocks)
        if config.device.startswith("cuda"):
            torch.cuda.synchronize(config.device)  # the lanes' streams start with nothing of the building in flight

    # --- the public operations -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def probe(self, batch: Batch, points: Sequence[Point]) -> list[float]:
        """The batch's mean loss at each point, float32 values; every block is brought to the device once.

        Afterwards the weights are where they were, up to the rounding of MeZO's own +eps, -2 eps, +eps.
        """
        self._open()
        if not isinstance(batch, Batch):
            raise ValueError(
                f"`batch` must be a zobench.Batch, but got {type(batch).__name__}; build Batch(ids, labels)"
            )
        points = tuple(points)
        if not points:
            raise ValueError("`points` must not be empty, but got none; give at least Point() for the loss at W")
        batch = batch.to(self.config.device)
        self._points, self._rows = points, batch.input_ids.shape[0]
        self._forget()
        mask = batch.attention_mask
        hidden = self.model.base_model(  # type: ignore[operator]
            input_ids=batch.input_ids.repeat(len(points), 1),
            attention_mask=None if mask is None else mask.repeat(len(points), 1),
            use_cache=False,
        ).last_hidden_state
        return self._losses(hidden, batch.labels)

    def evaluate(self, batch: Batch) -> float:
        """The batch's mean loss with every committed update applied."""
        return self.probe(batch, [BASE])[0]

    @torch.inference_mode()
    def commit(self, entries: Sequence[Entry]) -> None:
        """Appends updates to the journal. They reach a block's weights the next time it is on the device, or at once if
        the model is resident or ``fused_update`` is off."""
        self._open()
        for entry in entries:
            if not math.isfinite(entry.g):
                raise ValueError(f"`g` of an entry must be finite, but got {entry.g}; skip this step's update")
        self.journal.extend(entries)
        if self._pipeline is None or not self.config.fused_update:
            self._replay_all()

    @torch.inference_mode()
    def flush(self) -> None:
        """Applies every committed update and writes the blocks back to their tier."""
        self._open()
        if any(unit.applied < len(self.journal) for unit in self._units):
            self._replay_all()
        if self._pipeline is not None:
            self._pipeline.drain()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, CPU copy) of every parameter, all updates applied, one unit in memory at a time; tied ones once."""
        self.flush()
        for unit in self._units:
            buffer = unit.buffer
            if buffer is None:
                assert self._pipeline is not None
                buffer = allocate(unit.nbytes, self.config.device)
                self._pipeline.read(self.blocks.index(unit), buffer)
            for name, tensor in unit.named(buffer):
                yield name, tensor.detach().cpu().clone()

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a Hugging Face checkpoint, all updates applied: config, safetensors shards and their index."""
        self.flush()
        save_checkpoint(self.model, self.named_tensors(), Path(folder))

    @property
    def tier_note(self) -> str:
        """What a reader of a measurement should know about the tier, or ""."""
        return self._tier.note if isinstance(self._tier, DiskTier) else ""

    @property
    def bytes_at_rest(self) -> int:
        """Bytes of the blocks in their tier; 0 for a resident model."""
        real = len(self.blocks) if self.config.shared_blocks is None else self.config.shared_blocks
        return 0 if self._pipeline is None else sum(unit.nbytes for unit in self.blocks[:real])

    def close(self) -> None:
        """Ends the lanes and removes the disk tier's file. The model's forward is its own again."""
        self._closed = True
        for module in self._wrapped:
            del module.forward
        self._wrapped.clear()
        if self._pipeline is not None:
            self._pipeline.close()

    def __enter__(self) -> Engine:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine must be open, but was closed; build a new one")

    # --- measuring one part of a step -------------------------------------------------------------------------------

    @torch.inference_mode()
    def transfer_only(self) -> None:
        """One traversal's uploads and offloads without any compute; the weights stay as they are."""
        assert self._pipeline is not None, "a resident model has no transfers"
        for block, unit in enumerate(self.blocks):
            self._pipeline.compute(block, functools.partial(setattr, unit, "dirty", True))
        self._pipeline.drain()

    @contextlib.contextmanager
    def compute_only(self) -> Iterator[None]:
        """Inside, steps run without any transfer, on whatever the slots hold: only their duration means something.
        Updates committed inside are lost, so close the engine afterwards."""
        assert self._pipeline is not None, "a resident model has nothing to leave out"
        with self._pipeline.without_transfers():
            yield

    def record(self) -> None:
        """Starts an empty timeline of the lanes."""
        if self._lanes is not None:
            self._lanes.record()

    def timeline(self) -> list[Event]:
        """What the lanes did since :meth:`record`; a resident model has no lanes."""
        return self._lanes.timeline() if self._lanes is not None else []

    # --- building ---------------------------------------------------------------------------------------------------

    def _offload(self, weights: Weights, lanes: Lanes | None) -> None:
        config, sizes = self.config, [unit.nbytes for unit in self.blocks]
        tier: Tier
        if config.tier == "disk":
            tier = DiskTier(sizes, Path(config.disk_dir or tempfile.gettempdir()), ring=config.shared_blocks)
        else:
            tier = HostTier(sizes, pinned=config.tier == "pinned", ring=config.shared_blocks)
        try:
            # Fresh pages cost more than the values in them, so threads share the work; each holds at most one block.
            with ThreadPoolExecutor(min(config.slots, os.cpu_count() or 1)) as pool:
                list(pool.map(functools.partial(self._store, tier, weights), range(len(self.blocks))))
        except BaseException:
            tier.close()
            raise
        self._tier = tier
        streams = config.device.startswith("cuda") and config.tier != "disk"
        self._lanes = lanes or (CudaLanes(config.device) if streams else ThreadLanes(config.device))
        self._pipeline = Pipeline(
            self.blocks, tier, self._lanes, functools.partial(_new_slot, max(sizes), config),
            slots=config.slots, overlap=config.overlap, reusable_memory=config.reusable_memory,
        )  # fmt: skip

    def _store(self, tier: Tier, weights: Weights, block: int) -> None:
        unit = self.blocks[block]
        tier.fill(block, unit.filler(weights))
        unit.release()

    def _place(self, unit: Unit, weights: Weights) -> None:
        buffer = allocate(unit.nbytes, self.config.device)
        unit.filler(weights)(buffer)
        unit.bind(buffer)

    def _wrap(self, blocks: Sequence[nn.Module]) -> None:
        """Replaces ``forward`` of each block, and of each module outside them that uses parameters, but the head."""
        uses: dict[int, tuple[nn.Module, list[Unit]]] = {}
        inside = {id(unit): block for unit, block in zip(self.blocks, blocks, strict=True)}
        for unit in self._units:
            block = inside.get(id(unit))
            users = [block] if block is not None else [module for item in unit.fields for module, _ in item.homes]
            for module in dict.fromkeys(users):
                uses.setdefault(id(module), (module, []))[1].append(unit)
        self._head_units = uses.pop(id(self._head), (self._head, []))[1]
        tied = {id(unit) for unit in self._head_units}
        for module, units in uses.values():
            if any(id(unit) in tied for unit in units):
                forward = functools.partial(self._tied, units[0], embedding.check(module, units), module.forward)
            elif self._pipeline is not None and units[0] in self.blocks:
                forward = functools.partial(self._streamed, self.blocks.index(units[0]), module.forward)
            else:
                forward = functools.partial(self._resident, units, module.forward)
            module.forward = forward
            self._wrapped.append(module)

    # --- moving weights ---------------------------------------------------------------------------------------------

    def _move(self, unit: Unit, point: Point) -> None:
        for seed, delta in transitions(unit.at, point):
            perturb.move(self.noise, seed, unit.index, unit.tensors(), delta)
            unit.dirty = True
        unit.at = point

    def _replay(self, unit: Unit) -> None:
        for entry in self.journal[unit.applied :]:
            perturb.update(self.noise, entry, unit.index, unit.tensors(), unit.decayed)
            unit.dirty = True
        unit.applied = len(self.journal)

    def _replay_all(self) -> None:
        for unit in self.residents:
            self._replay(unit)
        if self._pipeline is not None:
            for block, unit in enumerate(self.blocks):
                self._pipeline.compute(block, functools.partial(self._replay, unit), work="update")

    def _forget(self) -> None:
        pending = self.journal[min(unit.applied for unit in self._units) :]
        self.noise.keep({entry.seed for entry in pending} | {p.seed for p in self._points if p.seed is not None})

    # --- forwards ---------------------------------------------------------------------------------------------------

    def _resident(self, units: Sequence[Unit], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for unit in units:
            self._replay(unit)

        def prepare(copy: int) -> None:
            for unit in units:
                self._move(unit, self._points[copy])

        output = fold(units[0].name, forward, len(self._points), self._rows, prepare, args, kwargs)
        for unit in units:
            self._move(unit, BASE)
        return output

    def _streamed(self, block: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._pipeline is not None
        output: list[Any] = []

        def action() -> None:
            output.append(self._resident([self.blocks[block]], forward, *args, **kwargs))

        self._pipeline.compute(block, action)
        return output[0]

    def _tied(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        self._replay(unit)
        own = ids[: self._rows]
        return embedding.forward_tied(unit, module, forward, self.noise, self._points, own, args, kwargs)

    def _losses(self, hidden: Tensor, labels: Tensor) -> list[float]:
        """The loss of every copy, then the head's units back to W: the head is their last use."""
        weight = self._head_units[0].fields[0].shape
        rows = rows_per_chunk(weight[0], self.config.logits_bytes)
        losses = []
        for unit in self._head_units:
            self._replay(unit)
        for point, states in zip(self._points, hidden.split(self._rows), strict=True):
            for unit in self._head_units:
                self._move(unit, point)
            losses.append(causal_loss(self._head, states, labels, rows))
        for unit in self._head_units:
            self._move(unit, BASE)
        return [float(loss) for loss in torch.stack(losses).tolist()]


def _check(model: nn.Module, config: EngineConfig, weights: Weights | None) -> None:
    """Refuses what would fail later, or be wrong: the loss is the head's output, so nothing may follow the head."""
    choose_device(config.device)
    if weights is None and any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the model must hold its weights, but some are on the meta device; give weights=")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("some parameter must require gradients, but none does; nothing would be trained")
    for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"):
        value = getattr(model.config, name, None)
        if value is not None and value != 1.0:
            raise ValueError(
                f"a model's logits must be its head's output, but {type(model).__name__} has {name}={value}; "
                "use a model without it"
            )


def _new_slot(nbytes: int, config: EngineConfig) -> Tensor:
    if config.device != "cpu" and not config.reusable_memory:
        # The ablation pays the device's own malloc per transfer, as the paper describes; the cache would hide it.
        torch.cuda.empty_cache()
    return allocate(nbytes, config.device)
