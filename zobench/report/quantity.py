"""The quantities that a table can show: where each comes from, its base unit, and the units that the papers print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from zobench.measure.statistics import median_interval
from zobench.result import Outcome, Result
from zobench.store import metrics


@dataclass(frozen=True, slots=True)
class Quantity:
    """``key`` of :func:`zobench.store.metrics`, in ``base_unit``; ``units``: printed unit -> how many base units it is.

    A ``share`` is relative by itself: no ratios are shown, and no paper reports it. ``absent``: what stands where an
    ok result has none, and what that means. ``source``: "predicted" from what a result carries, not "measured".
    """

    key: str
    base_unit: str
    units: Mapping[str, float]
    about: str = ""
    share: bool = False
    absent: tuple[str, str] = ("n/a", "this machine cannot measure it")
    source: str = "measured"

    def of(self, result: Result) -> float | None:
        """The measured value in the base unit, or None if this result has none."""
        return metrics(result).get(self.key)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """The 95 % interval of :meth:`of`: of the median over steps, or of a share of examples; None for others, or
        for too few steps."""
        if self.key == "accuracy" and (value := self.of(result)) is not None:
            return binomial_interval(value, int(result.evaluation["test"]["count"]))
        seconds = median_interval(result.measured_seconds) if result.outcome is Outcome.OK else None
        if seconds is None or self.key not in ("step_seconds", "throughput"):
            return None
        low, high = seconds
        return (
            (low, high) if self.key == "step_seconds" else (result.tokens_per_step / high, result.tokens_per_step / low)
        )


NORMAL_95 = 1.959964
"""The normal quantile of a two-sided interval of 95 %."""


def binomial_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of ``count`` examples, by Wilson's score (1927)."""
    square = NORMAL_95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


_MEMORY = "1 {unit} here is {size} bytes, as nvidia-smi counts and the papers print."
_RATE = {"1e9 params/s": 1e9}
_NOT_ASKED = ("—", "transfers alone were not measured (parts=true)")
_NOT_SAVED = ("—", "the run took no checkpoint")
_NO_RATES = ("—", "the machine's rates were not stored with the result")

QUANTITIES = {
    "gpu_memory": Quantity("device_peak_bytes", "bytes", {"MB": 2**20, "GB": 2**30}, _MEMORY),
    "throughput": Quantity("throughput", "tokens/s", {"tokens/s": 1}),
    "step_time": Quantity("step_seconds", "s", {"s": 1}),
    "predicted_step_time": Quantity("predicted_step_seconds", "s", {"s": 1}, absent=_NO_RATES, source="predicted"),
    "accuracy": Quantity("accuracy", "1", {"%": 0.01}, absent=("—", "the run did not evaluate a task")),
    "dev_accuracy": Quantity("dev_accuracy", "1", {"%": 0.01}, absent=("—", "the run did not evaluate a task")),
    "start_accuracy": Quantity("start_accuracy", "1", {"%": 0.01}, absent=("—", "the run did not evaluate a task")),
    "link_rate": Quantity("upload_rate", "params/s", _RATE, absent=_NOT_ASKED),
    "offload_rate": Quantity("offload_rate", "params/s", _RATE, absent=_NOT_ASKED),
    "floor": Quantity(
        "floor_share",
        "1",
        {"%": 0.01},
        "Floor: the least time that this machine's measured rates allow for a step, over the time it took.",
        share=True,
        absent=_NO_RATES,
    ),
    "update_survival": Quantity(
        "update_survival",
        "1",
        {"%": 0.01},
        "Update kept: how much of the intended updates is in the weights after rounding.",
        share=True,
        absent=("—", "it was not asked for (survival=true)"),
    ),
    "checkpoint_stall": Quantity("checkpoint_stall_seconds", "s", {"ms": 1e-3, "s": 1}, absent=_NOT_SAVED),
    "checkpoint_stall_share": Quantity(
        "checkpoint_stall_share",
        "1",
        {"%": 0.01},
        "Stall: how long the median checkpoint held the steps up, over the time of the median step.",
        share=True,
        absent=_NOT_SAVED,
    ),
    "checkpoint_time": Quantity("checkpoint_seconds", "s", {"s": 1}, absent=_NOT_SAVED),
    "checkpoint_copies": Quantity("checkpoint_bytes", "bytes", {"MB": 2**20, "GB": 2**30}, absent=_NOT_SAVED),
}
"""Named as in the ``metric`` column of the papers' values, which calls uploads and offloads ``link_rate`` alike."""

TIMED = ("throughput", "step_time")
"""Quantities that are medians over steps, so that they have an interval."""
LEAST_DIGITS = 3


def rounded(value: float, form: str) -> str:
    """``value`` in the format ``form``, with more digits where that leaves fewer than three: 1955, 3.42, 0.0731."""
    text = format(value, form)
    digits = sum(character.isdigit() for character in text.lstrip("-0."))
    if value == 0 or digits >= LEAST_DIGITS:
        return text
    return f"{value:#.{LEAST_DIGITS}g}".rstrip(".")
