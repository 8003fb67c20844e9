"""A device by what was measured on it: its file, a GPU's beside its data sheet or a CPU's, which has none; and a GPU
fitted to a user's own runs on it."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from zobench.cost import gpu as engine
from zobench.cost import sizes
from zobench.cost.hardware import LANE_BYTES, PEAKS, SHARES, Gpu, load, plain
from zobench.cost.registered import devices
from zobench.machine.memory import total_host_bytes
from zobench.measure.threads import available_cores
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.kinds import TIERS

GENERATION, LANES = 4, 16
"""A CPU's "link" is a copy in its memory; it is told as a share of this."""
MOST = 1.2
"""Times its data sheet that no rate can be: then the sheet is another card's."""


def text_of(device: str, sheet: str | None, name: str, rates: Mapping[str, Any]) -> str:
    """The text of a file of today: of a GPU with the data ``sheet``, or of this CPU, which is called ``name``."""
    today = datetime.date.today()
    if sheet is not None and not device.startswith("cpu"):
        return of_gpu(load(sheet), rates, today)
    return of_cpu(name, rates, available_cores(), total_host_bytes() or 0, today)


def of_gpu(sheet: Gpu, rates: Mapping[str, Any], day: datetime.date) -> str:
    """The text of a file: what ``sheet`` says of the card, and what was measured of that.

    Raises ``ValueError`` for a rate that is well above the data sheet's.
    """
    flops, operators = (rates[f"{name}_per_second"] for name in ("matmul_flops", "operators"))
    ticks = sheet.sms * sheet.clock
    facts = {
        "fp32_products": flops["fp32"] / sheet.fp32, "fp16_products": flops["fp16"] / sheet.fp16,
        "passes": operators["fp32"]["passes"] / sheet.hbm, "normals": operators["fp32"]["normals"] / ticks,
        "counter_normals": operators["fp32"]["fused"] / ticks,
        "link_one": rates["link_up_bytes_per_second"] / sheet.pcie,
        "link_both": rates["link_both_bytes_per_second"] / 2 / sheet.pcie,
    }  # fmt: skip
    for key in ("fp32_products", "fp16_products", "passes", "link_one"):
        if facts[key] > MOST:
            raise ValueError(
                f"`{key}` must be a share of the data sheet's, but {facts[key]:.2f} of {sheet.name}'s were measured; "
                "name the card that this is with --gpu"
            )
    facts |= _common(rates, "fp16")
    peaks = {key: getattr(sheet, plain(key)) / unit for key, unit in PEAKS.items()}
    document = sheet.origins["hbm_gbs"].document
    return _text(
        f"{sheet.name} (measured)", [("data sheet", document, peaks), ("measured", "zobench calibrate", facts)], day
    )


def of_cpu(name: str, rates: Mapping[str, Any], cores: int, memory: int, day: datetime.date) -> str:
    """The text of the file of a CPU called ``name`` with ``memory`` bytes: its rates are its peaks."""
    flops, operators = (rates[f"{key}_per_second"] for key in ("matmul_flops", "operators"))
    copy, ticks, link = rates["copy_bytes_per_second"], cores * 1e9, LANE_BYTES[GENERATION] * LANES
    facts = {
        "sms": cores, "clock_ghz": 1.0, "memory_mib": memory / PEAKS["memory_mib"],
        "hbm_gbs": operators["fp32"]["passes"] / 1e9,
        **{f"{kind}_tflops": flops[kind] / 1e12 for kind in ("fp32", "fp16", "bf16")},
        "tf32_tflops": flops["fp32"] / 1e12,
        "pcie_generation": GENERATION, "pcie_lanes": LANES, "nvlink_gbs": 0, "fp32_products": 1.0, "fp16_products": 1.0,
        "idle_tiles": 0, "passes": 1.0, "normals": operators["fp32"]["normals"] / ticks,
        "counter_normals": operators["fp32"]["fused"] / ticks,
        "link_one": copy / 2 / link, "link_both": copy / 4 / link, "pageable_gbs": copy / 2 / 1e9, "malloc_us": 0,
        "driver_mib": 0,
    }  # fmt: skip
    facts |= _common(rates, max(("fp16", "bf16"), key=flops.__getitem__))
    return _text(name, [("measured", "zobench calibrate", facts)], day)


def _common(rates: Mapping[str, Any], narrow: str) -> dict[str, float]:
    """Returns the rates that operators reach, in 32 bits and in the 16-bit type ``narrow``."""
    flops, operators = (rates[f"{key}_per_second"] for key in ("matmul_flops", "operators"))
    return {
        "fp32_attention": operators["fp32"]["attention"] / flops["fp32"],
        "fused_attention": operators[narrow]["attention"] / flops[narrow],
        "narrow_normals": operators[narrow]["normals"] / operators["fp32"]["normals"],
        "losses": operators["fp32"]["losses"] / operators["fp32"]["passes"],
        "kernel_us": rates["kernel_seconds"] / SHARES["kernel_us"],
    }  # fmt: skip


