"""The measurements of a cell that runs: seconds of its steps and of its transfers alone, and, by an observer, peaks of
memory, power, clocks, and who else was there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zobench.machine.accelerator import Accelerator
from zobench.machine.memory import PeakMemory
from zobench.measure.environment import cuda_uuid
from zobench.measure.sampler import Sampler
from zobench.measure.samples import Samples, contamination, crowded, whole
from zobench.runspec.order import current

POINTS = 200
"""The most points of memory over time that are kept."""
_DIGITS = 3
"""The digits of the samples' seconds: these are 0.05 s apart or more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The observations of a run in the terms of :class:`zobench.result.Result`. ``disturbed``: what disturbed the
    times, or ""."""

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
        samples = self._sampler.stop()
        steps = sorted((*window, *self._marks)) if window[1] > window[0] else window
        during = samples.window(steps[0], steps[-1])
        warnings = crowded(during.other_cpu_cores) if self._alone and self._device == "cpu" else []
        return Observation(
            memory={
                **peaks, "device_wide_peak_bytes": samples.device_peak_bytes_device_wide,
                "device_process_peak_bytes": samples.device_peak_bytes_process,
            },
            power=_power(samples, during, window), trace=memory_over_time(samples),
            warnings=[*warnings, *self._memory.notes], disturbed=contamination(during),
        )  # fmt: skip


def _power(samples: Samples, during: Samples, window: tuple[float, float]) -> dict[str, Any]:
    """Energy, power and clocks ``during`` the measured steps, and what the sampler could not see. A device's mean power
    is what its counter of energy grew by, where it has one: single readings are each a mean of the last second."""
    names = ("max_temperature_c", "throttle_reasons", "swapped_bytes", "other_cpu_cores", "own_cpu_cores")
    energy, power = samples.energy_between(*window), during.mean_power_watts
    return {
        "energy_joules": energy,
        "mean_power_watts": power if energy is None else energy / (window[1] - window[0]),
        **{name: getattr(during, name) for name in names},
        "samples": len(during),
        "median_sm_clock_hz": _median(during.series["sm_clock_hz"]),
        "median_memory_clock_hz": _median(during.series["memory_clock_hz"]),
        "sampler_overhead": samples.overhead,
        "notes": samples.notes,
    }


def _median(series: Sequence[float | None]) -> float | None:
    values = [value for value in series if value is not None]
    return statistics.median_high(values) if values else None


def memory_over_time(samples: Samples) -> dict[str, list[float | None]]:
    """``seconds`` since the first sample (to the millisecond), ``rss_bytes`` and, where NVML told, ``device_bytes``.

    ``device_bytes`` is the process's use where NVML gives it, else the whole device's; the result's
    ``device_process_peak_bytes`` is None in the second case. Empty if there were no samples.

    Thinned to at most 200 points: the first and the last sample, and of every stretch of equal length between them the
    sample with each series' largest value, so that no peak is lost.
    """
    series = {"rss_bytes": samples.series["rss_bytes"]}
    device = (samples.series[name] for name in ("process_used_bytes", "device_used_bytes"))
    if (first := next((values for values in device if any(value is not None for value in values)), None)) is not None:
        series["device_bytes"] = first
    if not len(samples):
        return {}
    times = [t or 0.0 for t in samples.series["t"]]
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


def planted_slowdown() -> float:
    """The share by which each step of this process is to be lengthened, on purpose; 0 of any real measurement."""
    running = current()
    return 0.0 if running is None else running.slowdown


class StepTimer:
    """``with timer: step()`` for each step, then :meth:`seconds`. Entering and leaving never wait for the device.

    ``slowdown``: a share of its own time by which each step is lengthened, as if it had more to do: a comparison is
    tested with it (:mod:`zobench.execute.selfcompare`). Leaving then waits for the device.

    On CUDA the events are recorded on the device's current stream, so a step that uses other streams must let the
    current one wait for them before it returns.
    """

    def __init__(self, device: str, slowdown: float = 0.0) -> None:
        self.device, self._slowdown = device, slowdown
        self._began = 0.0
        self._marks: list[tuple[Any, Any]] = []
        self._start: Any = None

    def __enter__(self) -> StepTimer:
        self._start, self._began = self._now(), time.perf_counter()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # a step that raised has no time
            if self._slowdown:
                self._lengthen()
            self._marks.append((self._start, self._now()))

    def seconds(self) -> list[float]:
        """Seconds of each step so far; on CUDA waits for the last one."""
        if not self.device.startswith("cuda"):
            return [end - start for start, end in self._marks]
        if self._marks:
            self._marks[-1][1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in self._marks]  # elapsed_time is in milliseconds

    def _lengthen(self) -> None:
        """Keeps this core busy, as a slower step would, for a share of the time that the step has taken."""
        if self.device.startswith("cuda"):
            self._now().synchronize()
        end = time.perf_counter() + self._slowdown * (time.perf_counter() - self._began)
        while time.perf_counter() < end:
            pass

    def _now(self) -> Any:
        if not self.device.startswith("cuda"):
            return time.perf_counter()
        device = Accelerator(self.device)
        return device.mark(device.current_stream())


def alone(
    pipeline: Any, blocks: int, meet: Callable[[], None] = lambda: None, repeats: int = 2
) -> dict[str, list[float]]:
    """Seconds that it takes to upload all ``blocks`` of a ``pipeline`` to every rank, and to offload them, with nothing
    beside it (:class:`zobench.engine.transfers.pipeline.Pipeline`).

    ``upload_seconds``, ``offload_seconds``: one number for each of ``repeats``. ``meet`` returns when all ranks have
    come to it; a transfer is over when the last rank's is, and their meeting (some 0.1 ms) counts. Weights stay. Every
    rank does this at once.

    DistZO2's table 2 has the parameters of the streamed blocks, each counted once whatever the number of ranks, over
    these seconds (docs/design/PERFORMANCE.md, "What the papers' numbers come to").
    """
    pipeline.alone("upload", range(blocks))  # what only the first transfers take is no part of their rate
    uploads, offloads = [], []
    for _ in range(repeats):
        meet()
        start = time.perf_counter()
        pipeline.alone("upload", range(blocks))
        meet()
        uploads.append(time.perf_counter() - start)
        offloads.append(_offload(pipeline, blocks, meet))
    return {"upload_seconds": uploads, "offload_seconds": offloads}


def _offload(pipeline: Any, blocks: int, meet: Callable[[], None]) -> float:
    """A block is written back from the slot that it was just uploaded to, or the weights would change."""
    seconds = 0.0
    for first in range(0, blocks, pipeline.depth):
        together = range(first, min(first + pipeline.depth, blocks))
        pipeline.alone("upload", together)
        meet()
        start = time.perf_counter()
        pipeline.alone("offload", together)
        meet()
        seconds += time.perf_counter() - start
    return seconds
