"""Predicted bytes and seconds of a cell, so that a sweep can plan before it runs. Every figure here is an estimate."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
SHARED_BLOCKS = 8
"""Host blocks that serve all layers with weights=shared."""
FILL_RATE = 1.5e9
"""Bytes of initial weights written per second into memory that was never touched; measured: 0.4 to 1.5e9."""
SIMILAR = 30.0
"""Steps whose predicted lengths differ by more than this factor say nothing about each other."""
START_SECONDS = 6.0
"""A fresh process: interpreter, torch, transformers, building the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What the machine does per second: floating-point operations by dtype, normals drawn, bytes to and from a tier."""

    flops: Mapping[str, float]
    normals: float
    bytes_up: Mapping[str, float]
    bytes_down: Mapping[str, float]

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> Rates:
        """From what ``measure.calibrate`` measured; a rate that is not available there is taken from the copy rate."""
        copy = calibration["copy_bytes_per_second"] / 2  # that rate counts bytes read and bytes written
        up, down = calibration["link_up_bytes_per_second"] or copy, calibration["link_down_bytes_per_second"] or copy
        read = calibration["disk_read_bytes_per_second"] or up
        write = calibration["disk_write_bytes_per_second"] or down
        return cls(
            flops=calibration["matmul_flops_per_second"],
            normals=calibration["noise_elements_per_second"],
            bytes_up={"pinned": up, "pageable": up / 2, "disk": min(up, read)},
            bytes_down={"pinned": down, "pageable": down / 2, "disk": min(down, write)},
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
    moved = models.parameter_count(spec.model, spec.tie_embeddings) * BYTES[spec.dtype]
    down = rates.bytes_down[spec.tier if spec.engine == "offload" else "pageable"]
    setup = START_SECONDS + moved / min(FILL_RATE, down)
    steps = spec.steps + spec.warmup + (4 if spec.parts else 0)
    return Estimate(
        device_bytes=device, host_bytes=host, disk_bytes=disk, step_seconds=seconds,
        seconds=setup + steps * seconds, source=source,
    )  # fmt: skip


def memory(spec: RunSpec) -> tuple[int, int, int]:
    """(device, host, disk) bytes at the peak. On a CPU the device's and the host's bytes are the same memory."""
    width = BYTES[spec.dtype]
    architecture = models.get(spec.model)
    block = models.block_parameter_count(spec.model) * width
    resident = models.resident_parameter_count(spec.model, spec.tie_embeddings) * width
    stored = block * (min(SHARED_BLOCKS, architecture.layers) if spec.weights == "shared" else architecture.layers)
    noise = models.largest_resident(spec.model, spec.tie_embeddings) * width if spec.device.startswith("cuda") else 0
    device = resident + noise + activations(spec)
    if spec.engine == "resident":
        return device + block * architecture.layers, 0, 0
    device += block * min(spec.slots, architecture.layers)
    return device, stored if spec.tier != "disk" else 0, stored if spec.tier == "disk" else 0


def activations(spec: RunSpec) -> int:
    """Bytes of one block's activations for one point, the hidden states of both, and the chunked loss."""
    architecture, width = models.get(spec.model), BYTES[spec.dtype]
    tokens = spec.tokens_per_step
    inner = 2 * int(architecture.config.get("ffn_dim") or architecture.config["intermediate_size"])
    mask = spec.batch_size * spec.seq_len**2 * width if spec.data == "ragged" else 0
    logits = min(32 << 20, tokens * architecture.vocab * 4)
    return tokens * (6 * architecture.hidden + inner) * width + mask + 3 * logits


def step_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step: products and noise, and the transfers that they do not hide (PERFORMANCE: the floor)."""
    architecture = models.get(spec.model)
    parameters = models.parameter_count(spec.model, spec.tie_embeddings)
    attention = 4 * architecture.layers * spec.batch_size * spec.seq_len**2 * architecture.hidden
    products = (4 * parameters * spec.tokens_per_step + attention) / rates.flops[spec.dtype]
    compute = products + 4 * parameters / rates.normals
    if spec.engine == "resident":
        return compute
    moved = architecture.layers * models.block_parameter_count(spec.model) * BYTES[spec.dtype]
    up, down = moved / rates.bytes_up[spec.tier], moved / rates.bytes_down[spec.tier]
    transfer = (up + down if spec.tier == "disk" else max(up, down)) * (1 if spec.fused_update else 2)
    return max(compute, transfer) if spec.overlap else compute + transfer


def _correction(result: Result, spec: RunSpec, rates: Rates) -> float | None:
    """Measured over predicted seconds of a step of ``result``; None if that says nothing about ``spec``.

    A tiny model's step is overhead that no rate describes, so only steps of a similar predicted length count.
    """
    if result.spec.model not in models.REGISTRY or _kind(result.spec) != _kind(spec):
        return None
    there, here = step_seconds(result.spec, rates), step_seconds(spec, rates)
    return (result.step_seconds or 0.0) / there if here / SIMILAR < there < here * SIMILAR else None


def _kind(spec: RunSpec) -> tuple[str, ...]:
    return spec.engine, spec.tier, spec.dtype, spec.device.partition(":")[0]


def _comparable(spec: RunSpec) -> RunSpec:
    return spec.replace(steps=1, warmup=0, seed=0, parts=False)
