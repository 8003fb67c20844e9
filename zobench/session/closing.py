"""How a sweep closes: how much faster than MeZO's own way the fastest cell is, how the cells that wait go on, and which
runs are in none of its tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from zobench.report import artifacts
from zobench.result import Outcome, Result
from zobench.runspec import DECLARED, RunSpec
from zobench.store import evidence


def gains(results: Sequence[Result]) -> list[str]:
    """A line for each model and dtype of which MeZO's own way and a faster one were measured alike, the largest first:
    the fastest cell's throughput and memory as multiples of MeZO's. Only differences that ``zobench compare`` finds."""
    alike: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        spec, is_ok = result.spec, result.outcome is Outcome.OK and result.step_seconds
        if is_ok and spec.task == "none" and spec.method == DECLARED["method"].default:
            alike.setdefault(tuple(getattr(spec, name) for name in _SAME), []).append(result)
    lines = []
    for cells in reversed(alike.values()):
        plain = next((result for result in cells if _is_plain(result.spec)), None)
        best = min(cells, key=lambda result: result.step_seconds or 0.0)
        if plain is None or best is plain:
            continue
        ratio = evidence.times_ratio(best, plain)
        if not _adds(best.spec, plain.spec) or ratio is None or ratio.interval is None:
            continue
        if ratio.interval[1] < 1:
            lines.append(_against(best, plain, 1 / ratio.value, ratio.interval))
    return lines


_SAME = (
    "model", "weights", "dtype", "autocast", "batch_size", "seq_len", "data", "scheme", "queries", "gpus",
)  # fmt: skip
"""Fields in which the faster cell and MeZO's own way are alike."""


def _adds(spec: RunSpec, plain: RunSpec) -> bool:
    """Whether ``spec`` has anything beside ``plain`` that a learning rate or a seed is not."""
    return any(getattr(spec, name) != getattr(plain, name) for name, field in DECLARED.items() if not field.free)


def _is_plain(spec: RunSpec) -> bool:
    """Whether the cell is MeZO as its paper has it: all weights on the device, noise added to the weights in place, and
    nothing else that changes what is measured."""
    return all(
        field.free or field.incidental or name in _SAME or getattr(spec, name) == field.default
        for name, field in DECLARED.items()
    )


def _against(best: Result, plain: Result, speed: float, interval: tuple[float, float]) -> str:
    """``speed``: how many times the tokens/s; ``interval``: 95 %, of the step times' ratio."""
    words = [word for word in best.spec.label.split() if word not in plain.spec.label.split()]
    peaks = [result.memory.get("device_peak_bytes") for result in (best, plain)]
    memory = f" in {peaks[0] / peaks[1]:.2f} of its memory" if peaks[0] and peaks[1] else ""
    busy = best.disturbances or plain.disturbances
    where = "measured here, while others were busy" if busy else "measured here"
    return (
        f"{best.spec.model} {best.spec.dtype}: {' '.join(words)} has {speed:.2f}x (95 % {1 / interval[1]:.2f} to "
        f"{1 / interval[0]:.2f}) the tokens/s of MeZO's own way{memory} ({where})"
    )


def closing(results: Sequence[Result], wait: int, folder: str, again: str) -> list[str]:
    """Lines on what was found in ``results``, where all of it can be seen, and, if cells ``wait``, how they go on."""
    lines = [f"found: {text}" for text in gains(results)[:1]]
    option = "" if folder == "results" else f" --results {shlex.quote(folder)}"
    lines.append(f"all tables, figures and claims beside the papers': zobench report{option} --out report")
    if wait:
        cells = "1 cell waits" if wait == 1 else f"{wait} cells wait"
        lines.append(f"{cells} for more time; to go on: {again}")
    return lines


def outside_tables(tables: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """The results that none of ``tables`` shows: all where there is no table, or where a change took them out."""
    items = [artifacts.load(name) for name in tables]
    return [result for result in results if not any(artifacts.shows(item, result.spec) for item in items)]
