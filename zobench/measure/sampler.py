"""The sampler: a small process of its own that reads NVML and /proc while another process runs.

In its own process, because a thread would wait for the interpreter lock of the very code it measures. It imports no
torch, keeps its files open, and ends when its parent does.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from zobench.machine.memory import status_bytes
from zobench.machine.nvml import Nvml
from zobench.machine.processes import busy_seconds, python_path, usable_cores
from zobench.measure.samples import FIELDS, Samples, watched_pid

COST_LIMIT = 0.005
"""CPU seconds per second the sampler may use: where NVML is slow, it samples less often instead of costing more."""
HOST_INTERVAL = 0.1
"""Seconds between samples without a GPU. One sample takes about 0.3 ms of CPU, so this is 0.3 % of one core."""
MARK, STOP = b"mark\n", b"stop\n"
NAN = float("nan")
PATIENCE = 20.0
"""Seconds to wait for the sampler to start or to answer: a driver in trouble can hold an NVML call for long."""


class Sampler:
    """Samples process ``pid`` and, if ``device`` (a GPU's UUID) is given, that GPU. Use ``with``, or start and stop.

    Best started before the watched process makes its CUDA context: in a container, where NVML may show other pids than
    the process has, the context that appears later is then known to be its own.
    ``interval``: seconds between samples; by default 0.05 with a GPU and 0.1 without.
    """

    def __init__(self, pid: int | None = None, device: str | None = None, interval: float | None = None) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.device = device
        self.interval = interval if interval is not None else (0.05 if device else HOST_INTERVAL)
        self.samples = Samples(pid=self.pid)
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble = ""

    def start(self) -> None:
        """Returns once the first sample is taken."""
        command = [sys.executable, "-P", "-m", "zobench.measure.sampler"]  # -P: a folder named zobench here is not us
        order = {"pid": self.pid, "interval": self.interval, "device": self.device}
        order["context_at_start"] = self.pid == os.getpid() and _has_context()
        self._process = subprocess.Popen(
            [*command, json.dumps(order)], bufsize=0, env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if not self._hears(b"ready\n"):
            self._trouble = f"sampler: no first sample within {PATIENCE:.0f} s"

    def mark(self) -> None:
        """Takes a sample now, and returns once it is taken, or lost with its sampler."""
        process = self._process
        if process is None or self._trouble:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # stop() says that it was lost
            process.stdin.write(MARK)
            self._hears(b"marked\n")

    def _hears(self, word: bytes) -> bool:
        """Waits for ``word``, whatever a user's ``sitecustomize`` prints before; False if none comes within PATIENCE
        from a sampler that is not lost."""
        assert self._process is not None
        pipe, line = self._process.stdout, b"nothing yet"
        assert pipe is not None
        while line not in (word, b"") and select.select([pipe], [], [], PATIENCE)[0]:
            line = pipe.readline()
        return line in (word, b"")

    def stop(self) -> Samples:
        """Ends the sampler and returns what it saw; a sampler that was lost gives empty series and a note."""
        process, self._process = self._process, None
        if process is None:
            return self.samples
        if self._trouble:
            process.kill()
        try:
            output, errors = process.communicate(STOP, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            self._trouble = self._trouble or f"sampler: no answer within {PATIENCE:.0f} s"
        self.samples = self._received(output, errors, process.returncode)
        return self.samples

    def _received(self, output: bytes, errors: bytes, code: int) -> Samples:
        if code != 0 or self._trouble:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            trouble = self._trouble or f"sampler: ended early (exit code {code})"
            return Samples(pid=self.pid, notes=[": ".join([trouble, *last])])
        received = json.loads(output.splitlines()[-1])  # before it, an answer to a mark that nobody waited for
        presence = [(t, pids) for t, pids in received.pop("presence")]
        return Samples(pid=self.pid, presence=presence, **received)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _has_context() -> bool:
    """Whether this process may have a CUDA context already."""
    if "torch" not in sys.modules:
        return False
    from zobench.machine import accelerator

    return accelerator.is_initialised()


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
        self._cores = usable_cores(pid)

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
            "machine_busy_seconds": busy_seconds(_contents(self._machine), self._cores),
            "energy_joules": self._energy.read(),
        }

    def _cpu_seconds(self, stat: bytes) -> float | None:
        fields = stat[stat.rfind(b")") + 1 :].split()  # the name before it may hold spaces
        return (int(fields[11]) + int(fields[12])) / self._tick if len(fields) > 12 else None

    def _swapped(self, vmstat: bytes) -> float | None:
        counts = [vmstat.find(key) for key in (b"\npswpin ", b"\npswpout ")]
        if min(counts) < 0:
            return None
        return sum(int(vmstat[at + 1 : at + 40].split(None, 2)[1]) for at in counts) * self._page


def _contents(file: int | None) -> bytes:
    try:
        return b"" if file is None else os.pread(file, 1 << 17, 0)  # a row of /proc/stat for each of 1,000 cores
    except ProcessLookupError:  # the process has ended; the sample then holds None
        return b""


class Recorder:
    """Collects samples in memory; :meth:`result` is what is sent to the parent."""

    def __init__(self, host: HostReader, device: DeviceReader | None) -> None:
        self.host, self.device = host, device
        self.columns = {name: array("d") for name in FIELDS}
        self.presence: list[tuple[float, list[int]]] = []

    def sample(self) -> None:
        now = time.monotonic()
        values: dict[str, float | None] = {"t": now, **self.host.read()}
        if self.device is not None:
            read, pids = self.device.read()
            values |= read
            if not self.presence or self.presence[-1][1] != pids:
                self.presence.append((now, pids))
        for name, column in self.columns.items():
            value = values.get(name)
            column.append(NAN if value is None else value)

    def result(self, overhead: float) -> dict[str, Any]:
        series = {name: [None if v != v else v for v in column] for name, column in self.columns.items()}
        report = {"series": series, "presence": self.presence, "overhead": overhead, "notes": self.host.notes}
        if (device := self.device) is None:
            return report
        notes = [*self.host.notes, *device.nvml.notes]
        start = {"pids_at_start": device.pids_at_start, "context_at_start": device.context_at_start}
        return {**report, **start, "notes": notes}


def main(pid: int, interval: float, device: str | None, context_at_start: bool) -> int:
    """Samples until the parent says stop or is gone. Exit code 0 only if the samples were sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group; the parent decides when to stop
    parent = os.getppid()
    recorder = Recorder(HostReader(pid), DeviceReader(device, pid, context_at_start) if device else None)
    if recorder.device is not None and recorder.device.handle is None:
        interval = max(interval, HOST_INTERVAL)  # nothing is there that changes faster
    recorder.sample()
    os.write(1, b"ready\n")
    started, cpu_started = time.monotonic(), time.process_time()
    pause = interval
    while True:
        request = os.read(0, 16) if select.select([0], [], [], pause)[0] else None
        if request is not None and request.endswith(STOP):
            break
        if request == b"" or os.getppid() != parent:  # a child of the parent may hold the pipe open after it died
            return 1
        before = time.process_time()
        recorder.sample()
        pause = max(interval, (time.process_time() - before) / COST_LIMIT)
        if request:
            os.write(1, b"marked\n")
    recorder.sample()  # the last sample closes the counters
    wall = max(time.monotonic() - started, 1e-9)
    print(json.dumps(recorder.result((time.process_time() - cpu_started) / wall)))
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
