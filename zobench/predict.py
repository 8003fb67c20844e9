"""Predicted seconds of a cell, so that a sweep can plan before it runs, and the floor that no cell can go below."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zobench import models, tuned
from zobench.footprint import PARTS_STEPS, fit, memory, streamed_layers, wire_width
from zobench.result import Outcome, Result
from zobench.spec import FIRST_ORDER, RunSpec
from zobench.tuned import WIDTH

FILL_RATE = 1.5e9
"""Bytes of initial weights written per second into memory that was never touched; measured: 0.4 to 1.5e9."""
SIMILAR = 30.0
"""Steps whose predicted lengths differ by more than this factor say nothing about each other."""
START_SECONDS = 6.0
"""A fresh process: interpreter, torch, transformers, building the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What the machine does per second: floating-point operations by dtype, elements of noise by stream ("fused": drawn
    and applied in one pass), bytes to and from a tier, and the sum of both ways where they share the disk."""

    flops: Mapping[str, float]
    noise: Mapping[str, float]
    bytes_up: Mapping[str, float]
    bytes_down: Mapping[str, float]
    disk_both: float

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> Rates:
        """From what ``measure.calibrate`` measured; a rate that is not available there is taken from the copy rate.

        Raises ``KeyError`` or ``TypeError`` for rates of another version, which lack something.
        """
        copy = calibration["copy_bytes_per_second"] / 2  # that rate counts bytes read and bytes written
        up, down = calibration["link_up_bytes_per_second"] or copy, calibration["link_down_bytes_per_second"] or copy
        read = min(up, calibration["disk_read_bytes_per_second"] or up)
        write = min(down, calibration["disk_write_bytes_per_second"] or down)
        noise = calibration["noise_elements_per_second"]
        return cls(
            flops=calibration["matmul_flops_per_second"],
            noise={name: noise[name] for name in ("torch", "counter", "fused")},
            bytes_up={"pinned": up, "pageable": up / 2, "disk": read, "checkpoint": read},
            bytes_down={"pinned": down, "pageable": down / 2, "disk": write, "checkpoint": write},
            disk_both=calibration["disk_both_bytes_per_second"] or max(read, write),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Predicted peaks in bytes and durations in seconds; ``source`` says what the durations rest on."""

    device_bytes: int
    host_bytes: int
    disk_bytes: int
    step_seconds: float
    seconds: float
    source: str


def estimate(spec: RunSpec, rates: Rates, earlier: Iterable[Result] = ()) -> Estimate:
    """What ``spec`` (resolved) will take. ``earlier``: results of this machine, which correct the step's duration."""
    device, host, disk = memory(spec)
    seconds, source = step_seconds(spec, rates), "calibration"
    ok = [result for result in earlier if result.outcome is Outcome.OK and result.step_seconds]
    same = [result for result in ok if _comparable(result.spec) == _comparable(spec)]
    if same:
        seconds, source = same[-1].step_seconds or 0.0, "an earlier run of this cell"
    elif corrections := [factor for result in ok if (factor := _correction(result, spec, rates)) is not None]:
        seconds *= statistics.median(corrections)
        runs = "1 earlier run" if len(corrections) == 1 else f"{len(corrections)} earlier runs"
        source = f"calibration, corrected by {runs}"
    moved = models.parameter_count(*models.variant(spec)) * WIDTH[spec.dtype]
    down = rates.bytes_down[spec.tier if spec.engine == "offload" else "pageable"]
    setup = START_SECONDS + (0 if spec.tier == "checkpoint" else moved / min(FILL_RATE, down))
    steps = spec.steps + spec.warmup + (PARTS_STEPS if spec.parts else 0)
    return Estimate(
        device_bytes=device, host_bytes=host, disk_bytes=disk, step_seconds=seconds,
        seconds=setup + steps * seconds, source=source,
    )  # fmt: skip


