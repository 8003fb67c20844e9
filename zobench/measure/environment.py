"""The machine and the software that a result comes from: JSON types, no host name, no user name, no path."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from zobench.machine.files import contents
from zobench.machine.memory import machine_bytes, total_host_bytes
from zobench.machine.nvml import Nvml, full_uuid
from zobench.machine.processes import python_path
from zobench.measure.threads import available_cores
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.version import __version__

CPU_FLAGS = {
    "avx2": "avx2",
    "avx512": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx": "amx_tile",
}
"""Name here: name in /proc/cpuinfo. They decide how fast a CPU multiplies matrices of each dtype."""
PACKAGES = ("torch", "transformers", "numpy", "safetensors", "triton", "nvidia-ml-py")


def environment(device: str, module: Any | None = None) -> Facts:
    """Everything about the machine and the software that a number may depend on. ``device``: "cpu" or "cuda:N"."""
    import torch

    from zobench.machine import accelerator

    nvml = Nvml(module)
    return Facts.from_dict({
        **fingerprint_without_torch(nvml).to_dict(),
        "device": device,
        "gpu": _gpu_details(nvml, cuda_uuid(device)),
        "cuda": accelerator.platform() if device.startswith("cuda") else None,
        "threads": torch.get_num_threads(),
        "cpu_flags": cpu_flags(),
        "cores_available": available_cores(),
        "memory_limit_bytes": total_host_bytes(),
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or None,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions(),
        "source": source(Path(__file__).resolve().parents[2]),
        "notes": nvml.notes,
    })  # fmt: skip


def fingerprint_without_torch(nvml: Nvml | None = None) -> Facts:
    """``machine`` (a short id), ``description`` (for people), ``hardware`` and ``software`` (what the id is made of).

    A result is kept for the machine that it was measured on: another library version is another machine, so that an
    upgrade measures anew instead of mixing. Both planning (no torch) and running call this, so both get the same id.
    """
    nvml = nvml or Nvml()
    gpus = [_gpu(nvml, handle) for handle in nvml.handles()] or torch_gpus()
    hardware = {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": nominal_gib(machine_bytes()),
        "gpus": gpus,
    }
    software = {"python": ".".join(platform.python_version_tuple()[:2]), "zobench": __version__}
    software |= {name: (_installed(name) or "").partition("+")[0] for name in ("torch", "transformers")}
    digest = hashlib.sha256(json.dumps([hardware, software], sort_keys=True).encode()).hexdigest()[:6]
    return Facts(
        machine=f"{short_name(hardware)}-{hardware['cores']}c-{digest}", description=describe(hardware),
        hardware=hardware, software=software,
    )  # fmt: skip


def failed(spec: RunSpec, outcome: Outcome, reason: str, traceback: str = "") -> Result:
    """The result of a cell that was not measured: its outcome, the reason, and the machine."""
    facts = fingerprint_without_torch()
    return Result(spec=spec, outcome=outcome, reason=reason, environment=facts, traceback=traceback)


def describe(hardware: dict[str, Any]) -> str:
    """``AMD EPYC 7763, 8 cores, 32 GiB`` or ``2x NVIDIA H200 141 GB, 16 cores, 128 GiB``."""
    gpus = hardware["gpus"]
    if gpus:
        size = f" {gpus[0]['memory_mib'] * 2**20 / 1e9:.0f} GB" if gpus[0]["memory_mib"] else ""
        first = f"{len(gpus)}x " * (len(gpus) > 1) + f"{gpus[0]['name']}{size}"
    else:
        first = re.sub(r"\(R\)|\(TM\)| CPU| Processor|\d+-Core| @.*", "", hardware["cpu"]).strip()
    memory = f", {hardware['memory_gib']} GiB" if hardware["memory_gib"] else ""
    return f"{' '.join(first.split())}, {hardware['cores']} cores{memory}"


def short_name(hardware: dict[str, Any]) -> str:
    """The GPU's or CPU's name as a part of a folder name: ``h200``, ``2x-a100-sxm4-80gb``, ``epyc-7763``."""
    first = describe({**hardware, "gpus": [{**gpu, "memory_mib": None} for gpu in hardware["gpus"]]}).split(",")[0]
    kept = [word for word in re.split(r"[^a-z0-9]+", first.lower()) if word not in ("nvidia", "amd", "intel", "")]
    return "-".join(kept) or "cpu"


def cpu_flags() -> list[str]:
    """Which of the interesting instruction sets this CPU has."""
    have = set(_cpuinfo("flags").split())
    return [name for name, flag in CPU_FLAGS.items() if flag in have]


def nominal_gib(nbytes: int | None) -> int | None:
    """The size printed on the memory: the kernel shows a few per cent less, and how much changes with its version.

    Rounded to the nearest of 4, 5, 6, 7 times a power of two.
    """
    if nbytes is None:
        return None
    gib = nbytes / 2**30
    unit = 2.0 ** max(0, int(gib).bit_length() - 3)
    return round(gib / unit) * int(unit)


def cuda_uuid(device: str) -> str | None:
    """The UUID of CUDA device ``device`` as NVML spells it; None for the CPU."""
    if not device.startswith("cuda"):
        return None
    from zobench.machine.accelerator import Accelerator

    return full_uuid(Accelerator(device).uuid())


def versions() -> dict[str, str | None]:
    """Versions of Python, zobench and the packages that decide speed; None if not installed. Imports none of them."""
    installed: dict[str, str | None] = {"python": platform.python_version(), "zobench": __version__}
    installed |= {name: _installed(name) for name in PACKAGES}
    if (loaded := sys.modules.get("torch")) is not None:
        installed["torch"] = str(loaded.__version__)  # with the build ("+cu130"), which the metadata may lack
    return installed


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def source(root: Path) -> dict[str, Any] | None:
    """``commit`` and ``dirty`` of a git checkout of zobench at ``root``, or of what pip installed there from a git
    repository; None if that is not known."""
    pyproject = root / "pyproject.toml"
    if not (root / ".git").exists() or not pyproject.is_file():
        return _installed_source(root)
    if tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {}).get("name") != "zobench":
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", "zobench", "pyproject.toml")  # results/ is always changing
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _installed_source(root: Path) -> dict[str, Any] | None:
    """The commit by ``direct_url.json`` (PEP 610), which pip writes where it installed from a repository."""
    try:
        package = metadata.distribution("zobench")
    except metadata.PackageNotFoundError:
        return None
    if Path(str(package.locate_file("zobench"))).resolve() != root / "zobench":
        return None
    commit = json.loads(package.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id")
    return None if commit is None else {"commit": commit, "dirty": False}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None  # no git: the commit is unknown, which the result says as None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpuinfo(key: str) -> str:
    line = re.search(rf"^{key}\s*:\s*(.*)$", contents("/proc/cpuinfo").decode(), re.MULTILINE)
    return line[1].strip() if line else ""


@functools.cache
def torch_gpus() -> list[dict[str, Any]]:
    """The GPUs as torch knows them, for a machine whose NVML does not answer: all of them, whatever is visible here.

    Asked in a process of its own, once: this one may have to do without torch, or with a part of the GPUs.
    """
    others = ("/dev/dxg", "/dev/kfd")  # Linux on Windows, and AMD's GPUs
    if not (glob.glob("/dev/nvidia[0-9]*") or any(map(os.path.exists, others))):
        return []
    shown = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    shown["PYTHONPATH"] = python_path()
    command = [sys.executable, "-P", "-c", _TORCH_GPUS]
    done = subprocess.run(command, env=shown, capture_output=True, text=True, check=False)
    return list(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else []


_TORCH_GPUS = """
import json
from zobench.machine import accelerator
gpus = [device.properties() for device in accelerator.devices()]
print(json.dumps([{"name": gpu.name, "memory_mib": gpu.total_memory // 2**20} for gpu in gpus]))
"""


def _gpu(nvml: Nvml, handle: Any) -> dict[str, Any]:
    memory = nvml.ask("memory", "nvmlDeviceGetMemoryInfo", handle)
    name = nvml.ask("name", "nvmlDeviceGetName", handle)
    return {"name": str(name or "GPU"), "memory_mib": None if memory is None else memory.total // 2**20}


def _gpu_details(nvml: Nvml, uuid: str | None) -> dict[str, Any] | None:
    if uuid is None:
        return None
    handle = nvml.handle(uuid)
    if handle is None:
        return {"uuid": uuid}
    return {
        **_gpu(nvml, handle),
        "uuid": uuid,
        "driver": nvml.ask("driver version", "nvmlSystemGetDriverVersion"),
        "pcie_generation": nvml.ask("PCIe generation", "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": nvml.ask("PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.ask("PCIe width", "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.ask("PCIe width", "nvmlDeviceGetMaxPcieLinkWidth", handle),
    }
