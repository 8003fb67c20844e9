"""The cost of a cell on this machine: its measured rates as a device that is priced as any other. No torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.cost import gpu, hardware, interval, sizes
from zobench.cost.footprint import is_sized, memory, steps_of
from zobench.cost.gpu import Prediction
from zobench.cost.hardware import LANE_BYTES, Gpu
from zobench.cost.interval import Consolidation
from zobench.cost.seconds import Rates, kept_steps, passes, ran, rates_of, sharers
from zobench.result import Outcome, Result
from zobench.runspec import FIELDS, INCIDENTAL, RunSpec, named
from zobench.runspec.kinds import ENGINES, TIERS, WIDTHS

FILL_RATE = 1.5e9
"""Bytes of initial weights written per second into memory that was never touched; measured: 0.4 to 1.5e9."""
SIMILAR = 1000.0
"""Steps whose predicted lengths differ by more than this factor say nothing about each other."""
START_SECONDS = 6.0
"""A fresh process: interpreter, torch, transformers, building the model."""
LINK = 4, 16
"""Generation and lanes of a link, as shares of which the machine's own rates are told."""
SHARE = 0.28
"""Nine of ten published cells of a CPU in 32 bits were within this of such a prediction (tests/cli/test_calibrate)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Predicted peaks in bytes and durations in seconds (nan where no rates are known); ``source`` says what the
    durations rest on, ``consolidation`` when pending updates are written, where the rates choose that.

    ``least_seconds``: of the shortest part of the cell that is worth keeping: one step after the warm-up, where a cell
    can end early.
    """

    device_bytes: int
    host_bytes: int
    disk_bytes: int
    step_seconds: float
    seconds: float
    least_seconds: float
    source: str
    consolidation: Consolidation | None = None


def estimate(spec: RunSpec, rates: Rates, earlier: Iterable[Result] = ()) -> Estimate:
    """Returns the predicted cost of ``spec`` (resolved). ``earlier``: results of this machine, which correct the step's
    duration; of other cells those that nothing disturbed, where there are any."""
    device, host, disk = memory(spec)
    consolidation = interval.chosen(spec, lambda spec: predict(spec, rates).step_seconds)
    prediction = predict(interval.as_run(spec, consolidation), rates)
    seconds, source = prediction.step_seconds, "calibration"
    ok = [result for result in earlier if result.outcome is Outcome.OK and result.step_seconds]
    same = [result for result in ok if all(getattr(result.spec, name) == getattr(spec, name) for name in _MEASURED)]
    if same:
        seconds, source = same[-1].step_seconds or 0.0, "an earlier run of this cell"
    elif corrections := _corrections(ok, spec, prediction, rates):
        seconds *= statistics.median(corrections)
        runs = "1 earlier run" if len(corrections) == 1 else f"{len(corrections)} earlier runs"
        source = f"calibration, corrected by {runs}"
    moved = models.parameter_count(*models.variant(spec)) * WIDTHS[spec.dtype]
    down = rates.bytes_down[spec.tier if ENGINES[spec.engine].is_streamed else "pageable"]
    setup = START_SECONDS + (moved / min(FILL_RATE, down) if TIERS[spec.tier].is_filled else 0)
    steps = steps_of(spec)
    looking = _evaluating_seconds(prediction) * seconds / prediction.step_seconds
    whole = setup + steps * seconds + _saving_seconds(spec, rates) + looking
    spared = (spec.steps - 1) * seconds
    return Estimate(
        device_bytes=device, host_bytes=host, disk_bytes=disk, step_seconds=seconds, seconds=whole,
        least_seconds=whole - (spared if spec.task == "none" and spec.gpus == 1 else 0), source=source,
        consolidation=consolidation,
    )  # fmt: skip


def unpriced(spec: RunSpec) -> Estimate:
    """Returns the predicted memory of ``spec`` (resolved), where no rates are known from which its seconds would
    follow."""
    device, host, disk = memory(spec)
    return Estimate(
        device_bytes=device, host_bytes=host, disk_bytes=disk, step_seconds=math.nan, seconds=math.nan,
        least_seconds=math.nan, source="no rates",
    )  # fmt: skip


def predict(spec: RunSpec, rates: Rates) -> Prediction:
    """Returns the prediction of a step of ``spec`` (resolved for this machine) by the machine's rates alone."""
    written = kept_steps(spec) < math.inf and TIERS[spec.tier].is_filled
    disk = rates.disk_both if written else rates.bytes_up["disk"]
    card = device(spec, rates)
    prediction = gpu.predict(spec, card, disk)
    if spec.device.startswith("cuda"):
        prediction = _issued_ahead(prediction, gpu.predict(spec, dataclasses.replace(card, kernel=0.0), disk))
    return dataclasses.replace(prediction, device_bytes=memory(spec)[0], share=SHARE)