def _text(name: str, groups: list[tuple[str, str, Mapping[str, float]]], day: datetime.date) -> str:
    lines = [f'name = "{name.translate({34: None, 92: None})}"']
    for source, document, facts in groups:
        lines += ["", "[[facts]]", f'source = "{source}"', f'document = "{document}"', f"date = {day.isoformat()}"]
        lines += [f"{key} = {value:.6g}" for key, value in facts.items()]
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    return text


BOUNDS = {"fp32_products": (0.2, 1.0), "fp16_products": (0.2, 1.0), "kernel": (0.2e-6, 60e-6)}
"""Outside of which a constant is a sign of something else, such as a busy GPU; seconds, and shares of the peak."""
PRIOR_WEIGHT = 0.03
"""The weight of a constant's logarithm moving by 1 against a run's: one run alone cannot tell the two apart."""

STEP = 1e-3
"""The step of a derivative, as a share of a constant's logarithm, since a simulated step is not smooth below that."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """``gpu`` with constants of its own, and by how much it still misses each run: predicted / measured - 1."""

    gpu: Gpu
    errors: tuple[float, ...]


def anchor(gpu: Gpu, results: Sequence[Result]) -> Anchored:
    """``gpu`` fitted to the steps of ``results``, least squares of the errors' logarithms.

    Its range narrows to that of an anchored GPU if none is missed by more than that. Raises ``ValueError`` for a result
    that did not run on a GPU or ran on another, or whose link or disk, not the GPU, would be fitted.
    """
    runs = [_run(result, gpu) for result in results]
    products = {"fp32_products" if sizes.precision(spec) == "fp32" else "fp16_products" for spec, _ in runs}
    if len(products) > 1:
        raise ValueError("`--anchor` needs runs of one precision, but got 16 bits and 32; leave those of one out")
    fitted = _fitted(gpu, (products.pop(), "kernel"), runs)
    errors = tuple(math.exp(miss) - 1 for miss in _misses(fitted, runs))
    close = max(map(abs, errors)) <= engine.errors("anchored")["throughput"]
    return Anchored(dataclasses.replace(fitted, errors="anchored") if close else fitted, errors)


def _run(result: Result, gpu: Gpu) -> tuple[RunSpec, float]:
    spec, seconds = result.spec, result.step_seconds
    if result.outcome is not Outcome.OK or not seconds or not spec.device.startswith("cuda"):
        raise ValueError(
            f"`--anchor` needs a finished run on a GPU, but {spec.label} is {result.outcome} on {spec.device}; "
            "run one there"
        )
    if TIERS[spec.tier].is_file:
        raise ValueError(f"`--anchor` needs a run without a disk, but {spec.label} has one; run it with tier=pinned")
    numbered = re.findall(r"\w*\d\w*", gpu.name.lower())[:1]  # the H100 of NVIDIA H100 80GB HBM3, which is an H100 SXM
    others = [name for name in devices(result) if name and not {*numbered} <= {*re.findall(r"\w+", name.lower())}]
    if others:
        raise ValueError(f"`--anchor` needs a run on {gpu.name}, but {spec.label} ran on {others[0]}; name that GPU")
    return spec, seconds


def _with(gpu: Gpu, names: Sequence[str], logarithms: Sequence[float]) -> Gpu:
    values = {name: math.exp(value) for name, value in zip(names, logarithms, strict=True)}
    return dataclasses.replace(gpu, **values)  # type: ignore[arg-type]


def _misses(gpu: Gpu, runs: Sequence[tuple[RunSpec, float]]) -> list[float]:
    return [math.log(engine.predict(spec, gpu).step_seconds / seconds) for spec, seconds in runs]


def _fitted(gpu: Gpu, names: Sequence[str], runs: Sequence[tuple[RunSpec, float]]) -> Gpu:
    """``gpu`` with the constants ``names`` of the least squares, with a weak pull to those that it has."""
    low, high = np.log([BOUNDS[name] for name in names]).T
    start = np.clip(np.log([getattr(gpu, name) or BOUNDS[name][0] for name in names]), low, high)

    def residuals(logarithms: Any) -> Any:
        return [*_misses(_with(gpu, names, logarithms), runs), *(PRIOR_WEIGHT * (logarithms - start))]

    solved = least_squares(residuals, start, bounds=(low, high), diff_step=STEP)
    return _with(gpu, names, solved.x)
