"""The metrics that a result itself measured: memory, step times, accuracies, checkpoints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zobench.result import Outcome, Result
from zobench.result.quantity import Interval, Quantity
from zobench.runspec import METHODS
from zobench.stats.intervals import median_interval, repeats_interval, wilson_interval

BYTES = {"MB": 2**20, "GB": 2**30}
PERCENT = {"%": 0.01}


def per_run(of_run: Callable[[Result], float | None], **rest: Any) -> Quantity:
    """Returns the quantity of which each process has its own value, ``of_run``: the median of those that have it, with
    its interval, which is None for one run alone, or where one has no value."""

    def median(result: Result) -> float | None:
        values = [number for run in result.runs if (number := of_run(run)) is not None]
        return statistics.median(values) if values else None

    def interval(result: Result) -> Interval | None:
        values = [number for run in result.runs if (number := of_run(run))]
        return repeats_interval(values) if len(values) == len(result.runs) else None

    return Quantity(value=median, bounds=interval, per_run=True, **rest)


def _bytes(name: str, key: str, of_run: Callable[[Result], float | None] | None = None, **rest: Any) -> Quantity:
    """Bytes that each process has: ``of_run``, or what is in its ``Result.memory`` under ``key``."""
    value = of_run or (lambda run: run.memory.get(key))
    return per_run(value, name=name, key=key, steady=True, base_unit="bytes", units=BYTES, **rest)


def _score(
    name: str, score: str = "", point: str = "test", *, units: Mapping[str, float] = PERCENT, **rest: Any
) -> Quantity:  # fmt: skip
    """Returns the quantity of a run's score at ``point`` of its evaluation: ``score``, or what ``name`` says."""
    return Quantity(
        name=name, key=name, value=lambda result: result.evaluation.get(point, {}).get(score or name), base_unit="1",
        units=units, learned=True, **rest,
    )  # fmt: skip


def _share_interval(name: str) -> Callable[[Result], Interval | None]:
    def interval(result: Result) -> Interval | None:
        test = result.evaluation.get("test", {})
        return wilson_interval(test[name], int(test["count"])) if name in test else None

    return interval


def _seconds_interval(result: Result) -> Interval | None:
    """Returns the interval of the median over processes where there are several, else over steps; None for too few."""
    is_repeated = len(result.runs) > 1
    return repeats_interval(result.run_seconds) if is_repeated else median_interval(result.measured_seconds)


def _throughput_interval(result: Result) -> Interval | None:
    seconds = _seconds_interval(result)
    return None if seconds is None else (result.tokens_per_step / seconds[1], result.tokens_per_step / seconds[0])


def _median(part: str) -> Callable[[Result], float | None]:
    return lambda result: statistics.median(values) if (values := result.parts.get(part, [])) else None


def _stall_share(result: Result) -> float | None:
    stall, step = _median("checkpoint_stall_seconds")(result), result.step_seconds
    return stall / step if stall is not None and step else None


def _loss_difference(result: Result, other: Result) -> float | None:
    """The largest difference of the losses of a step; None unless both are ok and took the same steps: only what ran
    them, and how many there were, may differ, and not the order in which z is drawn for the parameters."""
    if not result.outcome is other.outcome is Outcome.OK or _steps_of(result) != _steps_of(other) or result is other:
        return None
    if result.environment.own_order or other.environment.own_order:
        return None
    pairs = zip(_losses(result), _losses(other), strict=False)
    differences = [abs(loss - other_loss) for loss, other_loss in pairs if loss is not None and other_loss is not None]
    return max(differences, default=None)


_RUN_BY = ("program", "engine", "tier", "steps", "warmup", "parts", "survival")


def _steps_of(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.spec.to_dict().items() if name not in _RUN_BY}


def _losses(result: Result) -> list[float | None]:
    return [*result.warmup.get("loss", []), *result.samples.get("loss", [])]


