"""Builds what a spec describes: the engine's configuration, the weights, and an engine with its method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zobench import methods, models, schemes
from zobench.cost import interval
from zobench.cost.footprint import SHARED_BLOCKS, fit, memory
from zobench.cost.interval import Consolidation
from zobench.durable.snapshot import SnapshotWeights
from zobench.engine import EngineConfig
from zobench.engine.interface import Start, TunedEngine
from zobench.engine.passes import attention
from zobench.engine.weights.blocks import is_tuned
from zobench.engine.weights.wire import FORMATS
from zobench.machine.memory import disk_folder
from zobench.methods import Method
from zobench.methods.engines import EngineParts
from zobench.models.identity import GGUF
from zobench.models.weights import GGUFWeights, PretrainedWeights, RandomWeights, Weights
from zobench.parallel.mesh import is_out_of_place
from zobench.runspec import RunSpec
from zobench.runspec.kinds import AUTOCASTS, ENGINES
from zobench.runspec.order import current
from zobench.schemes.base import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World


@dataclass(frozen=True, slots=True)
class Numerics:
    """The choices that decide the last digits of a run's losses and weights beside its spec: the kernels of
    ``attention``, and the ``consolidation`` of ``writeback_every=inf``, which rounds weights of 16 bits; None: the
    engine's usual number."""

    attention: attention.Choice
    consolidation: Consolidation | None

    @classmethod
    def of_process(cls, spec: RunSpec) -> Numerics:
        """Those of a run of ``spec`` that begins in this process: measured, and as its order says."""
        return cls(attention_kernels(spec), interval.ordered())


@dataclass(frozen=True, slots=True)
class Tuner:
    """An engine over the model to which the scheme was applied, and the method that steps it. ``trained``: the names
    of the trained parameters."""

    engine: TunedEngine
    method: Method
    scheme: Scheme
    trained: frozenset[str]


@contextmanager
def tuner(
    spec: RunSpec, snapshot: Path | None = None, model: PreTrainedModel | None = None, *,
    start: Start | None = None, world: World | None = None, ran: RunSpec | None = None,
    numerics: Numerics | None = None,
) -> Iterator[Tuner]:  # fmt: skip
    """A tuner for ``spec`` (resolved, and planned where ``device_memory`` is given); its engine is closed at the end.

    With several ``gpus`` this process is one of their ranks (:func:`zobench.parallel.world.join`), of ``world`` if it
    has joined already.

    ``snapshot``: a folder of safetensors with trained tensors and optimizer state by name; what is not there is as at
    the start of a run. ``start``: an earlier run's weights at rest (:class:`zobench.engine.Engine`). ``model``: the
    spec's, built already (:func:`empty_model`). ``ran``: the spec of the ranks whose journal this one device goes
    over: a rank with one sign rounds its weights in other places than a device with both. ``numerics``: those
    that a run began with; None: this process's.
    """
    with ranks(spec) if world is None else nullcontext(world) as joined:
        config = replace(engine_config(spec, numerics), out_of_place=is_out_of_place(ran or spec))
        built = _build(spec, config, snapshot, empty_model(spec) if model is None else model, start, joined)
        with built.engine:
            yield built


@contextmanager
def ranks(spec: RunSpec) -> Iterator[World | None]:
    """Joins the ranks of the run, if there are several, for as long as it lasts: a process can join only once."""
    if spec.gpus == 1:
        yield None
        return
    from zobench.parallel.world import join

    with join(spec) as world:
        yield world


def _build(
    spec: RunSpec, config: EngineConfig, snapshot: Path | None, model: PreTrainedModel, kept: Start | None,
    world: World | None,
) -> Tuner:  # fmt: skip
    """Builds the tuner. After that only the engine holds weights: random initial values must not count as memory."""
    plain = initial_weights(spec, model)
    if world is not None:
        config = replace(config, device=world.device)
    scheme = schemes.apply(spec, model)
    trained = frozenset(name for name, parameter in model.named_parameters() if is_tuned(parameter))
    start = scheme.weights(plain, config)
    weights, state = start, None
    if snapshot is not None:
        weights = saved = SnapshotWeights(snapshot, start)
        state = saved if any("#" in name for name in saved.names) else None  # before its first step Adam has none
    built_from = EngineParts(
        model=model, config=config, weights=weights, drive=scheme.drive, rule=methods.rule(spec), state=state,
        thresholds=methods.thresholds(spec, model, start), directions=methods.directions(spec), start=kept,
        **_of_ranks(spec, world),
    )  # fmt: skip
    return Tuner(methods.engine(spec, built_from), methods.make(spec), scheme, trained)


