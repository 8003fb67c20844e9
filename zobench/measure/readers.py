"""One sample each of a GPU (through NVML) and of a process and its machine (through /proc)."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from zobench.machine.memory import status_bytes
from zobench.machine.nvml import Nvml
from zobench.measure.samples import watched_pid


class DeviceReader:
    """Readings of one GPU, in base units. ``module`` replaces ``pynvml`` in tests."""

    def __init__(self, uuid: str, pid: int, context_at_start: bool = False, module: Any | None = None) -> None:
        self.pid = pid
        self.context_at_start = context_at_start
        self.nvml = Nvml(module)
        self.handle = self.nvml.handle(uuid)
        self.pids_at_start = list(self.processes() or {})
        self._seen: list[int] = []

    def processes(self) -> dict[int, int | None] | None:
        """Bytes used by each compute process, by pid; None where a process's bytes are not shown."""
        running = self._ask("processes", "nvmlDeviceGetComputeRunningProcesses")
        return None if running is None else {int(each.pid): each.usedGpuMemory for each in running}

    def read(self) -> tuple[dict[str, float | None], list[int]]:
        """One sample, and the pids of the compute processes."""
        memory = self._ask("memory", "nvmlDeviceGetMemoryInfo")
        values = {
            "device_used_bytes": None if memory is None else memory.used,
            "power_watts": self._scaled(1e-3, "power", "nvmlDeviceGetPowerUsage"),
            "energy_joules": self._scaled(1e-3, "energy", "nvmlDeviceGetTotalEnergyConsumption"),
            "sm_clock_hz": self._scaled(1e6, "SM clock", "nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
            "memory_clock_hz": self._scaled(1e6, "memory clock", "nvmlDeviceGetClockInfo", 2),  # NVML_CLOCK_MEM
            "temperature_c": self._scaled(1, "temperature", "nvmlDeviceGetTemperature", 0),  # NVML_TEMPERATURE_GPU
            "throttle_bits": self._scaled(1, "throttle reasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        }
        processes = self.processes() or {}
        self._seen += [pid for pid in processes if pid not in self._seen]
        watched = watched_pid(self.pid, self.pids_at_start, self._seen, self.context_at_start)
        values["process_used_bytes"] = processes.get(watched) if watched is not None else None
        if watched in processes and processes[watched] is None:
            self.nvml.note("per-process memory", "N/A")
        return values, list(processes)

    def _ask(self, what: str, function: str, *arguments: Any) -> Any | None:
        return None if self.handle is None else self.nvml.ask(what, function, self.handle, *arguments)

    def _scaled(self, factor: float, what: str, function: str, *arguments: Any) -> float | None:
        value = self._ask(what, function, *arguments)
        return None if value is None else value * factor


class PackageEnergy:
    """Joules that this machine's CPU packages have used since the first reading: RAPL's counters, which need rights to
    be read and, on most virtual machines, do not exist. ``notes`` say why there is none."""

    def __init__(self, powercap: str = "/sys/class/powercap") -> None:
        self.notes: list[str] = []
        self._files: list[int] = []
        self._ranges: list[int] = []
        for name in sorted(glob.glob(f"{powercap}/intel-rapl:[0-9]*")):  # AMD's are called so too
            try:
                if not Path(name, "name").read_text().startswith("package"):
                    continue  # a part of a package, or "psys", a laptop as a whole, its package included
                self._ranges.append(int(Path(name, "max_energy_range_uj").read_text()))
                self._files.append(os.open(f"{name}/energy_uj", os.O_RDONLY))
            except OSError as error:
                self.notes.append(f"CPU energy: not readable ({error.strerror}: {name}/energy_uj)")
                self._files = []
                break
        self._last = [self._count(file) for file in self._files]
        self._used = 0

    @staticmethod
    def _count(file: int) -> int:
        return int(os.pread(file, 64, 0))

    def read(self) -> float | None:
        """Joules of all packages together; None where they cannot be read. A counter that began anew is followed."""
        if not self._files:
            return None
        now = [self._count(file) for file in self._files]
        for before, after, whole in zip(self._last, now, self._ranges, strict=False):
            self._used += after - before if after >= before else after + whole - before
        self._last = now
        return self._used / 1e6


class HostReader:
    """Readings of one process and of the machine's swap from /proc, through files opened once, and of its packages'
    energy."""

    def __init__(self, pid: int, proc: str = "/proc", powercap: str = "/sys/class/powercap") -> None:
        self._energy = PackageEnergy(powercap)
        self.notes: list[str] = list(self._energy.notes)
        names = (f"{pid}/status", f"{pid}/stat", "vmstat", "stat")
        self._status, self._stat, self._vmstat, self._machine = [self._open(f"{proc}/{name}") for name in names]
        self._page, self._tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

    def _open(self, path: str) -> int | None:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            self.notes.append(f"host {path.rsplit('/', 1)[1]}: not available ({error.strerror})")
            return None

    def read(self) -> dict[str, float | None]:
        """One sample; None once the process is gone."""
        status = _contents(self._status)
        return {
            "rss_bytes": status_bytes(status, b"VmRSS:"),
            "cpu_seconds": self._cpu_seconds(_contents(self._stat)),
            "swapped_bytes": self._swapped(_contents(self._vmstat)),
            "machine_busy_seconds": self._busy_seconds(_contents(self._machine)),
            "energy_joules": self._energy.read(),
        }

    def _cpu_seconds(self, stat: bytes) -> float | None:
        fields = stat[stat.rfind(b")") + 1 :].split()  # the name before it may hold spaces
        return (int(fields[11]) + int(fields[12])) / self._tick if len(fields) > 12 else None

    def _busy_seconds(self, stat: bytes) -> float | None:
        """Seconds that all cores together were busy: user, nice, system, irq, softirq; not idle or waiting."""
        fields = stat.split(b"\n", 1)[0].split()
        return sum(int(fields[column]) for column in (1, 2, 3, 6, 7)) / self._tick if len(fields) > 7 else None

    def _swapped(self, vmstat: bytes) -> float | None:
        counts = [vmstat.find(key) for key in (b"\npswpin ", b"\npswpout ")]
        if min(counts) < 0:
            return None
        return sum(int(vmstat[at + 1 : at + 40].split(None, 2)[1]) for at in counts) * self._page


def _contents(file: int | None) -> bytes:
    try:
        return b"" if file is None else os.pread(file, 16384, 0)
    except ProcessLookupError:  # the process has ended; the sample then holds None
        return b""