def _memory_of(result: Result) -> Sequence[str]:
    if result.spec.device.startswith("cpu"):
        return ["Measured on a CPU: the process's peak resident memory above its baseline, not GPU memory."]
    if result.memory.get("device_wide_peak_bytes") is not None:
        return ["Measured by NVML, as the papers do: all that the GPU has in use, context and cache too."]
    return ["Measured as the allocator's peak; the paper reads NVML, which adds the CUDA context and the cache."]


def _of_device(run: Result) -> float | None:
    """Returns the papers' peak memory of a GPU where NVML was read; else that of torch's allocator, or of a CPU."""
    wide = None if run.spec.device.startswith("cpu") else run.memory.get("device_wide_peak_bytes")
    return run.memory.get("device_peak_bytes") if wide is None else wide


def _of_process(run: Result) -> float | None:
    on_cpu = run.spec.device.startswith("cpu")
    return run.memory.get("device_peak_bytes" if on_cpu else "device_process_peak_bytes")


def _evaluated(result: Result) -> Sequence[str]:
    """Returns remarks on the accuracy of a run: that of the most frequent answer, and which formula of a method that
    has two ran."""
    evaluation = result.evaluation
    if "test" not in evaluation:
        return ["The test set was not looked at (test_size=0)."]
    count, majority = evaluation["test"]["count"], evaluation["majority"]["test"]
    commonest = "" if majority is None else f"; always giving the commonest answer is right in {majority:.1%}"
    notes = [f"Of {count} test examples{commonest}."]
    two = METHODS.get(result.spec.method).as_shipped is not None
    return notes + ([f"{result.spec.definition}: {evaluation['definition']}."] if two else [])


_MEMORY = "1 {unit} here is {size} bytes, as nvidia-smi counts and the papers print."
_NO_TASK = ("—", "the run did not evaluate a task")
_NOT_ANSWERED = ("—", "the run did not answer questions")
_NOT_SAVED = ("—", "the run took no checkpoint")

GPU_MEMORY = _bytes("gpu_memory", "device_peak_bytes", _of_device, about=_MEMORY, remarks=_memory_of)
ALLOCATED_MEMORY = _bytes("allocated_memory", "device_peak_bytes")
"""The peak of the allocator's tensors, which is the same to the byte from run to run: what a comparison takes."""
HOST_MEMORY = _bytes("host_memory", "host_rss_peak_bytes", about=_MEMORY)
PROCESS_MEMORY = _bytes(
    "process_memory", "process_peak_bytes", _of_process, about=f"{_MEMORY} It is the process's: on a GPU as NVML "
    "counts it, CUDA's context and torch's cache included; on a CPU its peak resident memory above its baseline.",
    absent=("n/a", "NVML shows no process's memory here"),
)  # fmt: skip
THROUGHPUT = Quantity(
    name="throughput", key="throughput", value=lambda result: result.tokens_per_second, base_unit="tokens/s",
    units={"tokens/s": 1}, bounds=_throughput_interval, timed=True, rate=True,
)  # fmt: skip
STEP_TIME = Quantity(
    name="step_time", key="step_seconds", value=lambda result: result.step_seconds, base_unit="s", units={"s": 1},
    bounds=_seconds_interval, timed=True,
)  # fmt: skip
LOSS_DIFFERENCE = Quantity(
    name="loss_difference", key="loss_difference", value=lambda result: None, beside=_loss_difference,
    base_unit="nats", units={"nats": 1}, share=True,
    about="Loss difference: the largest over all steps from the baseline's loss, where weights, tokens and seeds are "
    "equal.",
    absent=("—", "it is the baseline, or its weights, tokens or directions are others"),
)  # fmt: skip


def _joules_per_token(run: Result) -> float | None:
    """Returns the energy of a token over all measured steps, as the device or the CPU packages used it meanwhile."""
    joules = run.power.get("energy_joules")
    steps = len(run.measured_seconds) + (run.environment.warm_up_detected or 0)
    return joules / (steps * run.tokens_per_step) if joules and steps and run.spec.task == "none" else None


def _cost(run: Result) -> float | None:
    """Returns the cost of a million tokens at the run's median step, in the currency of the price of an hour."""
    price, speed = run.environment.price_per_hour, run.tokens_per_second
    return price / 3600 * 1e6 / speed if price is not None and speed else None


