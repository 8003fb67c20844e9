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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor, nn

from zobench.data.batch import Batch, Choices
from zobench.engine import forwards, history, linear, tangent
from zobench.engine.arithmetic import Arithmetic, InPlace, Pristine
from zobench.engine.assemble import (
    by_tensor,
    check,
    make_tier,
    new_slot,
    precision,
    stream_thresholds,
    streamed_modules,
)
from zobench.engine.base import BASE, EngineConfig, Entry, Point, Position
from zobench.engine.blocks import Field, Unit, find_units, move_buffers, stream_layout, strip, tiles
from zobench.engine.checkpoint import save_checkpoint
from zobench.engine.drive import Drive, plain
from zobench.engine.forwards import Forwards
from zobench.engine.general import General
from zobench.engine.lanes import CudaLanes, Event, Lanes, ThreadLanes
from zobench.engine.loss import (
    candidate_scores,
    choice_loss,
    only_right,
    targets_of,
)
from zobench.engine.noise import Noise, SparseNoise, TorchNoise
from zobench.engine.pipeline import Pipeline
from zobench.engine.rules import UpdateRule
from zobench.engine.tiers import CheckpointTier, DiskTier, Hosts, Tier, allocate
from zobench.engine.wire import Wire
from zobench.machine.numa import cpus_near, stay_near
from zobench.models import blocks as find_blocks
from zobench.models.weights import ModelWeights, Weights

T = TypeVar("T")


