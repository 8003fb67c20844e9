"""Where a step's seconds go: products, attention, copies, softmax, noise, against this machine's rates.

``python -m tools.step_profile model=OPT-125M seq_len=512 dtype=bf16 method=lozo noise=counter`` takes
fields of a run. With a task its batches are profiled (``ZOBENCH_DATA_DIR``), without one random tokens. Seconds are
of one step: the torch operators' own time as its profiler has it, and of zobench's kernels the time of their calls.
"""

import contextlib
import functools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from zobench import kernels, models
from zobench.cli.common import changed
from zobench.data.batch import stream
from zobench.data.tasks.task_data import TaskData
from zobench.measure.calibrate import matmul_rate
from zobench.models import tokenizers
from zobench.models.source import identified
from zobench.recipes import matrix
from zobench.training import assemble
from zobench.training.run import usual_data_dir

KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::linear", "mkldnn"),
    "attention": ("scaled_dot_product", "aten::bmm", "aten::baddbmm", "flash"),
    "softmax": ("softmax", "aten::exp", "logsumexp"),
    "copies": ("aten::copy_", "aten::cat", "aten::index", "aten::clone", "aten::fill_", "aten::zero_"),
}
"""By the beginning or a part of an operator's name; the first that fits counts, what fits none is "other"."""
KERNELS = ("advance", "advance_flat", "flip", "normals", "normals_each")


def step_of(values: dict[str, Any], steps: int) -> tuple[contextlib.ExitStack, Callable[[int], object]]:
    """What closes the engine of a run with ``values``, and a function that takes its step n."""
    spec = identified(matrix.asked({"steps": steps, "weights": "random", **values})).resolve("cpu")
    during = contextlib.ExitStack()
    built = during.enter_context(assemble.tuner(spec))
    if spec.task == "none":
        model: Any = built.engine.model
        first = next(stream(spec, model.config.vocab_size, None))
        return during, lambda _: built.method.step(built.engine, first)
    words, _ = tokenizers.load(spec)
    data = TaskData.load(
        spec, words, positions=models.position_count(spec), masked=models.of(spec).masked, data_dir=usual_data_dir()
    )
    return during, lambda n: built.method.step(built.engine, data.train_batch(n))


@contextlib.contextmanager
def timed_kernels(seconds: dict[str, float]) -> Iterator[None]:
    """Inside, the seconds of calls of zobench's kernels are added to ``seconds["noise"]``."""
    plain = {name: getattr(kernels, name) for name in KERNELS if hasattr(kernels, name)}

    def timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds["noise"] += time.perf_counter() - begin

    for name, function in plain.items():
        setattr(kernels, name, functools.partial(timed, function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(kernels, name, function)


def kind_of(operator: str) -> str:
    """The row of the table that an operator's seconds are part of."""
    return next((kind for kind, parts in KINDS.items() if any(part in operator for part in parts)), "other")


def measured(values: dict[str, Any], steps: int = 6) -> tuple[dict[str, float], float]:
    """(seconds of a step by kind, and "step", the median of the whole; the rate of its products in FLOP/s)."""
    during, take = step_of(values, steps)
    with during:
        kernels.prepare("cpu")
        take(0), take(1)
        seconds = defaultdict[str, float](float)
        whole = []
        with timed_kernels(seconds), profile(activities=[ProfilerActivity.CPU], with_flops=True) as seen:
            for number in range(2, 2 + steps):
                begin = time.perf_counter()
                take(number)
                whole.append(time.perf_counter() - begin)
        operations: float = 0
        for row in seen.key_averages():
            seconds[kind_of(row.key)] += row.self_cpu_time_total / 1e6
            operations += row.flops if kind_of(row.key) == "products" else 0
    rate = operations / seconds["products"] if seconds["products"] else 0.0
    shares = sorted(seconds.items(), key=lambda share: -share[1])
    return {"step": statistics.median(whole), **{kind: total / steps for kind, total in shares}}, rate


def main(arguments: list[str]) -> None:
    """Prints the table of one step, and the rate of its products beside that of large ones on this machine."""
    values = changed(arguments)
    table, rate = measured(values)
    step = table.pop("step")
    dtype = "bf16" if "bf16" in (values.get("dtype"), values.get("autocast")) else values.get("dtype", "fp32")
    print(f"{' '.join(arguments)}: {step:.4f} s a step, {torch.get_num_threads()} threads")
    for kind, spent in table.items():
        print(f"  {kind:10} {spent:8.4f} s  {spent / step:5.0%}")
    largest = matmul_rate("cpu", dtype, 1.0)
    print(f"  products in {dtype}: {rate / 1e9:.0f} GFLOP/s, of {largest / 1e9:.0f} that large ones reach here")


if __name__ == "__main__":
    main(sys.argv[1:])