def step_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step: products and noise, and the transfers that they do not hide."""
    spec = fit(spec)[0]
    architecture = models.get(spec.model)
    pairs = tuned.rows(spec) * tuned.usual(spec) ** 2
    attention = int(2 * architecture.layers * pairs * architecture.hidden * passes(spec))
    compute = _product_seconds(spec, rates, attention) + _noise_seconds(spec, rates)
    if spec.engine == "resident":
        return compute
    up, down = _transfer_seconds(spec, rates.bytes_up[spec.tier], rates.bytes_down[spec.tier])
    transfer = (up + down if spec.tier == "disk" else max(up, down)) * (1 if spec.fused_update else 2)
    return max(compute, transfer) if spec.overlap else compute + transfer


def floor_seconds(spec: RunSpec, rates: Rates) -> float:
    """The least that a step can take here: its products alone, or its transfers alone (PERFORMANCE: the floor).

    ``max(2 n P T / F, P b / B_up, P b / B_down)`` with n forwards of T tokens, P b over the blocks that travel, and
    what is written back over the steps between. On a disk both ways share one rate.
    """
    spec = fit(spec)[0]
    products = _product_seconds(spec, rates)
    if not streamed_layers(spec):
        return products
    link = "pinned" if spec.tier == "pageable" else spec.tier
    up, down = _transfer_seconds(spec, rates.bytes_up[link], rates.bytes_down[link])
    both = sum(_transfer_seconds(spec, rates.disk_both, rates.disk_both)) if spec.tier == "disk" and down else 0
    return max(products, up, down, both)


def floor_share(result: Result) -> float | None:
    """The floor over the measured step, by the rates that travel with the result; None where it has none, and for a
    task, whose tokens are not counted."""
    if result.spec.task != "none":
        return None
    try:
        rates = Rates.of(result.environment["calibration"])
        return floor_seconds(result.spec, rates) / result.step_seconds if result.step_seconds else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # no rates, or those or the model of another version
        return None


def passes(spec: RunSpec) -> float:
    """What a step computes, in forwards of one batch: 2 operations per parameter and token each.

    Two for every query; ZO-SGD-Block a pair for each part of the model, ZO-SGD-Cons three more for its candidates.
    A backward pass is two forwards, one where the weights are frozen; the hybrid's ends at its last ZO layer. A forward
    derivative is two more: of the activations, and of the weights that are tuned.
    """
    layers = models.get(spec.model).layers
    back = 2.0 if spec.scheme == "full" else 1.0
    back += spec.checkpointing
    if spec.method in FIRST_ORDER:
        return 1 + back
    if spec.method == "hybrid":
        return 2 * spec.queries + 1 + back * (1 - spec.zo_layers / layers)
    if spec.method == "forward-grad":
        return spec.queries * (1 + (2 if spec.scheme == "full" else 1))
    parts = layers + 2 if spec.method == "zo-sgd-block" else 1
    return 2 * spec.queries * parts + (3 if spec.method == "zo-sgd-cons" else 0)


def _product_seconds(spec: RunSpec, rates: Rates, attention: int = 0) -> float:
    """Seconds of all forwards of a step: 2 operations per parameter and token each, and those of attention."""
    tokens = tuned.rows(spec) * tuned.usual(spec)
    operations = 2 * models.parameter_count(*models.variant(spec)) * tokens * passes(spec)
    return (operations + attention) / rates.flops[spec.dtype if spec.autocast == "none" else spec.autocast]


def _noise_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of drawing z for what is tuned. MeZO draws it four times a query; the counter stream once, and once per
    pending update; ZO-SGD-Cons for three more moves; Forward-Grad for the tangents and the update."""
    if spec.method in FIRST_ORDER:
        return 0.0
    inside, outside = tuned.trained(spec)
    parameters = (models.get(spec.model).layers * inside + outside) * spec.queries
    masks = 2 if spec.method == "zo-sgd-sparse" else 1
    if spec.noise == "torch":
        draws = {"zo-sgd-cons": 7, "forward-grad": 2}.get(spec.method, 4)
        return draws * masks * parameters / rates.noise["torch"]
    middle = spec.warmup + (spec.steps + 1) / 2
    pending = middle if spec.writeback_every == "inf" else min(middle, (int(spec.writeback_every) + 1) / 2)
    made = 3 if spec.method == "zo-sgd-cons" else 1
    return (made + pending) * masks * parameters / rates.noise["fused"]


def _transfer_seconds(spec: RunSpec, up: float, down: float) -> tuple[float, float]:
    """Seconds of a step's uploads and of its share of the write-backs, at ``up`` and ``down`` bytes per second.

    Frozen weights are not written back; adapters and state travel beside the weights."""
    layers, block = streamed_layers(spec), models.block_parameter_count(spec.model) * wire_width(spec)
    added = tuned.added(spec)[0]
    written = layers * (added + (block if spec.scheme == "full" else 0))
    uploads = 2 if spec.method == "zo-sgd-cons" else 1
    seconds = uploads * layers * (block + added) / up
    return seconds, 0.0 if spec.writeback_every == "inf" else written / down / int(spec.writeback_every)


def _correction(result: Result, spec: RunSpec, rates: Rates) -> float | None:
    """Measured over predicted seconds of a step of ``result``; None if that says nothing about ``spec``.

    A tiny model's step is overhead that no rate describes, so only steps of a similar predicted length count.
    """
    if result.spec.model not in models.REGISTRY or _kind(result.spec) != _kind(spec):
        return None
    there, here = step_seconds(result.spec, rates), step_seconds(spec, rates)
    return (result.step_seconds or 0.0) / there if here / SIMILAR < there < here * SIMILAR else None


def _kind(spec: RunSpec) -> tuple[str, ...]:
    words = spec.engine, spec.tier, spec.dtype, spec.noise, spec.autocast, spec.method, spec.scheme
    return *words, spec.device.partition(":")[0]


def _comparable(spec: RunSpec) -> RunSpec:
    return spec.replace(steps=1, warmup=0, seed=0, parts=False, survival=False)
