"""The memory of a process over time: the sampler's series, thinned for a result without losing a peak."""

from __future__ import annotations

from collections.abc import Sequence

from zobench.measure.samples import Samples

POINTS = 200
"""The most points that are kept."""
_DIGITS = 3
"""Of the seconds: samples are 0.05 s apart or more."""


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
    return {"seconds": seconds} | {name: [_whole(values[index]) for index in kept] for name, values in series.items()}


def _kept(series: Sequence[Sequence[float | None]], count: int) -> list[int]:
    if count <= POINTS:
        return list(range(count))
    kept = {0, count - 1}
    stretches = (POINTS - 2) // len(series)
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        kept |= {max(stretch, key=lambda index: _height(values[index])) for values in series}
    return sorted(kept)


def _height(value: float | None) -> float:
    return -1.0 if value is None else value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
