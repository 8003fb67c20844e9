"""Predictions beside this CPU's own cells, measured on the same day: ``python -m tools.cpu_cells FOLDER``.

Rates are measured before and after, and the cells between them in rounds, each cell once a round, so that a machine
that slows down slows all of them. Results and rates go to FOLDER; started again, it goes on from there, and once all is
there it only prints the table. The table's errors are predicted / measured - 1: of the rates alone, and as a sweep
plans, corrected by the cells of the other models. An idle machine is needed: the last line says how many cores others
kept busy while the rates were measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.cost import Rates, estimate, local
from zobench.execute.process import ask, run_in_process
from zobench.execute.rates import CALIBRATE, better
from zobench.machine.files import replace
from zobench.machine.texts import json_of
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store

MODELS = ("OPT-125M", "OPT-350M", "OPT-1.3B")
ENGINES: tuple[Mapping[str, Any], ...] = (
    {"engine": "resident"}, {"engine": "offload", "tier": "disk"},
    {"engine": "offload", "tier": "disk", "noise": "counter", "granularity": "linear"},
)  # fmt: skip
DTYPES = ("fp32", "bf16")
GOALS = {"median": 0.10, "p90": 0.25, "memory": 0.10}
"""Errors of predictions for a machine's own cells that docs/predictions.md calls good enough."""
RATES = ".rates.json"
"""File in FOLDER with the machine's rates, whose cells these are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One cell: its measured seconds and bytes, and the errors of their predictions."""

    spec: RunSpec
    seconds: float
    alone: float
    corrected: float
    memory: float | None


def cells(models: Sequence[str], seq_len: int, steps: int) -> list[RunSpec]:
    """Every engine in every dtype, the models in turn."""
    ways = itertools.product(models, DTYPES, ENGINES)
    return [
        RunSpec(model=model, dtype=dtype, seq_len=seq_len, steps=steps, warmup=1, **way).resolve("cpu")
        for model, dtype, way in ways
    ]


def missing(specs: Sequence[RunSpec], rounds: int, store: Store) -> list[RunSpec]:
    """``specs`` in ``rounds``, a round after the other, without those that ``store`` has already. A round's cells
    differ in their seed, which changes no time."""
    known = {result.spec for result in store.load()}
    every = (spec.replace(seed=number) for number in range(rounds) for spec in specs)
    return [spec for spec in every if spec not in known]


def measure(
    specs: Sequence[RunSpec], rounds: int, store: Store, run: Callable[[RunSpec], Result], say: Callable[[str], None]
) -> None:
    """Runs what is :func:`missing`, and stores what ended ok."""
    for spec in missing(specs, rounds, store):
        result = run(spec)
        if result.outcome is Outcome.OK:
            store.save(result)
        say(f"round {spec.seed + 1}: {spec.label}: {result.outcome} {result.step_seconds or 0:.3g} s {result.reason}")


def kept(folder: Path) -> dict[str, Any] | None:
    """The rates in ``folder``, None if there are none."""
    try:
        rates = json_of((folder / RATES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(rates, dict):
        raise ValueError(f"{folder / RATES} must hold rates, but does not; remove it")
    return rates


def keep(folder: Path, rates: Mapping[str, Any]) -> None:
    """Stores ``rates`` in ``folder``; of those that are there already, what was faster stays."""
    merged, before = dict(rates), kept(folder)
    if before is not None:
        busy = max(side.get("other_cpu_cores") or 0.0 for side in (before, rates))
        merged = better(before, rates) | {"other_cpu_cores": busy}
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / RATES, json.dumps(merged, indent=1, sort_keys=True).encode())


def rows(results: Iterable[Result], rates: Rates) -> list[Row]:
    """The errors of each cell, of the median of its rounds."""
    by_cell: dict[RunSpec, list[Result]] = {}
    for result in results:
        if result.outcome is Outcome.OK and result.step_seconds:
            by_cell.setdefault(result.spec.replace(seed=0), []).append(result)
    lines = []
    for spec, runs in by_cell.items():
        seconds = statistics.median(run.step_seconds or 0.0 for run in runs)
        others = [run for key, group in by_cell.items() if key.model != spec.model for run in group]
        peaks = [peak for run in runs if (peak := run.memory.get("device_peak_bytes"))]
        known = local.predict(spec, rates)
        lines.append(Row(
            spec=spec, seconds=seconds, alone=known.step_seconds / seconds - 1,
            corrected=estimate(spec, rates, others).step_seconds / seconds - 1,
            memory=known.device_bytes / statistics.median(peaks) - 1 if peaks else None,
        ))  # fmt: skip
    return lines


def table(table_rows: Sequence[Row]) -> str:
    """The errors in percent, and whether they are what was asked for."""
    lines = [f"{'step s':>8} {'rates':>7} {'learned':>7} {'memory':>7}  cell"]
    for row in table_rows:
        memory = "" if row.memory is None else f"{100 * row.memory:+.0f} %"
        errors = " ".join(f"{100 * error:+5.0f} %" for error in (row.alone, row.corrected))
        lines.append(f"{row.seconds:8.3g} {errors} {memory:>7}  {row.spec.label}")
    errors_of = {
        "rates": [abs(row.alone) for row in table_rows], "learned": [abs(row.corrected) for row in table_rows],
        "memory": [abs(row.memory) for row in table_rows if row.memory is not None],
    }  # fmt: skip
    lines += [_verdict(name, sorted(error_rows)) for name, error_rows in errors_of.items() if error_rows]
    return "\n".join(lines) + "\n"


def _verdict(name: str, errors: Sequence[float]) -> str:
    """How large the sorted ``errors`` are, and whether that is within :data:`GOALS`."""
    median, p90 = statistics.median(errors), errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    limits = (GOALS["memory"], GOALS["memory"]) if name == "memory" else (GOALS["median"], GOALS["p90"])
    met = "met" if median <= limits[0] and p90 <= limits[1] else "not met"
    asked = " and ".join(f"{100 * limit:.0f} %" for limit in limits)
    return f"{name}: n {len(errors)}, median {100 * median:.1f} %, p90 {100 * p90:.1f} %; {asked}: {met}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.cpu_cells", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args(arguments)
    store, specs = Store(given.folder), cells(given.models, given.seq_len, given.steps)
    if kept(given.folder) is None or missing(specs, given.rounds, store):
        _all(given.folder, specs, given.rounds, store)
    rates = kept(given.folder)
    assert rates is not None
    print(table(rows(store.load(), Rates.of(rates))), end="")
    busy = rates.get("other_cpu_cores") or 0.0
    print(f"other processes kept {busy:.1f} cores busy while the rates were measured")


def _all(folder: Path, specs: Sequence[RunSpec], rounds: int, store: Store) -> None:
    """Measures the rates, the cells, and the rates again."""
    with tempfile.TemporaryDirectory() as scratch:

        def calibrate() -> None:
            keep(folder, json.loads(ask(CALIBRATE, "cpu", scratch)))

        def run(spec: RunSpec) -> Result:
            return run_in_process(spec, timeout=None, disk_dir=Path(scratch))

        calibrate()
        measure(specs, rounds, store, run, lambda text: print(text, flush=True))
        calibrate()


if __name__ == "__main__":
    main()