def _of_ranks(spec: RunSpec, world: World | None) -> dict[str, Any]:
    """The parts that only an engine of several ranks has: shared host memory, and what joins it to ``world``."""
    if world is None:
        return {}
    from zobench.parallel.engine import ParallelEngine
    from zobench.parallel.hosts import hosts_for

    def sharded(*arguments: Any, **named: Any) -> Any:
        from zobench.parallel.gradients import ShardedBackprop  # FSDP takes memory, which no other run should have

        return ShardedBackprop(world, *arguments, **named)

    hosts = hosts_for(spec, world)
    return {"hosts": hosts, "shared_out": lambda engine: ParallelEngine(engine, world), "sharded": sharded}


def planned(spec: RunSpec, numerics: Numerics | None = None) -> tuple[RunSpec, dict[str, Any]]:
    """(the spec with what the planner chose to fit ``device_memory``, what a result says of what was chosen for it:
    ``memory_plan``, and of its ``numerics``, this process's if none are given, ``writeback_plan`` and ``attention``).

    The spec of the result stays as it was asked for.
    """
    chosen, why = fit(spec)
    plans: dict[str, Any] = {}
    if why:
        names = ("granularity", "slots", "resident_blocks")
        chosen_fields = {name: getattr(chosen, name) for name in names}
        plans["memory_plan"] = chosen_fields | {"predicted_bytes": memory(chosen)[0], "reason": why}
    numerics = numerics or Numerics.of_process(chosen)
    if numerics.consolidation is not None:
        plans["writeback_plan"] = asdict(numerics.consolidation)
    if numerics.attention:
        plans["attention"] = attention.described(numerics.attention)
    return chosen, plans


def empty_model(spec: RunSpec) -> PreTrainedModel:
    """The spec's model without weights."""
    architecture, tied, positions = models.variant(spec)
    return models.build(architecture, spec.dtype, tied, positions)


def engine_config(spec: RunSpec, numerics: Numerics | None = None) -> EngineConfig:
    """The engine's configuration for ``spec`` (resolved, and planned where ``device_memory`` is given); ``numerics`` as
    :func:`tuner` takes them."""
    numerics = numerics or Numerics.of_process(spec)
    return EngineConfig(
        placement=spec.engine, tier=spec.tier if ENGINES[spec.engine].is_streamed else "pageable", device=spec.device,
        slots=spec.slots, overlap=spec.overlap, reusable_memory=spec.reusable_memory, fused_update=spec.fused_update,
        shared_blocks=SHARED_BLOCKS if spec.weights == "shared" else None, disk_dir=disk_dir(),
        noise=spec.noise, granularity=spec.granularity, writeback_every=spec.writeback_every, wire=spec.wire,
        autocast=spec.autocast, resident_blocks=spec.resident_blocks, compile=spec.compile,
        packed=spec.packed, accumulate=spec.accumulate,
        attention=numerics.attention,
        out_of_place=is_out_of_place(spec),
        consolidate_after=None if numerics.consolidation is None else numerics.consolidation.steps,
    )  # fmt: skip


def attention_shape(spec: RunSpec) -> attention.Shape | None:
    """The heads and the dtype of the spec's attention; None where it is the model's own, or has no such heads."""
    if spec.attention == "model":  # also of a model that nobody but its caller knows
        return None
    architecture = models.of(spec)
    queries, keys = architecture.attention_widths
    width = queries // max(architecture.heads, 1)
    if not width or keys % width:
        return None
    cast = AUTOCASTS[spec.autocast].is_cast
    dtype = FORMATS.get(spec.autocast if cast else spec.dtype, torch.float32)
    return attention.Shape(dtype, architecture.heads, keys // width, width)


def attention_kernels(spec: RunSpec) -> attention.Choice:
    """The kernels of attention for each length of rows, timed at the first call in a process."""
    shape = attention_shape(spec)
    return () if shape is None else attention.choice_of(shape)


def initial_weights(spec: RunSpec, model: PreTrainedModel) -> Weights:
    """The initial values of ``model``'s weights: pretrained, or random by the spec's seed."""
    if spec.weights == "pretrained":
        location = models.weights_place(spec)
        file = Path(location) / GGUF
        try:
            return GGUFWeights(file, model) if file.is_file() else PretrainedWeights(location, model)
        except ValueError as error:  # of a folder that was not given as weights_path
            message = (
                str(error) if spec.weights_path else str(error).replace("`weights_path`", "`weights=pretrained`", 1)
            )
            raise ValueError(message) from error
    return RandomWeights(model, spec.seed)


def disk_dir() -> Path:
    """The folder of the disk tier: that of this process's order, else as :func:`disk_folder` says."""
    order = current()
    return disk_folder(order.disk_dir if order else None)
