"""Samples: what the sampler saw, its summaries, and whether something disturbed the measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

FIELDS = (
    "t", "device_used_bytes", "process_used_bytes", "power_watts", "energy_joules", "sm_clock_hz", "memory_clock_hz",
    "temperature_c", "throttle_bits", "rss_bytes", "cpu_seconds", "swapped_bytes", "machine_busy_seconds",
)  # fmt: skip
"""The series of :class:`Samples`, one value per sample each. ``t``: seconds of ``time.monotonic()``, one clock
for all processes of a machine. ``energy_joules``, ``cpu_seconds``, ``swapped_bytes`` and
``machine_busy_seconds`` are counters that only grow."""

THROTTLE = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
"""NVML's clock event bits. A GPU at its power cap or idle is normal; the ones below are not."""
DISTURBING = ("hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake")
DISTURBING_CORES = 0.2
"""Cores in use by others from which on a measurement on the CPU says so."""
SWAP_TOLERANCE = 16 * 2**20
"""Bytes: other programs' stray pages swap in now and then; a run that itself swaps moves far more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Raw series and summaries. None means not available here, and ``notes`` say why; it never means 0.

    ``presence``: [t, pids of the GPU's compute processes], one row whenever that set changed.
    ``pids_at_start``: those seen before the first sample; ``context_at_start``: whether the watched process may have
    had a CUDA context by then, so that one of them can be its own.
    ``overhead``: CPU seconds of the sampler per second of wall time.
    """

    pid: int
    series: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    presence: list[tuple[float, list[int]]] = field(default_factory=list)
    pids_at_start: list[int] = field(default_factory=list)
    context_at_start: bool = False
    overhead: float | None = None
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.series["t"])

    def window(self, start: float, end: float) -> Samples:
        """The samples with start <= t <= end, seconds of ``time.monotonic()``: for instance the measured steps only."""
        times = [t or 0.0 for t in self.series["t"]]
        keep = [index for index, t in enumerate(times) if start <= t <= end]
        before = [row for row in self.presence if row[0] < start][-1:]
        inside = [row for row in self.presence if start <= row[0] <= end]
        series = {name: [values[index] for index in keep] for name, values in self.series.items()}
        return replace(self, series=series, presence=before + inside)

    def energy_between(self, start: float, end: float) -> float | None:
        """Joules from ``start`` to ``end``, also between samples: the counter is taken to grow evenly from one to the
        next. None for no time, and where there are no two readings."""
        rows = [(t, used) for t, used in zip(self.series["t"], self.series["energy_joules"], strict=True)
                if t is not None and used is not None]  # fmt: skip
        if len(rows) < 2 or end <= start:
            return None
        import numpy as np

        times, joules = zip(*rows, strict=True)
        at_start, at_end = np.interp([start, end], times, joules)
        return float(at_end - at_start)

    @property
    def device_peak_bytes_device_wide(self) -> int | None:
        """The papers' peak memory: everything on the device, CUDA context included."""
        return whole(_largest(self.series["device_used_bytes"]))

    @property
    def device_peak_bytes_process(self) -> int | None:
        """The watched process alone, its CUDA context included."""
        return whole(_largest(self.series["process_used_bytes"]))

    @property
    def mean_power_watts(self) -> float | None:
        values = _readings(self.series["power_watts"])
        return sum(values) / len(values) if values else None

    @property
    def max_temperature_c(self) -> float | None:
        return _largest(self.series["temperature_c"])

    @property
    def throttle_reasons(self) -> list[str] | None:
        """Every reason seen for clocks below their maximum; an empty list if there was none."""
        values = _readings(self.series["throttle_bits"])
        bits = 0
        for value in values:
            bits |= int(value)
        return [name for bit, name in THROTTLE.items() if bits & bit] if values else None

    @property
    def swapped_bytes(self) -> int | None:
        """Bytes the whole machine swapped in or out."""
        return whole(_growth(self.series["swapped_bytes"]))

    @property
    def other_cpu_cores(self) -> float | None:
        """How many of the cores that the watched process may use others kept busy, on average."""
        busy, used = _growth(self.series["machine_busy_seconds"]), _growth(self.series["cpu_seconds"])
        times = _readings(self.series["t"])
        if busy is None or used is None or times[-1] <= times[0]:
            return None
        return max(0.0, busy - used) / (times[-1] - times[0])

    @property
    def own_cpu_cores(self) -> float | None:
        """Cores that the watched process kept busy, on average."""
        used, times = _growth(self.series["cpu_seconds"]), _readings(self.series["t"])
        return None if used is None or times[-1] <= times[0] else used / (times[-1] - times[0])

    @property
    def other_processes(self) -> list[int]:
        """Pids (as NVML shows them) of compute processes on the device other than the watched one."""
        seen = [pid for _, pids in self.presence for pid in pids]
        return sorted(set(seen) - {watched_pid(self.pid, self.pids_at_start, seen, self.context_at_start)})


def watched_pid(pid: int, at_start: Collection[int], seen: Sequence[int], context_at_start: bool) -> int | None:
    """Which of the NVML pids ``seen`` (in order) is process ``pid``.

    In a container NVML may show the host's pids. Then ours is the first that was not there at the start, or, if we
    had a CUDA context by then and none is new, one that was: which one does not change how many others there are.
    """
    if pid in seen:
        return pid
    new = [candidate for candidate in seen if candidate not in at_start]
    return next(iter(new or (seen if context_at_start else [])), None)


def crowded(cores: float | None) -> list[str]:
    """A warning if other processes kept so many ``cores`` busy that a measurement on the CPU must say so."""
    from zobench.result.record import DISTURBED  # not above: the sampler's process imports this module at each start

    if (cores or 0.0) <= DISTURBING_CORES:
        return []
    return [f"{DISTURBED}{cores:.1f} cores busy meanwhile; expect slower steps"]


def contamination(samples: Samples) -> str:
    """Why these samples are not of an undisturbed machine, or "" if nothing says so."""
    reasons = []
    if others := samples.other_processes:
        reasons.append(f"another process used the GPU (pid {', '.join(map(str, others))})")
    if slow := [name for name in samples.throttle_reasons or [] if name in DISTURBING]:
        reasons.append(f"the GPU lowered its clocks: {', '.join(slow)}")
    if (swapped := samples.swapped_bytes or 0) > SWAP_TOLERANCE:
        reasons.append(f"the machine swapped {swapped / 2**20:.0f} MiB")
    return "; ".join(reasons)


def _readings(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _largest(values: Iterable[float | None]) -> float | None:
    return max(_readings(values), default=None)


def _growth(counter: Iterable[float | None]) -> float | None:
    values = _readings(counter)
    return values[-1] - values[0] if len(values) > 1 else None


def whole(value: float | None) -> int | None:
    """A number of bytes without its fraction; None stays None."""
    return None if value is None else int(value)