def _seconds_to_target(run: Result) -> float | None:
    """Returns the seconds of steps, without evaluations, until the first evaluation on dev that was as good as the
    target; None of a task that is scored by something else than an accuracy."""
    target, scores = run.environment.target_accuracy, run.scores
    if target is None or "accuracy" not in scores:
        return None
    step = step_at(run, target, scores.index("accuracy"))
    return None if step is None else seconds_until(run, step)


def step_at(run: Result, target: float, score: int = 0) -> int | None:
    """The step of the first evaluation on dev whose ``score``, by number, reaches the target; None of the start."""
    return next((int(row[0]) for row in run.evaluation.get("curve", []) if row[2 + score] >= target), 0) or None


def seconds_until(run: Result, step: int) -> float | None:
    """Seconds of the first ``step`` steps, without evaluations; None unless all of them were timed."""
    seconds = run.samples.get("step_seconds", [])[:step]
    return math.fsum(filter(None, seconds)) if len(seconds) == step and None not in seconds else None


COSTS = (
    per_run(
        _joules_per_token,
        name="energy_per_token",
        key="energy_per_token_joules",
        base_unit="J/token",
        units={"J/token": 1, "mJ/token": 1e-3},
        about="Energy: of the GPU (NVML), on a CPU of its packages (RAPL), during the measured steps, by {unit}.",
        absent=("—", "no counter of energy could be read"),
    ),
    per_run(
        _cost,
        name="cost",
        key="cost_per_million_tokens",
        base_unit="1/1e6 tokens",
        units={"1/1e6 tokens": 1},
        about="Cost of a million tokens, in the currency of the price of an hour.",
        absent=("—", "no price of an hour was named (--price)"),
    ),
    per_run(
        _seconds_to_target,
        name="time_to_accuracy",
        key="seconds_to_accuracy",
        base_unit="s",
        units={"s": 1, "min": 60},
        learned=True,
        about="Time to accuracy: of steps, until an evaluation on dev first reached the target.",
        absent=("—", "no accuracy was named (--accuracy), or it was not reached"),
    ),
)
"""Energy, money and time, of what each process has its own."""
ACCURACIES = (
    _score("accuracy", bounds=_share_interval("accuracy"), remarks=_evaluated, absent=_NO_TASK),
    _score("dev_accuracy", "accuracy", "best", absent=_NO_TASK),
    _score("start_accuracy", "accuracy", "start", absent=_NO_TASK),
)
"""On test with the weights that were best on dev; on dev with them; on dev before the first step."""
SCORES = (
    _score(
        "f1", about="F1: the mean over questions of the words that the answer shares with a right one (SQuAD).",
        absent=_NOT_ANSWERED,
    ),
    _score(
        "exact_match", bounds=_share_interval("exact_match"), absent=_NOT_ANSWERED,
        about="Exact match: the share of answers that are a right one, but for case, punctuation and articles.",
    ),
    _score(
        "perplexity", units={"": 1}, about="Perplexity: the exponential of the mean loss of a token.",
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
    per_run(
        _median("checkpoint_stall_seconds"), name="checkpoint_stall", key="checkpoint_stall_seconds",
        part="checkpoint_stall_seconds", base_unit="s", units={"ms": 1e-3, "s": 1}, absent=_NOT_SAVED,
    ),
    per_run(
        _stall_share, name="checkpoint_stall_share", key="checkpoint_stall_share", base_unit="1", units=PERCENT,
        about="Stall: how long the median checkpoint held the steps up, over the time of the median step.",
        share=True, absent=_NOT_SAVED,
    ),
    per_run(
        _median("checkpoint_seconds"), name="checkpoint_time", key="checkpoint_seconds", part="checkpoint_seconds",
        base_unit="s", units={"s": 1}, absent=_NOT_SAVED,
    ),
    _bytes("checkpoint_copies", "checkpoint_bytes", absent=_NOT_SAVED),
)  # fmt: skip
