"""The file of a device from what was measured on it: a GPU's beside its data sheet, or a CPU's, which has none."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from typing import Any

from zobench.cost.hardware import LANE_BYTES, PEAKS, SHARES, Gpu, load, plain
from zobench.machine.memory import total_host_bytes
from zobench.measure.threads import available_cores

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
    """Likewise of a CPU called ``name`` with ``memory`` bytes: its rates are its peaks."""
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
    """What operators reach, in 32 bits and in the 16-bit type ``narrow``."""
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
