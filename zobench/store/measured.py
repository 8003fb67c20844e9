"""The metrics that a result itself measured: memory, step times, accuracies, checkpoints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from zobench.measure.statistics import median_interval
from zobench.result import Result
from zobench.result.quantity import Interval, Quantity

NORMAL_95 = 1.959964
"""The normal quantile of a two-sided interval of 95 %."""
BYTES = {"MB": 2**20, "GB": 2**30}
PERCENT = {"%": 0.01}


def binomial_interval(share: float, count: int) -> Interval:
    """The 95 % interval of a share of ``count`` examples, by Wilson's score (1927)."""
    square = NORMAL_95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def _memory(key: str) -> Callable[[Result], float | None]:
    return lambda result: result.memory.get(key)


def _score(name: str, point: str) -> Callable[[Result], float | None]:
    return lambda result: result.evaluation.get(point, {}).get(name)


def _share_interval(name: str) -> Callable[[Result], Interval | None]:
    """Of the share of test examples that are right."""

    def interval(result: Result) -> Interval | None:
        test = result.evaluation.get("test", {})
        return binomial_interval(test[name], int(test["count"])) if name in test else None

    return interval


def _seconds_interval(result: Result) -> Interval | None:
    """Of the median over steps; None for too few steps."""
    return median_interval(result.measured_seconds)


def _throughput(result: Result) -> float | None:
    """Of a task, whose examples are shorter than the longest that they may be, tokens are not counted."""
    step = result.step_seconds
    return result.tokens_per_step / step if step and result.spec.task == "none" else None


def _throughput_interval(result: Result) -> Interval | None:
    seconds = _seconds_interval(result)
    return None if seconds is None else (result.tokens_per_step / seconds[1], result.tokens_per_step / seconds[0])


def _median(part: str) -> Callable[[Result], float | None]:
    return lambda result: statistics.median(values) if (values := result.parts.get(part, [])) else None


def _stall_share(result: Result) -> float | None:
    stall, step = _median("checkpoint_stall_seconds")(result), result.step_seconds
    return stall / step if stall is not None and step else None


_MEMORY = "1 {unit} here is {size} bytes, as nvidia-smi counts and the papers print."
_NO_TASK = ("—", "the run did not evaluate a task")
_NOT_ANSWERED = ("—", "the run did not answer questions")
_NOT_SAVED = ("—", "the run took no checkpoint")

GPU_MEMORY = Quantity(
    name="gpu_memory", key="device_peak_bytes", value=_memory("device_peak_bytes"), base_unit="bytes", units=BYTES,
    about=_MEMORY,
)  # fmt: skip
HOST_MEMORY = Quantity(
    name="host_memory", key="host_rss_peak_bytes", value=_memory("host_rss_peak_bytes"), base_unit="bytes",
    units=BYTES, about=_MEMORY,
)  # fmt: skip
THROUGHPUT = Quantity(
    name="throughput", key="throughput", value=_throughput, base_unit="tokens/s", units={"tokens/s": 1},
    bounds=_throughput_interval, timed=True,
)  # fmt: skip
STEP_TIME = Quantity(
    name="step_time", key="step_seconds", value=lambda result: result.step_seconds, base_unit="s", units={"s": 1},
    bounds=_seconds_interval, timed=True,
)  # fmt: skip
ACCURACIES = tuple(
    Quantity(
        name=name,
        key=name,
        value=_score("accuracy", point),
        base_unit="1",
        units=PERCENT,
        absent=_NO_TASK,
        bounds=bounds,
    )
    for name, point, bounds in (
        ("accuracy", "test", _share_interval("accuracy")),
        ("dev_accuracy", "best", lambda result: None),
        ("start_accuracy", "start", lambda result: None),
    )
)
"""On test with the weights that were best on dev; on dev with them; on dev before the first step."""
SCORES = (
    Quantity(
        name="f1", key="f1", value=_score("f1", "test"), base_unit="1", units=PERCENT, absent=_NOT_ANSWERED,
        about="F1: the mean over questions of the words that the answer shares with a right one (SQuAD).",
    ),
    Quantity(
        name="exact_match", key="exact_match", value=_score("exact_match", "test"), base_unit="1", units=PERCENT,
        about="Exact match: the share of answers that are a right one, but for case, punctuation and articles.",
        absent=_NOT_ANSWERED, bounds=_share_interval("exact_match"),
    ),
    Quantity(
        name="perplexity", key="perplexity", value=_score("perplexity", "test"), base_unit="1", units={"": 1},
        about="Perplexity: the exponential of the mean loss of a token.",
        absent=("—", "the run did not go on with a text"),
    ),
)  # fmt: skip
"""On test with the weights that were best on dev, of tasks that are not scored by an accuracy."""
UPDATE_SURVIVAL = Quantity(
    name="update_survival", key="update_survival", part="update_survival",
    value=lambda result: next(iter(result.parts.get("update_survival", [])), None), base_unit="1", units=PERCENT,
    about="Update kept: how much of the intended updates is in the weights after rounding.", share=True,
    absent=("—", "it was not asked for (survival=true)"),
)  # fmt: skip
CHECKPOINTS = (
    Quantity(
        name="checkpoint_stall", key="checkpoint_stall_seconds", part="checkpoint_stall_seconds",
        value=_median("checkpoint_stall_seconds"), base_unit="s", units={"ms": 1e-3, "s": 1}, absent=_NOT_SAVED,
    ),
    Quantity(
        name="checkpoint_stall_share", key="checkpoint_stall_share", value=_stall_share, base_unit="1", units=PERCENT,
        about="Stall: how long the median checkpoint held the steps up, over the time of the median step.",
        share=True, absent=_NOT_SAVED,
    ),
    Quantity(
        name="checkpoint_time", key="checkpoint_seconds", part="checkpoint_seconds",
        value=_median("checkpoint_seconds"), base_unit="s", units={"s": 1}, absent=_NOT_SAVED,
    ),
    Quantity(
        name="checkpoint_copies", key="checkpoint_bytes", value=_memory("checkpoint_bytes"), base_unit="bytes",
        units=BYTES, absent=_NOT_SAVED,
    ),
)  # fmt: skip