class Engine:
    """One model under zeroth-order fine-tuning.

    ``model`` is a ``transformers`` causal model, real or on the meta device. The engine takes its weights over;
    read them with :meth:`named_tensors` or :meth:`save_pretrained` before closing it. ``weights`` gives initial values,
    by default the model's own. ``lanes`` replaces the lanes that the device calls for, ``drive`` the plain call of the
    model's body. ``rule`` is an update other than SGD's; its state rests and travels beside the weights and begins as
    ``state`` (by :attr:`Field.key`) or zeros. ``thresholds``, by parameter name, make directions sparse
    (:class:`~zobench.engine.noise.SparseNoise`). Parameters that require no gradient are never moved nor written back.
    ``start``: an earlier run's weights at rest, to be brought up to date by :func:`~zobench.engine.history.retrace`.
    ``hosts``: host memory that several ranks share, where the streamed units rest.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, *, weights: Weights | None = None, lanes: Lanes | None = None,
        drive: Drive = plain, rule: UpdateRule | None = None, state: Weights | None = None,
        thresholds: Mapping[str, float] | None = None, start: history.Start | None = None, hosts: Hosts | None = None,
    ) -> None:  # fmt: skip
        check(model, config, weights, rule)
        self.model, self.config, self.rule = model.eval(), config, rule
        self._state, self._start, self._hosts = state, start, hosts
        self.passes = 0
        self.before_change: Callable[[Unit], None] = lambda unit: None
        self.journal: list[Entry] = []
        self.drive = drive
        self._wire = Wire(config.wire) if config.wire != "none" else None
        weights = weights or ModelWeights(model)
        self.pipeline: Pipeline | None = None
        self._lanes: Lanes | None = None
        self._tier: Tier | None = None
        self._closed = self.failed = False
        self._sizes: list[int] = []
        self._ring = 0
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        blocks = list(find_blocks(model))
        try:
            with torch.inference_mode():
                self._find_units(blocks, weights)
                self.thresholds = by_tensor(self.units, thresholds or {})
                if self.blocks:
                    self._stream(weights, lanes)
                for unit in self.residents:
                    self._place(unit, weights)
                strip(unit.module for unit in self.units if any(item.is_part for item in unit.fields))
                self.arithmetic = self._make_arithmetic()
            self._number = {id(unit): number for number, unit in enumerate(self.blocks)}
            self.forwards = Forwards(model, config, blocks, self.units, self.arithmetic, self.run, self.touch)
        except BaseException:
            self._close_tier()
            raise
        if config.device.startswith("cuda"):
            torch.cuda.synchronize(config.device)  # the lanes' streams start with nothing of the building in flight

    # --- the public operations -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def probe(self, batch: Batch, points: Sequence[Point], looked: Sequence[int] | None = None) -> list[float]:
        """The batch's mean loss at each point, float32 values; every block is brought to the device once.

        Afterwards the weights are where they were, with torch noise up to the rounding of MeZO's +eps, -2 eps, +eps.
        ``looked``: in rising order, the numbers of the points whose losses are wanted; those are the very numbers that
        a look at all of them gives, and so are the weights afterwards.
        """
        self._open()
        if not isinstance(batch, Batch):
            raise ValueError(
                f"`batch` must be a zobench.Batch, but got {type(batch).__name__}; build Batch(ids, labels)"
            )
        points = tuple(points)
        route: tuple[Point, ...] = ()
        if not points:
            raise ValueError("`points` must not be empty, but got none; give at least Point() for the loss at W")
        if looked is not None:
            points, route = tuple(points[number] for number in looked), points
        if batch.choices is None:
            return [float(loss) for loss in self._pass(batch, None, points, route).tolist()]
        choices = batch.choices.to("cpu")
        asked = only_right(choices) if choices.loss == "lm" else choices
        return [float(choice_loss(picked, asked)) for picked in self._pass(batch, asked, points, route)]

    @torch.inference_mode()
    def scores(self, batch: Batch) -> Tensor:
        """The score of each of the batch's candidates, float32 (c,) on the CPU, with every committed update applied."""
        self._open()
        if batch.choices is None:
            raise ValueError(
                "`batch.choices` must be given to score candidates, but got none; give Batch(..., choices=...)"
            )
        choices = batch.choices.to("cpu")
        return candidate_scores(self._pass(batch, choices, (BASE,))[0], choices)

    def _pass(
        self, batch: Batch, choices: Choices | None, points: Sequence[Point], route: tuple[Point, ...] = ()
    ) -> Tensor:
        """One pass over the model: float32 on the CPU, the batch's mean loss at each point, (points,), or with
        ``choices`` the log-probability of each of their tokens, (points, n). ``route``: what ``points`` are some of."""
        device = self.config.device
        ids, mask = batch.input_ids.to(device), batch.attention_mask
        mask = None if mask is None else mask.to(device).repeat(len(points), 1)
        places = None if choices is None else choices.places.to(device)
        targets = targets_of(self.model, batch.labels.to(device)) if choices is None else choices.tokens.to(device)
        self.forwards.begin(points, len(ids))
        self.forget()
        self.failed = True  # until it is through: half a pass may have applied half of an update
        self.arithmetic.route = route
        with precision(self.config):
            hidden = self.drive(self.model, ids.repeat(len(points), 1), mask)
            result = torch.stack(self.forwards.judge(hidden, places, targets))
        self.arithmetic.route = ()
        self.passes += 1
        self.failed = False
        return torch.full(result.shape, math.nan) if result.is_meta else result.cpu()

    def evaluate(self, batch: Batch) -> float:
        """The batch's mean loss with every committed update applied."""
        return self.probe(batch, [BASE])[0]

    def tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        """(loss, derivative of the loss along z(seed)) at the weights with every committed update applied.

        One pass over the model in forward-mode differentiation, on one copy of the batch. Raises ``ValueError`` where
        granularity is not "block".
        """
        self._open()
        return tangent.derivative(self, batch, seed)

    @torch.inference_mode()
    def commit(self, entries: Sequence[Entry]) -> None:
        """Appends updates to the journal. They reach a unit's weights the next time it is used, or at once if
        ``fused_update`` is off, or if the model is resident and the noise torch's, as in MeZO."""
        self._open()
        last = self.journal[-1].step if self.journal else -math.inf
        for entry in entries:
            if not math.isfinite(entry.g):
                raise ValueError(f"`g` of an entry must be finite, but got {entry.g}; skip this step's update")
            if entry.step < last:
                raise ValueError(f"`step` of entries must not fall, but got {entry.step} after {last}; count steps on")
            last = entry.step
            if entry.part is not None and any(unit.part < 0 for unit in self.units):
                raise ValueError("`part` of an entry needs a probe before it, which finds the parts; probe first")
        self.journal.extend(entries)
        if self.at_once:
            self._settle_all()

    @property
    def at_once(self) -> bool:
        """Whether updates reach the weights when they are committed, and not at the next pass."""
        return (self.pipeline is None and self.config.noise == "torch") or not self.config.fused_update

    @torch.inference_mode()
    def flush(self) -> None:
        """Applies every committed update for good and writes the blocks back to their tier, in the wire's format."""
        self._open()
        if any(unit.trained and unit.applied < len(self.journal) for unit in self.units):
            self._settle_all()
        self.drain()

    def shared(self, values: Sequence[T]) -> list[T]:
        """What all ranks take for ``values``, which each has drawn: one device's are its own."""
        return list(values)

    def drain(self) -> None:
        """Returns when all transfers are done."""
        if self.pipeline is not None:
            self.pipeline.drain()

    @torch.inference_mode()
    def visit(self, look: Callable[[Unit, list[Tensor]], None]) -> None:
        """Calls ``look(unit, tensors)`` for every unit but the word embedding and the head.

        ``tensors``: its weights as the next probe would use them, every committed update applied, in the model's dtype,
        one for each of the unit's fields, valid during the call.
        """
        self._open()

        def turn(unit: Unit) -> None:
            self.touch(unit)
            look(unit, self.arithmetic.at(unit, BASE))
            self.arithmetic.rest(unit)

        for unit in self.units:
            if not self._is_end(unit):
                self.run(unit, functools.partial(turn, unit))

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, CPU copy) of every parameter, all updates applied, one unit in memory at a time; tied ones once.

        With counter noise what is pending stays pending: looking rounds nothing and writes nothing.
        """
        yield from self._tensors(lambda unit: [item for item in unit.fields if item.is_parameter])

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter#state, CPU copy) of every state of the rule, all updates applied, as :meth:`named_tensors`."""
        yield from self._tensors(lambda unit: unit.states)

    @property
    def parts(self) -> int:
        """How many parts points and entries can name: 0 is what comes before the blocks (a tied table with it), then
        each block, and the last what follows them (ZO-Bench, section 5: 26 for OPT-1.3B)."""
        return len(find_blocks(self.model)) + 2

    def _tensors(self, wanted: Callable[[Unit], Sequence[Field]]) -> Iterator[tuple[str, Tensor]]:
        self._open()
        if isinstance(self.arithmetic, InPlace):
            self.flush()
        self.drain()
        parts: dict[str, list[Tensor]] = {}
        for unit in self.units:
            items = wanted(unit)
            buffer = self.current(unit) if items else None
            for item in items:
                assert buffer is not None
                found = parts.setdefault(item.key, [])
                found.append(item.view(buffer).detach().cpu().clone())
                if item.whole is None:
                    yield item.key, parts.pop(item.key)[0]
                elif sum(len(part) for part in found) == item.whole[0]:
                    yield item.key, torch.cat(parts.pop(item.key))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a Hugging Face checkpoint, all updates applied: config, safetensors shards and their index."""
        save_checkpoint(self.model, self.named_tensors(), Path(folder))

    @property
    def tier_note(self) -> str:
        """What a reader of a measurement should know about the tier, or ""."""
        return self._tier.note if isinstance(self._tier, (DiskTier, CheckpointTier)) else ""

    @property
    def bytes_at_rest(self) -> int:
        """Bytes of the streamed units in their tier; 0 for a resident model."""
        return sum(self._sizes[: self._ring])

    def close(self) -> None:
        """Ends the lanes, removes the disk tier's file; the model's forward is its own again, on what is resident."""
        self.forwards.close()
        if not (self._closed or self.failed):
            self._hand_back()
        self._closed = True
        if self.pipeline is not None:
            self.pipeline.close()

    @torch.inference_mode()
    def _hand_back(self) -> None:
        """Applies what is pending to the resident units, in place, and gives them to the model."""
        for unit in self.residents:
            if not any(item.is_part for item in unit.fields):
                assert unit.buffer is not None
                self.arithmetic.settle(unit)
                unit.bind(unit.views(unit.buffer))

    def _close_tier(self) -> None:
        """For an engine that could not be built: pinned memory must not be unmapped while it is registered."""
        if self._tier is not None:
            self._tier.close()

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
        if self.failed:
            raise RuntimeError("the engine must not be used after an error in a step, but was; build a new one")

    # --- measuring one part of a step -------------------------------------------------------------------------------

    @torch.inference_mode()
    def transfer_only(self) -> None:
        """One traversal's transfers without any compute, write-backs only if every step has them; weights stay."""
        assert self.pipeline is not None, "a resident model has no transfers"
        for number, unit in enumerate(self.blocks):
            written = self.config.keep_steps == 1 and unit.trained > 0
            self.pipeline.compute(number, functools.partial(setattr, unit, "dirty", written))
        self.pipeline.drain()

    @contextlib.contextmanager
    def compute_only(self) -> Iterator[None]:
        """Inside, steps run without any transfer, on whatever the slots hold: only their duration means something.
        Updates committed inside are lost, so close the engine afterwards."""
        assert self.pipeline is not None, "a resident model has nothing to leave out"
        with self.pipeline.without_transfers():
            yield

    def record(self) -> None:
        """Starts an empty timeline of the lanes."""
        if self._lanes is not None:
            self._lanes.record()

    def timeline(self) -> list[Event]:
        """What the lanes did since :meth:`record`; a resident model has no lanes."""
        return self._lanes.timeline() if self._lanes is not None else []

    # --- building ---------------------------------------------------------------------------------------------------

    def _find_units(self, blocks: Sequence[nn.Module], weights: Weights) -> None:
        """Cuts the model into ``blocks``, the streamed units in call order, and ``residents``, all others."""
        config, model = self.config, self.model
        if config.resident_blocks > len(blocks):
            raise ValueError(
                f"`resident_blocks <= {len(blocks)}` must hold for this model, but got {config.resident_blocks}; "
                "use placement=resident to keep all of them"
            )
        owners: Sequence[nn.Module] = blocks if config.granularity == "block" else linear.linears(blocks)
        units, others = find_units(model, blocks, owners, self.rule)
        self.noise: Noise = TorchNoise(stream_layout([*units, *others]), config.device)
        move_buffers(model, owners, config.device)
        for unit in others:
            self._place(unit, weights)
        if config.granularity != "block":
            modules = [unit.module for unit in units if isinstance(unit.module, nn.Linear)]
            order = {id(module): n for n, module in enumerate(linear.call_order(model, modules, config.device))}
            units.sort(key=lambda unit: order[id(unit.module)])
        if config.granularity == "tile":
            units = [tile for unit in units for tile in tiles(unit)]
        streamed = streamed_modules(blocks, config)
        self.blocks = [unit for unit in units if id(unit.module) in streamed]
        self.residents = [*others, *(unit for unit in units if id(unit.module) not in streamed)]
        self.units = [*self.blocks, *self.residents]

    def _stream(self, weights: Weights, lanes: Lanes | None) -> None:
        """Fills the tier with the streamed units and builds the pipeline over it."""
        config, wire = self.config, self._wire
        self._sizes = [wire.nbytes(unit) if wire else unit.nbytes for unit in self.blocks]
        if self._hosts is not None:
            self._sizes = [self._hosts.padded(size) for size in self._sizes]
        self._ring = len(self.blocks)
        if config.shared_blocks is not None:
            layers = len(find_blocks(self.model)) - config.resident_blocks
            self._ring = min(self._ring, config.shared_blocks * (len(self.blocks) // layers))
        self._tier = tier = make_tier(config, self.blocks, self._sizes, self._ring, weights, self._hosts)
        for unit in self.blocks:
            unit.streamed = True
        # Fresh pages cost more than the values in them, so threads share the work; each holds at most one block.
        near = (cpus_near(config.device),)
        with ThreadPoolExecutor(min(config.slots, os.cpu_count() or 1), "zobench-fill", stay_near, near) as pool:
            list(pool.map(functools.partial(self._store, tier, weights), range(len(self.blocks))))
        if self._hosts is not None and self._start is not None:
            self._agree(self._hosts, self._start)
        waits = config.tier in ("disk", "checkpoint") or (self._hosts is not None and self._hosts.waits)
        streams = config.device.startswith("cuda") and not waits
        self._lanes = lanes or (CudaLanes(config.device) if streams else ThreadLanes(config.device))
        self.pipeline = Pipeline(
            self.blocks, self._sizes, self._written(), tier, self._lanes,
            functools.partial(new_slot, max(self._sizes), config),
            slots=config.slots, overlap=config.overlap, reusable_memory=config.reusable_memory,
        )  # fmt: skip

    def _written(self) -> list[int]:
        """Bytes at the front of each streamed unit that are written back: what a step changes, where it lies apart."""
        if self._wire is not None or self.config.tier == "checkpoint":
            return self._sizes
        return [unit.kept for unit in self.blocks]

    def _store(self, tier: Tier, weights: Weights, number: int) -> None:
        unit = self.blocks[number]
        write = unit.filler(weights, self._state)

        def pack(buffer: Tensor) -> None:
            assert self._wire is not None
            master = allocate(unit.nbytes)
            write(master)
            self._wire.encode(unit, master, buffer)

        def fill(buffer: Tensor) -> None:
            (write if self._wire is None else pack)(buffer)
            if self._start is not None:
                history.resume(self._start, unit, buffer)

        tier.fill(number, fill)
        if not any(item.is_part for item in unit.fields):
            unit.release()

    def _agree(self, hosts: Hosts, start: history.Start) -> None:
        """What the rank that filled a block knows of its unit, all ranks must."""
        for unit, changed in zip(self.blocks, hosts.any([unit.changed for unit in self.blocks]), strict=True):
            unit.changed = changed
            history.place(start, unit)

    def _place(self, unit: Unit, weights: Weights) -> None:
        """Puts a unit on the device for good, unless it is there."""
        if unit.buffer is None:
            unit.buffer = allocate(unit.nbytes, self.config.device)
            if self.config.device != "meta":
                unit.filler(weights, self._state)(unit.buffer)
                if self._start is not None:
                    history.resume(self._start, unit, unit.buffer)
            if not any(item.is_part for item in unit.fields):
                unit.bind(unit.views(unit.buffer))

    def _make_arithmetic(self) -> Arithmetic:
        config, device = self.config, self.config.device
        if self.thresholds and config.noise == "torch":
            self.noise = SparseNoise(self.noise, stream_thresholds(self.units, self.thresholds))
        streamed = max((unit.nbytes for unit in self.blocks), default=0)
        if config.noise == "torch":
            master = allocate(streamed, device) if self._wire else None
            return InPlace(self.noise, self.journal, self._wire, master, self.rule)
        kept = max(forwards.HEAD_BYTES, *(unit.trained for unit in self.residents if not self._is_end(unit)))
        elsewhere = max(streamed if self._wire else 0, kept if config.keep_steps > 1 else 0)
        moved = max(kept, *(unit.trained for unit in self.units if not self._is_end(unit)))
        scratch, master = allocate(moved, device), allocate(elsewhere, device) if elsewhere else None
        general = General(self.rule, self.thresholds) if self.rule or self.thresholds else None
        return Pristine(self.journal, config.keep_steps, scratch, self._wire, master, general)

    def _is_end(self, unit: Unit) -> bool:
        """Whether a unit is used by the word embedding or the head: with counter noise it is never perturbed whole."""
        ends = (self._head, self.model.get_input_embeddings())  # type: ignore[operator]
        return any(module in ends for item in unit.fields for module, _ in item.homes)

    # --- moving weights ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def current(self, unit: Unit) -> Tensor:
        """A unit's weights in the model's dtype, every update applied: its own buffer if it holds that, else a copy."""
        weights = unit.buffer
        if weights is None:
            assert self.pipeline is not None
            number = self._number[id(unit)]
            weights = allocate(self._sizes[number], self.config.device)
            self.pipeline.read(number, weights)
            if self._wire is not None:
                packed, weights = weights, allocate(unit.nbytes, self.config.device)
                self._wire.decode(unit, packed, weights)
        if isinstance(self.arithmetic, Pristine) and self.arithmetic.pending(unit):
            weights = weights.clone() if weights is unit.buffer else weights
            self.arithmetic.catch_up(unit, weights)
        return weights

    def _settle_all(self) -> None:
        for unit in self.units:
            self.touch(unit)
        for unit in self.residents:
            self.arithmetic.settle(unit)
        if self.pipeline is not None:
            for number, unit in enumerate(self.blocks):
                self.pipeline.compute(number, functools.partial(self.arithmetic.settle, unit), work="update")

    def touch(self, unit: Unit) -> None:
        """Comes before a unit's first turn of a pass, or its settling: who reads it at rest must be done by then."""
        self.before_change(unit)

    def number(self, unit: Unit) -> int:
        """A streamed unit's place in the pipeline and in its tier."""
        return self._number[id(unit)]

    def kept_bytes(self, unit: Unit) -> int:
        """Bytes at the front of the unit's weights at rest that steps change."""
        return self._written()[self.number(unit)] if unit.streamed else unit.kept

    def rest_bytes(self, unit: Unit) -> int:
        """Bytes of the unit's weights at rest, those that pad it for several ranks included."""
        return self._sizes[self.number(unit)] if unit.streamed else unit.nbytes

    def position(self, unit: Unit) -> Position:
        """How far the unit's weights at rest have come, between two passes."""
        return Position(passes=self.passes, applied=unit.applied, part=unit.part)

    def forget(self) -> None:
        """Lets the noise keep what the pending entries and the points of this pass need, and no more."""
        pending = self.journal[min(unit.applied for unit in self.units if unit.trained) :]
        self.noise.keep(
            {entry.seed for entry in pending} | {p.seed for p in self.forwards.points if p.seed is not None}
        )

    def run(self, unit: Unit, turn: Callable[[], None]) -> None:
        """Runs a unit's turn while its weights are on the device."""
        if unit.streamed:
            assert self.pipeline is not None
            self.pipeline.compute(self._number[id(unit)], turn)
        else:
            turn()
