"""Speed: one cell of the main table with its prediction beside it, the link and the overlap that it reached."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from zobench import cost, models, recipes
from zobench.execute import plan
from zobench.execute.process import run_in_process
from zobench.execute.rates import measured
from zobench.machine.texts import duration
from zobench.recipes import matrix
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES
from zobench.selftest import NEEDS_CUDA, CheckSettings, Finding, Status, absent, judged

NAMES = ("main table", "link", "overlap")
CALIBRATION_SECONDS = 5.0
FACTOR = 3.0
"""The greatest ratio of a step's predicted and measured seconds, either way: more is a fault of one of the two."""
MEMORY_FACTOR = 1.25
LINK_SHARE = 0.7
"""The share of the calibrated link that transfers of blocks without computations must reach."""
HIDDEN_SHARE = 0.5
"""The share of the shorter of transfers and computations that must hide under the longer."""
SMALL = 0.05
"""Share of a step below which there is too little to hide to tell."""


def run(settings: CheckSettings) -> list[Finding]:
    """Calibrates, measures the largest cell that the time holds, and judges what it reached."""
    seconds = min(CALIBRATION_SECONDS, settings.seconds / 4)
    calibration = measured(settings.device, settings.disk_dir, seconds)
    rates = cost.Rates.of(calibration)
    left = settings.seconds - 2 * seconds
    chosen = cell(settings, rates, left / 2)
    if chosen is None:
        why = f"no offloaded cell of the main table fits this machine in {duration(max(left / 2, 0.0))} (predicted)"
        return absent(NAMES, why)
    result = run_in_process(chosen, timeout=max(left * 2, 60.0), disk_dir=settings.disk_dir)
    if result.outcome is Outcome.CONTAMINATED:
        return absent(NAMES, f"{chosen.label}: {result.outcome}: {result.reason}")
    if result.outcome is not Outcome.OK:
        return [
            judged(NAMES[0], f"{chosen.label}: {result.outcome}: {result.reason}", ""),
            *absent(NAMES[1:], "no cell"),
        ]
    first = against_prediction(result, cost.estimate(chosen, rates))
    if not settings.on_cuda:
        return [first, *absent(NAMES[1:], NEEDS_CUDA)]
    alone = {name: statistics.median(result.parts[f"{name}_seconds"]) for name in ("transfer", "compute", "whole")}
    return [first, link(alone, cost.transfer_seconds(chosen, rates), calibration), overlap(alone)]


def cell(settings: CheckSettings, rates: cost.Rates, seconds: float) -> RunSpec | None:
    """The offloaded cell of the main table with the most parameters that fits memory and ``seconds``, if one does;
    of two, the one with counter noise. It takes few steps, and its transfers and computations alone."""
    room = plan.limits(settings.device, settings.disk_dir)
    candidates: list[tuple[int, bool, RunSpec]] = []
    changes = {"steps": 4, "warmup": 1, "parts": True, **settings.changes}
    cells = matrix.load(
        recipes.find("runners", "main_table"), settings.device, changes, lambda: cost.fastest_narrow(rates)[0]
    ).cells
    for spec in cells:
        if not ENGINES[spec.engine].is_streamed:
            continue
        guess = cost.estimate(spec, rates)
        fits = not plan.shortage((guess.device_bytes, guess.host_bytes, guess.disk_bytes), room)
        if fits and guess.seconds <= seconds:
            candidates.append((models.parameter_count(*models.variant(spec)), spec.noise == "counter", spec))
    return max(candidates, key=lambda row: row[:2])[2] if candidates else None


def against_prediction(result: Result, guess: cost.Estimate) -> Finding:
    """The cell's step and peak beside what was predicted."""
    step, peak = result.step_seconds or 0.0, result.memory.get("device_peak_bytes") or 0
    summary = (
        f"{result.spec.label}: {step:.3g} s a step, predicted {guess.step_seconds:.3g}; "
        f"{peak / 1e6:.0f} MB of device memory, predicted {guess.device_bytes / 1e6:.0f}"
    )
    slow = not guess.step_seconds / FACTOR <= step <= guess.step_seconds * FACTOR
    large = peak > guess.device_bytes * MEMORY_FACTOR
    why = [f"the step is more than {FACTOR:g} times off"] * slow + [
        f"the peak is above {MEMORY_FACTOR:g} times"
    ] * large
    return judged(
        NAMES[0], f"{summary}: {' and '.join(why)}" if why else "", summary, step_seconds=step,
        predicted_step_seconds=guess.step_seconds, device_peak_bytes=peak, predicted_device_bytes=guess.device_bytes,
    )  # fmt: skip


def link(alone: Mapping[str, float], predicted: float, calibration: Mapping[str, Any]) -> Finding:
    """Transfers of all blocks without a computation, against the calibrated link. Seconds."""
    share = predicted / alone["transfer"]
    up, down = (calibration[f"link_{way}_bytes_per_second"] or 0.0 for way in ("up", "down"))
    summary = f"transfers alone reach {share:.0%} of the link ({up / 1e9:.3g} GB/s up, {down / 1e9:.3g} down)"
    wrong = f"{summary}, less than {LINK_SHARE:.0%}" if share < LINK_SHARE else ""
    return judged(NAMES[1], wrong, summary, share=share, up_bytes_per_second=up, down_bytes_per_second=down)


def overlap(alone: Mapping[str, float]) -> Finding:
    """The share of the shorter of transfers and computations that a whole step hides under the longer. Seconds."""
    shorter = min(alone["transfer"], alone["compute"])
    if shorter < SMALL * alone["whole"]:
        return Finding(NAMES[2], Status.ABSENT, "one of transfers and computations is too short to hide the other")
    hidden = (alone["transfer"] + alone["compute"] - alone["whole"]) / shorter
    summary = (
        f"{hidden:.0%} hidden: transfers {alone['transfer']:.3g} s, computations {alone['compute']:.3g} s, "
        f"a step {alone['whole']:.3g} s"
    )
    wrong = f"{summary}; less than {HIDDEN_SHARE:.0%}" if hidden < HIDDEN_SHARE else ""
    return judged(
        NAMES[2], wrong, summary, hidden=hidden, **{f"{name}_seconds": value for name, value in alone.items()}
    )
