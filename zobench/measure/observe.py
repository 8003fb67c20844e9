"""Observer: everything that is watched while a cell runs: peaks of memory, power, clocks, and who else was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zobench.machine.memory import PeakMemory
from zobench.measure.environment import cuda_uuid
from zobench.measure.history import memory_over_time
from zobench.measure.sampler import Sampler
from zobench.measure.samples import Samples, contamination
from zobench.result.record import DISTURBED

DISTURBING_CORES = 0.2
"""Cores in use by others from which on a measurement on the CPU says so."""


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
        self._memory = PeakMemory(device, pid)
        self._memory.baseline()

    def baseline(self) -> None:
        """Forgets the peaks of the host's memory so far: what is in use now is the baseline."""
        self._memory.baseline()

    def stop(self, window: tuple[float, float]) -> Observation:
        """Stops watching. ``window``: when the steps began and ended, by ``time.monotonic()``, whose power and
        disturbances are reported."""
        peaks = self._memory.peaks()
        seen = self._sampler.stop()
        during = seen.window(*window)
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
    """Energy, power and clocks ``during`` the measured steps, and what the sampler could not see."""
    names = ("mean_power_watts", "max_temperature_c", "throttle_reasons", "swapped_bytes", "other_cpu_cores")
    return {
        "energy_joules": seen.energy_between(*window),
        **{name: getattr(during, name) for name in (*names, "own_cpu_cores")},
        "samples": len(during),
        **_clocks(during),
        "sampler_overhead": seen.overhead,
        "notes": seen.notes,
    }


def _clocks(during: Samples) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for name in ("sm_clock_hz", "memory_clock_hz"):
        values = sorted(value for value in during.series[name] if value is not None)
        result[f"median_{name}"] = values[len(values) // 2] if values else None
    return result
