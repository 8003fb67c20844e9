"""Building an engine: a model is cut into units, each gets its weights and its place, and what moves them is chosen."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zobench.engine.assemble import by_tensor, located, make_tier, slot_maker, streamed_modules
from zobench.engine.base import EngineConfig, Entry
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.factored import Factored, RowFactored
from zobench.engine.directions.factors import LowRank
from zobench.engine.directions.general import General
from zobench.engine.directions.in_place import InPlace, OutOfPlace
from zobench.engine.directions.noise import Noise, SparseNoise, StoredNoise, TorchNoise
from zobench.engine.directions.pristine import Pristine
from zobench.engine.interface import Start
from zobench.engine.passes import head
from zobench.engine.passes.fold import Marks
from zobench.engine.passes.forwards import Forwards
from zobench.engine.passes.products import ProductForwards, RowForwards
from zobench.engine.transfers.lanes import CudaLanes, Lanes, ThreadLanes
from zobench.engine.transfers.pipeline import Pipeline, WeightStore
from zobench.engine.updates.rules import UpdateRule
from zobench.engine.weights import linear
from zobench.engine.weights.blocks import ALIGNMENT, PAGE, Unit, find_units, move_buffers, stream_layout, strip, tiles
from zobench.engine.weights.tiers import Hosts, Tier, allocate
from zobench.engine.weights.wire import FORMATS, DeviceWeights, FloatWire, IntegerWire, StoredWire, Wire
from zobench.machine.accelerator import cpus_near, stay_near
from zobench.models import blocks as find_blocks
from zobench.models.weights import Weights
from zobench.runspec.kinds import AUTOCASTS, GRANULARITIES, NOISES, TIERS, WIRES


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Source:
    """The bytes that units begin with: ``weights``, a rule's ``state`` or zeros, and over both an earlier run's
    ``start``."""

    weights: Weights
    state: Weights | None = None
    start: Start | None = None

    def fill(self, unit: Unit, buffer: Tensor, wire: Wire | None = None) -> None:
        """Writes a unit as it rests, in the format of ``wire``."""
        write = unit.filler(self.weights, self.state)
        if wire is None:
            write(buffer)
        else:
            master = allocate(unit.nbytes)
            write(master)
            wire.encode(unit, master, buffer)
        if self.start is not None:
            if self.start.fill(unit.name, buffer):
                unit.changed = True
            self.set_position(unit)

    def set_position(self, unit: Unit) -> None:
        """Lets a unit know how far the weights have come that it begins with."""
        assert self.start is not None
        position = self.start.position(unit.name)
        unit.applied, unit.part = position.applied, max(unit.part, position.part)

    def restore(self, unit: Unit, tier: Tier, block: int, buffer: Tensor) -> None:
        """Lets a unit of a tier that is only read begin as ``start`` has it; ``buffer`` is as long as the block."""
        assert self.start is not None
        tier.upload(block, buffer)
        if self.start.fill(unit.name, buffer):
            tier.offload(block, buffer)
            unit.changed = True
        self.set_position(unit)

    def put_on_device(self, unit: Unit, device: str) -> None:
        """Puts a unit on the device for good, unless it is there."""
        if unit.buffer is None:
            unit.buffer = allocate(unit.nbytes, device)
            if device != "meta":
                self.fill(unit, unit.buffer)
            if not unit.is_tile:
                unit.bind(unit.views(unit.buffer))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Built:
    """The finished parts of an engine. ``thresholds``: of sparse directions, by tensor id."""

    store: WeightStore
    noise: Noise
    arithmetic: Arithmetic
    forwards: Forwards
    thresholds: dict[int, float]


@torch.inference_mode()
def build(
    model: nn.Module, config: EngineConfig, source: Source, journal: Sequence[Entry], touch: Callable[[Unit], None], *,
    rule: UpdateRule | None, thresholds: Mapping[str, float], lanes: Lanes | None, hosts: Hosts | None, marks: Marks,
    directions: LowRank | None,
) -> Built:  # fmt: skip
    """An engine's parts over ``model``, whose updates are those of ``journal``; ``touch`` comes before a unit's turn.

    Raises ``ValueError``, one line, for a model, thresholds or a tier that will not do.
    """
    blocks = list(find_blocks(model))
    if config.resident_blocks > len(blocks):
        raise ValueError(
            f"`resident_blocks <= {len(blocks)}` must hold for this model, but got {config.resident_blocks}; use "
            "placement=resident to keep all of them"
        )
    streamed, residents, noise = _units(model, config, blocks, rule, source)
    units = [*streamed, *residents]
    wire = _wire(config, source.weights)
    if wire is not None:
        for dtype in dict.fromkeys(item.dtype for unit in streamed for item in unit.fields if item.is_parameter):
            wire.prepare(config.device, dtype)
    by_id = by_tensor(units, thresholds)
    with ExitStack() as undo:
        pipeline, nbytes = None, 0
        if streamed:
            pipeline, nbytes = _stream(streamed, len(blocks), config, source, wire, lanes, hosts, undo)
        for unit in residents:
            source.put_on_device(unit, config.device)
        strip(unit.module for unit in units if unit.is_tile)
        if by_id and NOISES[config.noise].in_place:
            ordered = sorted(units, key=lambda unit: unit.index)
            noise = SparseNoise(
                noise, [[by_id.get(item.tensor_id, -math.inf) for item in unit.trainable] for unit in ordered]
            )
        store = WeightStore(streamed, residents, config.device, pipeline, wire, nbytes)
        common = model, config, blocks, units
        arithmetic: Arithmetic
        if directions is None:
            arithmetic = _arithmetic(model, config, store, noise, journal, wire, rule, by_id)
            forwards = Forwards(*common, arithmetic, store.run, touch, marks)
        else:
            weights = DeviceWeights(wire, allocate(_largest(streamed), config.device) if wire else None)
            factors = directions, journal, config.keep_steps, config.device, weights, source.state
            arithmetic = factored = RowFactored(*factors) if directions.is_apart else Factored(*factors)
            kind = RowForwards if directions.is_apart else ProductForwards
            forwards = kind(*common, factored, store.run, touch, marks)
        undo.pop_all()
    return Built(store=store, noise=noise, arithmetic=arithmetic, forwards=forwards, thresholds=by_id)


def _wire(config: EngineConfig, weights: Weights) -> Wire | None:
    """The format that streamed units are packed in, or that of a quantised checkpoint in which the blocks rest."""
    kind = WIRES[config.wire]
    if config.streams and not TIERS[config.tier].is_filled and weights.is_quantised:
        return StoredWire(weights)
    if not kind.is_packed:
        return None
    return IntegerWire(kind) if kind.bits else FloatWire(config.wire)


def is_end(model: nn.Module, unit: Unit) -> bool:
    """Whether a unit is used by the word embedding or the head: with counter noise it is never perturbed whole."""
    ends = (model.get_output_embeddings(), model.get_input_embeddings())  # type: ignore[operator]
    return any(module in ends for item in unit.fields for module, _ in item.homes)


def _units(
    model: nn.Module, config: EngineConfig, blocks: Sequence[nn.Module], rule: UpdateRule | None, source: Source
) -> tuple[list[Unit], list[Unit], Noise]:
    """(the streamed units in call order, all others, the noise of all)."""
    granularity = GRANULARITIES[config.granularity]
    owners: Sequence[nn.Module] = blocks if granularity.is_block else linear.linears(blocks)
    alignment = ALIGNMENT if config.reusable_memory else PAGE  # a tensor that is moved alone, past the page cache
    units, others = find_units(model, blocks, owners, rule, alignment)
    noise: Noise = TorchNoise(stream_layout([*units, *others]), config.device)
    if NOISES[config.noise].is_stored:
        noise = StoredNoise(noise)
    move_buffers(model, owners, config.device)
    for unit in others:
        source.put_on_device(unit, config.device)
    if not granularity.is_block:
        modules = [unit.module for unit in units if isinstance(unit.module, nn.Linear)]
        order = {id(module): n for n, module in enumerate(linear.call_order(model, modules, config.device))}
        units.sort(key=lambda unit: order[id(unit.module)])
    if granularity.is_cut:
        units = [tile for unit in units for tile in tiles(unit, alignment=alignment)]
    inside = streamed_modules(blocks, config)
    streamed = [unit for unit in units if id(unit.module) in inside]
    return streamed, [*others, *(unit for unit in units if id(unit.module) not in inside)], noise


def _stream(
    units: Sequence[Unit], layers: int, config: EngineConfig, source: Source, wire: Wire | None, lanes: Lanes | None,
    hosts: Hosts | None, undo: ExitStack,
) -> tuple[Pipeline, int]:  # fmt: skip
    """Fills the tier with the streamed units and builds the pipeline over it. Returns also how many bytes rest there.

    ``undo`` closes the tier of an engine that could not be built: pinned memory must not be unmapped while it is
    registered.
    """
    sizes = [wire.nbytes(unit) if wire else unit.nbytes for unit in units]
    if hosts is not None:
        sizes = [hosts.padded(size) for size in sizes]
    ring = len(units)
    if config.shared_blocks is not None:
        ring = min(ring, config.shared_blocks * (len(units) // (layers - config.resident_blocks)))
    extents = wire.extents if isinstance(wire, StoredWire) else functools.partial(located, weights=source.weights)
    resting = [max(sizes[number % ring :: ring]) for number in range(len(units))]  # a shared block serves several
    if hosts is not None and resting != sizes:
        raise ValueError("`weights=shared` needs blocks of one size where ranks share them; use weights=random")
    tier = make_tier(config, units, resting, ring, extents, hosts)
    undo.callback(tier.close)
    _fill(tier, units, config, source, wire)
    if source.start is not None and not TIERS[config.tier].is_filled:
        for number, (unit, size) in enumerate(zip(units, sizes, strict=True)):
            source.restore(unit, tier, number, allocate(size))
    if hosts is not None and source.start is not None:
        for unit, changed in zip(units, hosts.any([unit.changed for unit in units]), strict=True):
            unit.changed = changed  # what the rank that filled a block knows of its unit, all ranks must
            source.set_position(unit)
    waits = not TIERS[config.tier].is_pinned or (hosts is not None and hosts.waits)  # a copy stops who issues it
    streams = config.device.startswith("cuda") and not waits
    lanes = lanes or (CudaLanes(config.device) if streams else ThreadLanes(config.device))
    written = sizes
    if wire is None and TIERS[config.tier].is_filled:  # what a step changes lies apart, at the front
        written = [unit.kept for unit in units]
    fresh: list[list[tuple[int, int]]] = []
    if not config.reusable_memory:  # a packed block, and one that ranks share, is moved whole
        fresh = [
            unit.cuts if wire is None and hosts is None else [(0, size)]
            for unit, size in zip(units, sizes, strict=True)
        ]
    new_slot = slot_maker(config)
    pipeline = Pipeline(
        units, sizes, written, tier, lanes, new_slot, slots=config.slots, overlap=config.overlap, fresh=fresh,
        free=getattr(new_slot, "free", None),
    )  # fmt: skip
    return pipeline, sum(resting[:ring])


def _fill(tier: Tier, units: Sequence[Unit], config: EngineConfig, source: Source, wire: Wire | None) -> None:
    """Fresh pages cost more than the values in them, so threads share the work; each holds at most one block."""
    for unit in units:
        unit.streamed = True

    def store(number: int) -> None:
        unit = units[number]
        tier.fill(number, functools.partial(source.fill, unit, wire=wire))
        if not unit.is_tile:
            unit.release()

    near = (cpus_near(config.device),)
    with ThreadPoolExecutor(min(config.slots, os.cpu_count() or 1), "zobench-fill", stay_near, near) as pool:
        list(pool.map(store, range(len(units))))


def _largest(blocks: Sequence[Unit]) -> int:
    """Bytes of the largest of the streamed units, 0 if there are none."""
    return max((unit.nbytes for unit in blocks), default=0)


def _arithmetic(
    model: nn.Module, config: EngineConfig, store: WeightStore, noise: Noise, journal: Sequence[Entry],
    wire: Wire | None, rule: UpdateRule | None, thresholds: Mapping[int, float],
) -> Arithmetic:  # fmt: skip
    device, streamed = config.device, _largest(store.blocks)
    if NOISES[config.noise].in_place:
        weights = DeviceWeights(wire, allocate(streamed, device) if wire else None)
        if not config.out_of_place:
            return InPlace(noise, journal, weights, rule)
        end = model.get_output_embeddings()  # type: ignore[operator]
        judges = [unit.trained for unit in store.units for item in unit.fields if (end, "weight") in item.homes]
        judges += [unit.trained for unit in store.units for item in unit.fields if (end, "bias") in item.homes]
        largest = max(sum(judges), *(unit.trained for unit in store.units))
        return OutOfPlace(noise, journal, allocate(largest, device), weights, rule)
    kept = max(head.HEAD_BYTES, *(0, *(unit.trained for unit in store.residents if not is_end(model, unit))))
    elsewhere = max(streamed if wire else 0, kept if config.keep_steps > 1 else 0)
    moved = max(kept, *(unit.trained for unit in store.units if not is_end(model, unit)))
    scratch = allocate(moved, device)
    weights = DeviceWeights(wire, allocate(elsewhere, device) if elsewhere else None)
    general = General(rule, thresholds) if rule or thresholds else None
    cast = cast_by_products(config) if general is None else None
    return Pristine(journal, config.keep_steps, scratch, weights, general, config.reusable_memory, cast)


def cast_by_products(config: EngineConfig) -> torch.dtype | None:
    """The 16-bit dtype to which autocast would cast the matrices of the blocks' products at each point, on a CPU."""
    is_cast = AUTOCASTS[config.autocast].is_cast and config.device == "cpu" and not config.compile
    return FORMATS[config.autocast] if is_cast else None
