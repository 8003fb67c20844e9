"""How a sweep closes: how much faster than MeZO's own way others are, how the cells that wait go on, and which
runs are in none of its tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from zobench.report import artifacts
from zobench.result import Outcome, Result
from zobench.runspec import DECLARED, RunSpec
from zobench.stats.intervals import Ratio
from zobench.store import evidence


def gains(results: Sequence[Result]) -> list[str]:
    """A line for each model and dtype of which MeZO's own way and others were measured alike, the largest first: of
    those that gain most where they gain least, how many times MeZO's throughput and memory they have, over all sizes
    of a batch. It is a claim only of repeats that nothing disturbed; of others the line says what was seen."""
    alike: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        spec, is_ok = result.spec, result.outcome is Outcome.OK and result.step_seconds
        if is_ok and spec.task == "none" and spec.method == DECLARED["method"].default:
            alike.setdefault(tuple(getattr(spec, name) for name in _SAME), []).append(result)
    lines = []
    for cells in reversed(alike.values()):
        plains = {(cell.spec.batch_size, cell.spec.seq_len): cell for cell in cells if _is_plain(cell.spec)}
        variants: dict[str, list[tuple[Result, Result, Ratio]]] = {}
        for cell in cells:
            plain = plains.get((cell.spec.batch_size, cell.spec.seq_len))
            if plain and _adds(cell.spec, plain.spec) and (ratio := evidence.times_ratio(cell, plain)):
                words = [word for word in cell.spec.label.split() if word not in plain.spec.label.split()]
                variants.setdefault(" ".join(words), []).append((cell, plain, ratio))
        slowest = {name: max(ratio.value for *_, ratio in compared) for name, compared in variants.items()}
        if best := min(variants, key=lambda name: (-len(variants[name]), slowest[name]), default=""):
            lines += _against(best, variants[best], len(variants))
    return lines


_SAME = ("model", "weights", "dtype", "autocast", "data", "scheme", "queries", "gpus")
"""Fields in which all cells of a line are alike."""
_OPEN = (*_SAME, "batch_size", "seq_len")


def _adds(spec: RunSpec, plain: RunSpec) -> bool:
    """Whether ``spec`` has anything beside ``plain`` that a learning rate or a seed is not."""
    return any(getattr(spec, name) != getattr(plain, name) for name, field in DECLARED.items() if not field.free)


def _is_plain(spec: RunSpec) -> bool:
    """Whether the cell is MeZO as its paper has it: all weights on the device, noise added to the weights in place, and
    nothing else that changes what is measured."""
    return all(
        field.free or field.incidental or name in _OPEN or getattr(spec, name) == field.default
        for name, field in DECLARED.items()
    )


def _against(variant: str, compared: Sequence[tuple[Result, Result, Ratio]], count: int) -> list[str]:
    """The line on the cells ``compared`` with MeZO's, which are of ``variant``, the best of ``count``; none where none
    is faster. A ratio is of step times."""
    cells = [result for *pair, _ in compared for result in pair]
    speeds = [1 / ratio.value for *_, ratio in compared]
    intervals = [ratio.interval for *_, ratio in compared if ratio.interval]
    peaks = [[result.memory.get("device_peak_bytes") for result in pair] for *pair, _ in compared]
    shares = [peak / plain for peak, plain in peaks if peak and plain]
    memory = f" in {_range(shares)} of its memory" if len(shares) == len(peaks) else ""
    name, picked = f"{cells[0].spec.model} {cells[0].spec.dtype}: {variant}", f"the best of {count}, " * (count > 1)
    is_busy = any(result.disturbances for result in cells)
    if is_busy or len(intervals) < len(compared) or any(len(result.runs) < 2 for result in cells):
        why = "others were busy" if is_busy else "that takes rounds of undisturbed processes"
        sizes = f"{len(compared)} batch size{'s' * (len(compared) > 1)}"
        line = (
            f"seen, but no claim, as {why}: {name} had {_range(speeds)}x the tokens/s of MeZO's own way ({picked}at "
            f"{sizes}); to claim it: --repeats 3{', others idle' * is_busy}"
        )
        return [line] if max(speeds) > 1 else []
    ends = [1 / end for interval in intervals for end in interval]
    line = (
        f"found: {name} has {_range(speeds)}x (95 % {min(ends):.2f} to {max(ends):.2f}) the tokens/s of MeZO's own "
        f"way{memory} ({picked}measured here)"
    )
    return [line] if any(interval[1] < 1 for interval in intervals) else []


def _range(values: Sequence[float]) -> str:
    """``1.66`` or, where they differ, ``0.63 to 2.24``."""
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))


def closing(results: Sequence[Result], wait: int, folder: str, again: str) -> list[str]:
    """Lines on what was found in ``results``, where all of it can be seen, and, if cells ``wait``, how they go on."""
    lines = gains(results)[:1]
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
