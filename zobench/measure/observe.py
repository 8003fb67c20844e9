"""Observer: everything that is watched while a cell runs: peaks of memory, power, clocks, and who else was there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zobench.machine.memory import PeakMemory
from zobench.measure.environment import cuda_uuid
from zobench.measure.sampler import Sampler
from zobench.measure.samples import Samples, contamination, whole
from zobench.result.record import DISTURBED

DISTURBING_CORES = 0.2
"""Cores in use by others from which on a measurement on the CPU says so."""

POINTS = 200
"""The most points of memory over time that are kept."""
_DIGITS = 3
"""Of their seconds: samples are 0.05 s apart or more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What was seen, in the terms of :class:`zobench.result.Result`. ``disturbed``: what disturbed the times, or ""."""

    memory: dict[str, int | None]
    power: dict[str, Any]
    trace: dict[str, list[float | None]]
    warnings: list[str]
    disturbed: str


class Observer:
    """Watches this process, or ``pid``, from its making until :meth:`stop`; ``interval``: seconds between two samples.

    ``alone`` False: other processes work for the same run, so how busy they keep the machine is no news.
    """

    def __init__(self, device: str, interval: float | None = None, alone: bool = True, pid: int | None = None) -> None:
        self._device, self._alone = device, alone
        self._sampler = Sampler(pid, device=cuda_uuid(device), interval=interval)
        self._sampler.start()
        self._marks: list[float] = []
        self._memory = PeakMemory(device, pid)
        self._memory.baseline()

    def baseline(self) -> None:
        """Forgets the peaks of the host's memory so far: what is in use now is the baseline."""
        self._memory.baseline()

    def mark(self) -> None:
        """Takes a sample just before the steps begin or just after they end: where a reading costs much, the next one
        may be seconds away, and what the device used meanwhile a guess."""
        began = time.monotonic()
        self._sampler.mark()
        self._marks += [began, time.monotonic()]

    def stop(self, window: tuple[float, float]) -> Observation:
        """Stops watching. ``window``: when the steps began and ended, by ``time.monotonic()``, whose power and
        disturbances are reported, from the samples at its ends too."""
        peaks = self._memory.peaks()
        seen = self._sampler.stop()
        steps = sorted((*window, *self._marks)) if window[1] > window[0] else window
        during = seen.window(steps[0], steps[-1])
        warnings = crowded(during.other_cpu_cores) if self._alone and self._device == "cpu" else []
        return Observation(
            memory={
                **peaks, "device_wide_peak_bytes": seen.device_peak_bytes_device_wide,
                "device_process_peak_bytes": seen.device_peak_bytes_process,
            },
            power=_power(seen, during, window), trace=memory_over_time(seen),
            warnings=[*warnings, *self._memory.notes], disturbed=contamination(during),
        )  # fmt: skip


def crowded(cores: float | None) -> list[str]:
    """A warning if other processes kept so many ``cores`` busy that a measurement on the CPU must say so."""
    if (cores or 0.0) <= DISTURBING_CORES:
        return []
    return [f"{DISTURBED}{cores:.1f} cores busy meanwhile; expect slower steps"]


def _power(seen: Samples, during: Samples, window: tuple[float, float]) -> dict[str, Any]:
    """Energy, power and clocks ``during`` the measured steps, and what the sampler could not see. A device's mean power
    is what its counter of energy grew by, where it has one: single readings are each a mean of the last second."""
    names = ("max_temperature_c", "throttle_reasons", "swapped_bytes", "other_cpu_cores", "own_cpu_cores")
    energy, power = seen.energy_between(*window), during.mean_power_watts
    return {
        "energy_joules": energy,
        "mean_power_watts": power if power is None or energy is None else energy / (window[1] - window[0]),
        **{name: getattr(during, name) for name in names},
        "samples": len(during),
        **_clocks(during),
        "sampler_overhead": seen.overhead,
        "notes": seen.notes,
    }


def _clocks(during: Samples) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for name in ("sm_clock_hz", "memory_clock_hz"):
        values = [value for value in during.series[name] if value is not None]
        result[f"median_{name}"] = statistics.median_high(values) if values else None
    return result


def memory_over_time(seen: Samples) -> dict[str, list[float | None]]:
    """``seconds`` since the first sample (to the millisecond), ``rss_bytes`` and, where NVML told, ``device_bytes``.

    ``device_bytes`` is the process's use where NVML gives it, else the whole device's; the result's
    ``device_process_peak_bytes`` is None in the second case. Empty if there were no samples.

    Thinned to at most 200 points: the first and the last sample, and of every stretch of equal length between them the
    sample with each series' largest value. So a maximum over any run of stretches, the peak above all, is the
    maximum of all samples there, with the time at which it was seen; only lows and what lies between can be lost.
    """
    series = {"rss_bytes": seen.series["rss_bytes"]}
    device = (seen.series[name] for name in ("process_used_bytes", "device_used_bytes"))
    if (first := next((values for values in device if any(value is not None for value in values)), None)) is not None:
        series["device_bytes"] = first
    if not len(seen):
        return {}
    times = [t or 0.0 for t in seen.series["t"]]
    kept = _kept(list(series.values()), len(times))
    seconds: list[float | None] = [round(times[index] - times[0], _DIGITS) for index in kept]
    return {"seconds": seconds} | {name: [whole(values[index]) for index in kept] for name, values in series.items()}


def _kept(series: Sequence[Sequence[float | None]], count: int) -> list[int]:
    if count <= POINTS:
        return list(range(count))
    kept = {0, count - 1}
    heights = [[-1.0 if value is None else value for value in values] for values in series]
    stretches = (POINTS - 2) // len(series)
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        kept |= {max(stretch, key=values.__getitem__) for values in heights}
    return sorted(kept)
