"""The page of `zobench doctor`: the hardware and software of this machine, missing parts with their remedies, and the
measured ceilings."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, NamedTuple

from zobench.machine import memory
from zobench.machine.nvml import Nvml
from zobench.measure import calibrate, environment

OPTIONAL = {
    "matplotlib": ("figures", "zobench[report]"),
    "jinja2": ("the HTML report", "zobench[report]"),
    "pyarrow": ("results as Parquet", "zobench[report]"),
    "peft": ("LoRA, prefixes and prompts", "zobench[tasks]"),
    "datasets": ("tasks from the hub", "zobench[tasks]"),
    "gguf": ("models in GGUF files", "zobench[gguf]"),
    "accelerate": ("transformers' Trainer", "zobench[hf]"),
    "tensorboard": ("--log tensorboard", "zobench[log]"),
    "submitit": ("sweeps on Slurm and in the background", "zobench[cluster]"),
}
"""Package: (what it is for, what to install); each package of each extra."""
LOW_DISK = 10e9
"""Bytes: less than this holds no disk tier of the smallest models' sweep."""


class Line(NamedTuple):
    """One line of the report. ``status``: ``ok``, ``missing`` (a remedy is in ``value``) or ``info``."""

    section: str
    item: str
    value: str
    status: str


def report(
    device: str, disk_dir: str | os.PathLike[str] | None = None, seconds: float = 5.0, module: Any | None = None
) -> list[Line]:
    """All lines, in order. ``device``: "cpu" or "cuda:N". ``disk_dir``: the disk tier's folder. Takes ``seconds``."""
    folder = memory.disk_folder(disk_dir)
    return [
        *_machine(device, folder),
        *_nvml(Nvml(module)),
        *_packages(),
        *_rates(calibrate.calibrate(device, seconds, folder)),
    ]


def _machine(device: str, folder: str | os.PathLike[str]) -> list[Line]:
    from zobench.machine import accelerator

    facts = environment.environment(device)
    versions = facts.versions or {}
    library = versions["transformers"]
    transformers = (library, "ok") if library else ("not installed: pip install transformers", "missing")
    cuda, built, other = accelerator.count() > 0, accelerator.platform(), accelerator.refused()
    remedy = "install an NVIDIA driver" if built else "install a torch built for CUDA, from pytorch.org"
    remedy = f"{other} is not used" if other else remedy
    available, total = memory.available_host_bytes(), memory.total_host_bytes()
    free = memory.free_disk_bytes(folder)
    advice = "" if free >= LOW_DISK else "; the disk tier needs room for the weights: name a folder on another disk"
    ram = "not known on this system" if available is None or total is None else f"{_gb(available)} of {_gb(total)}"
    peak = "yes" if memory.reset_peak() else "no: peaks include start-up; run outside a restricted container"
    return [
        Line("machine", "id", facts.machine, "info"),
        Line("machine", "hardware", facts.description, "info"),
        Line("machine", "CPU flags", " ".join(facts.cpu_flags or ()) or "none of interest", "info"),
        Line("machine", "memory available", ram, "info" if available is None else "ok"),
        Line("machine", "disk free", f"{_gb(free)}{advice}", "ok" if free >= LOW_DISK else "missing"),
        Line("machine", "peak memory can be reset", peak, "ok" if peak == "yes" else "missing"),
        Line("software", "python", str(versions["python"]), "ok"),
        Line("software", "torch", f"{versions['torch']}, {facts.threads} thread{'s' * (facts.threads != 1)}", "ok"),
        Line("software", "transformers", *transformers),
        Line("software", "CUDA", f"{built}" if cuda else f"no device: {remedy}", "ok" if cuda else "missing"),
    ]


def _nvml(nvml: Nvml) -> list[Line]:
    if not nvml.available:
        value = f"{nvml.notes[0].removeprefix('NVML: ')}; power, clocks and device-wide memory are then None"
        return [Line("software", "NVML", value, "missing")]
    driver = nvml.ask("driver version", "nvmlSystemGetDriverVersion")
    return [Line("software", "NVML", f"driver {driver}, {len(nvml.handles())} GPU", "ok")]


def _packages() -> list[Line]:
    return [
        Line("optional", name, "installed", "ok")
        if importlib.util.find_spec(name)
        else Line("optional", name, f"needed for {purpose}: pip install '{remedy}'", "missing")
        for name, (purpose, remedy) in OPTIONAL.items()
    ]


def _rates(rates: dict[str, Any]) -> list[Line]:
    products, noise = rates["matmul_flops_per_second"], rates["noise_elements_per_second"]
    names = ("copy", "link_up", "link_down", "link_both", "between_ranks", "disk_read", "disk_write", "disk_both")
    bytes_per_second = {name.replace("_", " "): rates[f"{name}_bytes_per_second"] for name in names}
    rows = [
        *((f"matrix product {dtype}", f"{rate / 1e12:.3g} TFLOP/s") for dtype, rate in products.items()),
        *((f"noise {name}", f"{rate / 1e9:.3g} G elements/s") for name, rate in noise.items()),
        *((name, f"{rate / 1e9:.3g} GB/s") for name, rate in bytes_per_second.items() if rate is not None),
        *(note.split(": ", 1) for note in rates["notes"]),
    ]
    return [Line("rates", item, value, "info") for item, value in rows]


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"
