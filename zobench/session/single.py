"""One cell on this machine: whether it fits, how long it should take, and its result from a fresh process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from zobench import cost
from zobench.cost import Estimate, footprint, interval
from zobench.execute import plan, process
from zobench.execute.outcome import failed
from zobench.execute.rates import calibration
from zobench.machine.processes import torchrun_ranks
from zobench.machine.texts import duration
from zobench.measure.environment import fingerprint_without_torch
from zobench.models import cache
from zobench.result import Outcome, Result
from zobench.runspec import SEQ_LEN, RunSpec
from zobench.session.monitor import Monitor

_LONG = {"cpu": 1e13, "cuda": 1e15}
"""Operations that may take a minute: then it is worth the seconds in which the machine's rates are measured, once."""
_MINUTE = 60.0


def choices(spec: RunSpec, *, seq_len_given: bool) -> Iterator[str]:
    """What was chosen for the cell: what lies in device memory, its weights, its sequence length."""
    yield footprint.fit(spec)[1]
    if spec.config_hash and spec.weights == "random":
        yield f"weights: random, as {spec.model}'s config.json says; its own with --set weights=pretrained"
    if not seq_len_given and spec.seq_len < SEQ_LEN:
        yield f"seq_len: {spec.seq_len}, because {spec.model} has {spec.seq_len} positions"


def measured(
    spec: RunSpec, monitor: Monitor, *, timeout: float | None = None, disk_dir: Path | None = None, silent: bool = False
) -> Result:
    """The cell's result; it is skipped, and no process started, if what it needs is not free. ``timeout`` in seconds;
    ``silent``: ``monitor`` is told nothing of how it goes.

    Ranks of torchrun's do not look on a GPU: others of them take its memory already.
    """
    alone = spec.device == "cpu" or not torchrun_ranks()
    if alone and (misfit := plan.misfit(spec, disk_dir)):
        return failed(spec, Outcome.SKIPPED, misfit)
    guess = _foreseen(spec, disk_dir, monitor, silent) if alone else None
    with nullcontext() if silent else monitor.busy(f"measuring {spec.label}"):
        written = None if guess is None else guess.consolidation
        return process.run_in_process(spec, timeout=timeout, disk_dir=disk_dir, written=written)


def _foreseen(spec: RunSpec, disk_dir: Path | None, monitor: Monitor, silent: bool) -> Estimate | None:
    """What a cell that may take a minute is predicted to take; unless ``silent`` it is said, where it is that long.

    A ``silent`` one is predicted only where its interval of write-backs follows from that.
    """
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
