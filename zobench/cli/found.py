"""The last lines of a sweep: what was found, where the rest is, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES, NOISES
from zobench.store import evidence


def closing(results: Sequence[Result], wait: int, folder: str, again: str) -> list[str]:
    """Lines on what was found in ``results``, where all of it can be seen, and, if cells ``wait``, how they go on."""
    lines = [f"found: {text}" for text in compared(results)[:1]]
    own = "" if folder == "results" else f" --results {shlex.quote(folder)}"
    lines.append(f"all tables, figures and claims beside the papers': zobench report{own}")
    if wait:
        cells = "1 cell waits" if wait == 1 else f"{wait} cells wait"
        lines.append(f"{cells} for more time; to go on: {again}")
    return lines


def sweep_command(name: str, changes: Sequence[str] | None, device: str, results: Path, disk_dir: Path | None) -> str:
    """The command that runs the same cells into the same store."""
    given = {"--device": device if device != "auto" else None, "--disk-dir": disk_dir}
    given["--results"] = None if results == Path("results") else results
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    sets = [word for change in changes or () for word in ("--set", change)]
    return shlex.join(["zobench", "sweep", name, *sets, *words])


def compared(results: Sequence[Result]) -> list[str]:
    """A line for each model and dtype of which MeZO's own way and a faster one were measured alike, the largest first:
    the fastest cell's throughput and memory as multiples of MeZO's. Only differences that ``zobench compare`` finds."""
    alike: dict[tuple[object, ...], list[Result]] = {}
    for one in results:
        if one.outcome is Outcome.OK and one.step_seconds and one.spec.task == "none":
            alike.setdefault(_compared_by(one.spec), []).append(one)
    lines = []
    for cells in reversed(alike.values()):
        plain = next((one for one in cells if _is_plain(one.spec)), None)
        best = min(cells, key=lambda one: one.step_seconds or 0.0)
        if plain is None or best is plain:
            continue
        known = evidence.times_ratio(best, plain)
        if known is not None and known.interval is not None and known.interval[1] < 1:
            lines.append(_against(best, plain, 1 / known.value, known.interval))
    return lines


def _compared_by(spec: RunSpec) -> tuple[object, ...]:
    same = (spec.model, spec.weights, spec.dtype, spec.autocast, spec.batch_size, spec.seq_len)
    return *same, spec.method, spec.scheme, spec.queries, spec.gpus


def _is_plain(spec: RunSpec) -> bool:
    """Whether the cell is MeZO as its paper has it: all weights on the device, noise added to the weights in place."""
    noise = NOISES[spec.noise]
    return not ENGINES[spec.engine].is_streamed and noise.in_place and not noise.is_stored


def _against(best: Result, plain: Result, speed: float, interval: tuple[float, float]) -> str:
    """``speed``: how many times the tokens/s; ``interval``: 95 %, of the step times' ratio."""
    words = [word for word in best.spec.label.split() if word not in plain.spec.label.split()]
    peaks = [one.memory.get("device_peak_bytes") for one in (best, plain)]
    memory = f" in {peaks[0] / peaks[1]:.2f} of its memory" if peaks[0] and peaks[1] else ""
    busy = best.disturbances or plain.disturbances
    where = "measured here, while others were busy" if busy else "measured here"
    return (
        f"{best.spec.model} {best.spec.dtype}: {' '.join(words)} has {speed:.2f}x (95 % {1 / interval[1]:.2f} to "
        f"{1 / interval[0]:.2f}) the tokens/s of MeZO's own way{memory} ({where})"
    )
