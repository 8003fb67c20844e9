"""A cell of this machine compared with itself, each comparison kept as it ends: how small a difference can be shown."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zobench import recipes
from zobench.cost import Rates, estimate
from zobench.execute import selfcompare, together
from zobench.execute.rates import are_known, calibration
from zobench.execute.selfcompare import SelfTest, SlowdownCheck
from zobench.machine.files import replace
from zobench.machine.texts import duration
from zobench.measure import environment
from zobench.runspec import RunSpec
from zobench.session.monitor import Monitor
from zobench.stats.intervals import FEW


def compare_with_itself(
    spec: RunSpec, results: Path, monitor: Monitor, *, count: int = selfcompare.COMPARISONS,
    slowdown: float = selfcompare.SLOWDOWN, budget: float | None = None,
    show: Callable[[int, SlowdownCheck], None] = lambda number, comparison: None,
) -> SelfTest:  # fmt: skip
    """Runs ``count`` comparisons of ``spec``, as many as ``budget`` seconds hold, with a planted ``slowdown`` (share),
    and keeps them as JSON in ``results/.selftest``. ``show`` is given each, numbered from 1. Raises ``ValueError`` for
    a cell that cannot be compared so."""
    if spec.program != "zobench" or spec.task != "none" or spec.gpus > 1:
        raise ValueError(
            "`--self-test` needs a cell of zobench's own, without a task, on one device, because it lengthens its "
            f"steps, but got {spec.label}; name another cell"
        )
    facts, seed, began = environment.fingerprint_without_torch(), secrets.randbits(32), time.time()
    shipped = results == recipes.folder("published")  # that of an installed package is not written to
    folder = (Path("results") if shipped else results) / ".selftest"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"compare-{facts.machine}-{spec.hash}-{began:.0f}.json"
    obstacle = together.obstacle(spec)
    how = f"one process after the other, because {obstacle}" if obstacle else "side by side, in turns of a step"
    monitor.say(f"{spec.label} on {facts.machine} ({facts.description}), {how}", "default")
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
    rates = Rates.of(calibration(results, machine, spec.device, None))
    least, longest = (duration(3 * count * rounds * estimate(spec, rates).seconds) for rounds in (few, most))
    return f"{extent}: {least} to {longest} (predicted); --budget TIME ends it earlier"
