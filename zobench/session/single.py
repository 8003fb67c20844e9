"""One cell on this machine: whether it fits, how long it should take, its result; or compared with itself."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from zobench import cost, recipes
from zobench.cost import Estimate, footprint, interval
from zobench.execute import plan, process, selfcompare, together
from zobench.execute.monitor import Monitor
from zobench.execute.rates import are_known, calibration
from zobench.execute.selfcompare import SelfTest, SlowdownCheck
from zobench.machine.files import replace
from zobench.machine.processes import torchrun_ranks
from zobench.machine.texts import duration
from zobench.measure.environment import failed, fingerprint_without_torch
from zobench.models import cache
from zobench.result import Outcome, Result
from zobench.runspec import SEQ_LEN, RunSpec
from zobench.stats.intervals import FEW

_LONG = {"cpu": 1e13, "cuda": 1e15}
"""Operations that may take a minute: then it is worth the seconds in which the machine's rates are measured, once."""
_MINUTE = 60.0


def choices(spec: RunSpec, *, seq_len_given: bool) -> Iterator[str]:
    """Yields lines on the choices made for the cell: what lies in device memory, its weights, its sequence length."""
    yield footprint.fit(spec)[1]
    if spec.config_hash and spec.weights == "random":
        yield f"weights: random, as {spec.model}'s config.json says; its own with --set weights=pretrained"
    if not seq_len_given and spec.seq_len < SEQ_LEN:
        yield f"seq_len: {spec.seq_len}, because {spec.model} has {spec.seq_len} positions"


def measured(
    spec: RunSpec, monitor: Monitor, *, timeout: float | None = None, disk_dir: Path | None = None, silent: bool = False
) -> Result:
    """The cell's result, skipped if what it needs is not free. ``timeout`` in seconds; ``silent``: nothing is said."""
    alone = spec.device == "cpu" or not torchrun_ranks()  # other ranks take a GPU's memory already
    if alone and (misfit := plan.misfit(spec, disk_dir)):
        return failed(spec, Outcome.SKIPPED, misfit)
    guess = _foreseen(spec, disk_dir, monitor, silent) if alone else None
    written = None if guess is None else guess.consolidation
    with nullcontext() if silent else monitor.busy(f"measuring {spec.label}"):
        return process.run_in_process(spec, timeout=timeout, disk_dir=disk_dir, written=written)


def _foreseen(spec: RunSpec, disk_dir: Path | None, monitor: Monitor, silent: bool) -> Estimate | None:
    """Returns the prediction for a cell that may take a minute; unless ``silent`` it is shown, where it is that long. A
    ``silent`` one is predicted only where its interval of write-backs follows from that."""
    count = spec.steps + spec.warmup
    short = count * cost.operations(spec) < _LONG[spec.device.partition(":")[0]]
    if short or (silent and not interval.is_open(spec)):
        return None
    try:
        with monitor.busy("measuring this machine's rates, once"):
            machine = fingerprint_without_torch().machine
            rates = calibration(cache.root(), machine, spec.device, disk_dir)
    except OSError as error:
        monitor.say(f"time: not predicted ({error})")
        return None
    guess = cost.estimate(spec, cost.Rates.of(rates))
    if guess.consolidation and not silent:
        monitor.say(guess.consolidation.reason)
    if guess.seconds > _MINUTE and not silent:
        each = duration(guess.step_seconds)
        monitor.say(f"time: about {duration(guess.seconds)} (predicted): {count} steps of {each}")
    return guess


def compare_with_itself(
    spec: RunSpec, results: Path, monitor: Monitor, *, count: int = selfcompare.COMPARISONS,
    slowdown: float = selfcompare.SLOWDOWN, budget: float | None = None,
    show: Callable[[int, SlowdownCheck], None] = lambda number, comparison: None,
) -> SelfTest:  # fmt: skip
    """Runs ``count`` comparisons of ``spec``, as many as ``budget`` seconds hold, with a planted ``slowdown`` (share),
    and keeps them in ``results/.selftest``; ``show`` gets each, numbered from 1. Raises ``ValueError`` for a cell that
    cannot be compared so."""
    if spec.program != "zobench" or spec.task != "none" or spec.gpus > 1:
        raise ValueError(
            "`--self-test` needs a cell of zobench's own, without a task, on one device, because it lengthens its "
            f"steps, but got {spec.label}; name another cell"
        )
    facts, seed, began = fingerprint_without_torch(), secrets.randbits(32), time.time()
    shipped = results == recipes.folder("published")  # that of an installed package is not written to
    folder = (Path("results") if shipped else results) / ".selftest"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"compare-{facts.machine}-{spec.hash}-{began:.0f}.json"
    obstacle = together.obstacle(spec)
    manner = f"one process after the other, because {obstacle}" if obstacle else "side by side, in turns of a step"
    monitor.say(f"{spec.label} on {facts.machine} ({facts.description}), {manner}", "default")
    monitor.say(_extent(spec, results, facts.machine, count))
    record: dict[str, Any] = {
        "machine": facts.machine, "description": facts.description, "spec": spec.to_dict(), "seed": seed,
        "began": began, "until": selfcompare.UNTIL, "most_rounds": selfcompare.MOST, "slowdown": slowdown,
        "in_turns": not obstacle, "comparisons": [],
    }  # fmt: skip

    def keep(number: int, comparison: SlowdownCheck) -> None:
        show(number, comparison)
        record["comparisons"].append(dataclasses.asdict(comparison))
        replace(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())

    done = selfcompare.self_test(
        spec, selfcompare.one_by_one if obstacle else selfcompare.in_turns, seed=seed, count=count, slowdown=slowdown,
        budget=budget, say=keep,
    )  # fmt: skip
    monitor.say(f"kept: {path}")
    return done


def _extent(spec: RunSpec, results: Path, machine: str, count: int) -> str:
    """How much is to be run, and how long that should take where this machine's rates are known."""
    few, most = FEW, selfcompare.MOST
    extent = f"{count} comparisons of {few} to {most} rounds, each of three runs"
    if not are_known(results, machine, spec.device, None):
        return f"{extent}; how long is predicted once a sweep has measured this machine's rates"
    rates = cost.Rates.of(calibration(results, machine, spec.device, None))
    least, longest = (duration(3 * count * rounds * cost.estimate(spec, rates).seconds) for rounds in (few, most))
    return f"{extent}: {least} to {longest} (predicted); --budget TIME ends it earlier"
