"""Memory facts of this process and this machine, in bytes; None where the system does not say."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zobench.machine.files import contents
from zobench.machine.processes import cgroup_folders

NO_LIMIT = 2**60
"""cgroup v1 writes an absurdly large number for "no limit"."""


def vm_rss(pid: int | str = "self") -> int | None:
    """Resident bytes of a process now; None if it is gone or the system has no /proc."""
    return status_bytes(contents(f"/proc/{pid}/status"), b"VmRSS:")


def vm_hwm(pid: int | str = "self") -> int | None:
    """Peak resident bytes of a process since its start or the last :func:`reset_peak`."""
    peak = status_bytes(contents(f"/proc/{pid}/status"), b"VmHWM:")
    if peak is None and pid == "self":
        import resource  # not on Windows; there the import error says so

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak


def unique_bytes() -> int | None:
    """Resident bytes now that no other process shares: what would be free if this one ended."""
    text = contents("/proc/self/smaps_rollup")
    private = [status_bytes(text, key) for key in (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:")]
    return None if private[0] is None else sum(size or 0 for size in private)


def reset_peak(pid: int | str = "self") -> bool:
    """Makes a process's :func:`vm_hwm` start again from what is resident now; False where that is not permitted."""
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def total_host_bytes(root: str = "") -> int | None:
    """Memory of the machine, or the limit of this process's cgroup if that is less."""
    limits = [limit for limit, _ in _cgroups(root)]
    total = machine_bytes(root)
    return min([*limits, total]) if total is not None else None


def machine_bytes(root: str = "") -> int | None:
    """Memory of the machine, whatever a container may use of it."""
    total = status_bytes(contents(f"{root}/proc/meminfo"), b"MemTotal:")
    if total is None and not root and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def available_host_bytes(root: str = "") -> int | None:
    """Bytes this process can still use without swapping: MemAvailable, or what its cgroups leave if that is less.

    Tools that read only the host's numbers promise a container memory it cannot have. ``root`` replaces / in tests.
    """
    available = status_bytes(contents(f"{root}/proc/meminfo"), b"MemAvailable:")
    if available is None:
        return None
    return min([available, *(max(0, limit - used) for limit, used in _cgroups(root))])


def disk_folder(named: str | os.PathLike[str] | None) -> Path:
    """The folder of the disk tier: ``named``, else that of ``ZOBENCH_DISK_DIR``, else the system's temporary one."""
    return Path(named or os.environ.get("ZOBENCH_DISK_DIR") or tempfile.gettempdir())


def free_disk_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes a normal user may still write to the file system of ``path``, which need not exist yet."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def is_in_memory(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` lies on a file system that is host memory (tmpfs, ramfs); False where that is not known."""
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in contents("/proc/mounts").decode(errors="replace").splitlines():
        _, mount, name, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, name
    return kind in ("tmpfs", "ramfs")


def oom_kills() -> int:
    """How many processes the kernel has killed for memory so far; 0 where it does not count them."""
    rows = (row.split() for row in contents("/proc/vmstat").splitlines())
    return sum(int(row[1]) for row in rows if row[:1] == [b"oom_kill"])


def status_bytes(text: bytes, key: bytes) -> int | None:
    """The value of a line ``Key:   123 kB`` of a /proc file, in bytes."""
    at = text.find(key)
    return int(text[at + len(key) : at + len(key) + 40].split(None, 1)[0]) * 1024 if at >= 0 else None


def _cgroups(root: str) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of each cgroup around this process that has a limit."""
    for folder, is_first in cgroup_folders(root, "memory"):
        limit_name, use_name = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
        limit = _number(contents(f"{folder}/memory.{limit_name}"))
        used = _number(contents(f"{folder}/memory.{use_name}"))
        if limit is not None and used is not None and limit < NO_LIMIT:
            yield limit, used - _file_cache(contents(f"{folder}/memory.stat"), "total_" if is_first else "")


def _file_cache(stat: bytes, prefix: str) -> int:
    """Page cache the kernel drops before it runs out; tmpfs pages are not in these counts."""
    rows = (line.split() for line in stat.decode().splitlines())
    wanted = (f"{prefix}inactive_file", f"{prefix}active_file")
    return sum(int(row[1]) for row in rows if row[0] in wanted)


def _number(text: bytes) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


_NOT_RESET = "host peak: includes the time before the run (the system does not let it be reset)"


class PeakMemory:
    """Peak memory of what runs between :meth:`baseline` and :meth:`peaks` on ``device`` ("cpu" or "cuda...").

    On the CPU the "device memory" is the peak of the resident set above the baseline. Call :meth:`baseline` after the
    imports. ``pid``: another process, whose allocator on a GPU and whose lazily loaded libraries are its own affair.
    """

    def __init__(self, device: str, pid: int | None = None) -> None:
        self.device = device
        self._pid: int | str = "self" if pid is None else pid
        self.notes: list[str] = []
        self._baseline: int | None = None
        self._begun = False

    def baseline(self) -> None:
        """Forgets the peaks so far: :meth:`peaks` counts from what is in use now."""
        if self._pid == "self":
            self._settle()
        self.notes = [] if reset_peak(self._pid) else [_NOT_RESET]
        self._begun, self._baseline = True, vm_rss(self._pid) or vm_hwm(self._pid)

    def _settle(self) -> None:
        """Loads what a product needs, so that it counts as baseline, and forgets the device's peaks."""
        import torch

        square = torch.ones(64, 64, device=self.device)
        (square @ square).sum().item()
        del square
        if self.device.startswith("cuda"):
            from zobench.machine.accelerator import Accelerator

            Accelerator(self.device).synchronize()
            Accelerator(self.device).reset_peaks()

    def peaks(self) -> dict[str, int | None]:
        """Bytes by name, in the terms of ``Result.memory``; None of a process that is gone."""
        assert self._begun, "call baseline() before the run"
        host, base = vm_hwm(self._pid), self._baseline
        values: dict[str, int | None] = {"host_rss_peak_bytes": host, "host_rss_baseline_bytes": base}
        if not self.device.startswith("cuda"):
            return {"device_peak_bytes": None if host is None or base is None else max(0, host - base), **values}
        if self._pid != "self":
            return values
        from zobench.machine.accelerator import Accelerator

        device = Accelerator(self.device)
        peaks = {"device_peak_bytes": device.peak_bytes(), "device_reserved_peak_bytes": device.reserved_peak_bytes()}
        return {**peaks, **values}