def _issued_ahead(prediction: Prediction, working: Prediction) -> Prediction:
    """``working``, in which kernels cost the device their work alone, beside the host, which launches them meanwhile: a
    step takes the longer of both. What was measured of a GPU's smallest kernel is the host's launch of it."""
    issuing = max(prediction.parts["kernels"] - working.step_seconds, 0.0)
    parts = {**working.parts, "kernels": issuing}
    return dataclasses.replace(working, step_seconds=working.step_seconds + issuing, parts=parts)


def device(spec: RunSpec, rates: Rates) -> Gpu:
    """This machine as ``spec`` meets it: its rates in the precision of that, of which each rank of a CPU has a share.

    Its memory is not known here, so nothing is too large for it.
    """
    precision, ranks = sizes.precision(spec), sharers(spec)
    operators = rates.operators[spec.dtype]
    tuned = rates.operators["fp32" if sizes.trained_width(spec) == 4 else spec.dtype]
    flops, attention = rates.flops[precision], rates.operators.get(precision, operators)["attention"]
    link = LANE_BYTES[LINK[0]] * LINK[1]
    up, down = (way["pinned"] if rates.host is None else min(way["pinned"], rates.host / spec.gpus * spec.nodes)
                for way in (rates.bytes_up, rates.bytes_down))  # fmt: skip
    each = min(up, down, *(() if rates.link_both is None else (rates.link_both / 2,)))
    return Gpu(
        name="this machine", also=(), errors="other", caution="", origins={}, sms=1.0, clock=1.0, memory=math.inf,
        **dict.fromkeys(("fp32", "tf32", "fp16", "bf16"), flops / ranks), fp32_products=1.0, fp16_products=1.0,
        fused_attention=attention / flops, fp32_attention=attention / flops, idle_tiles=0.0,
        hbm=operators["passes"] / ranks, passes=1.0, normals=tuned["normals"],
        losses=1.0 if math.isinf(operators["losses"]) else operators["losses"] / operators["passes"],
        counter_normals=tuned["fused"] / ranks, narrow_normals=1.0, kernel=rates.kernel, driver=0.0,
        malloc=hardware.malloc() if spec.device.startswith("cuda") else 0.0, touch=1 / rates.touch,
        pcie_generation=LINK[0], pcie_lanes=LINK[1], link_one=up / link, link_both=each / link,
        pageable=2 * rates.bytes_up["pageable"], nvlink=rates.between or 0.0 if spec.device.startswith("cuda") else 0.0,
    )  # fmt: skip


def _evaluating_seconds(prediction: Prediction) -> float:
    """Seconds of a task's evaluations: on dev before the first step, at the intervals asked for and at the end; on test
    once. A forward for each row of each example; of all that a step does, products, attention, passes and kernels
    alone."""
    spec = prediction.spec
    if spec.task == "none":
        return 0.0
    looks = 1 + math.ceil(spec.steps / (spec.eval_every or spec.steps))
    examples = sizes.dev_examples(spec) * looks + sizes.test_examples(spec)
    forward = sum(prediction.parts[name] for name in ("products", "attention", "passes", "kernels")) / passes(spec)
    return examples * sizes.rows_of_example(spec) * forward / sizes.rows(spec)


def _saving_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds that checkpoints add to a run: each of a synchronous one's, and what is left to write at the end of any
    other's, at the disk's rate."""
    if spec.checkpoint == "none":
        return 0.0
    count = (spec.warmup + spec.steps) // spec.checkpoint_every
    each = sizes.snapshot_bytes(spec) / rates.bytes_down["disk"]
    return each * (count if spec.checkpoint == "sync" else min(count, 1))


def _corrections(ok: Sequence[Result], spec: RunSpec, prediction: Prediction, rates: Rates) -> list[float]:
    """The corrections by each of the runs ``ok`` that says something about ``spec``; by disturbed ones if all are."""
    kind = _kind(spec)
    alike = [run for run in ok if _kind(run.spec) == kind]
    factors = [(_correction(run, prediction, rates), run.disturbances) for run in alike]
    calm = [factor for factor, disturbed in factors if factor is not None and not disturbed]
    return calm or [factor for factor, _ in factors if factor is not None]


def _correction(result: Result, prediction: Prediction, rates: Rates) -> float | None:
    """Measured over predicted step seconds of ``result``, by the rates that were measured with it, else by ``rates``;
    None if its step is too different from that of ``prediction``, which is of a cell of the same kind.

    A tiny model's step is overhead that no rate describes, so only steps of a similar predicted length count.
    """
    if not is_sized(result.spec):
        return None
    other, this = predict(ran(result), rates_of(result) or rates).step_seconds, prediction.step_seconds
    return (result.step_seconds or 0.0) / other if this / SIMILAR < other < this * SIMILAR else None


_PACED = named(lambda field: field.paced)
_MEASURED = tuple(name for name in FIELDS if name not in INCIDENTAL)


def _kind(spec: RunSpec) -> tuple[Any, ...]:
    return *(getattr(spec, name) for name in _PACED), spec.device.partition(":")[0]
