"""Where the seconds of a resident step go on this machine's CPU, part by part, beside the floor of that step.

``python -m tests.benchmarks.parts OPT-125M 2048 counter 3`` times three steps without a profiler, with their page
faults and the system's own seconds, then looks at one with torch's. ``torch`` in place of ``counter`` is MeZO's step. A
cell's process has its allocator set; for the same set ``GLIBC_TUNABLES`` (:data:`zobench.execute.process.MALLOC`).
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from zobench import Batch, Engine, EngineConfig, kernels, models
from zobench.engine import head, loss
from zobench.engine.in_place import InPlace
from zobench.engine.pristine import Pristine
from zobench.measure.calibrate import calibrate
from zobench.methods import ZOSGD
from zobench.models.weights import RandomWeights
from zobench.predict.seconds import Rates, floor_seconds
from zobench.runspec import RunSpec

STEP, NOISE, HEAD, LOSS, MOVES = "zobench.step", "zobench.noise", "zobench.head", "zobench.loss", "zobench.moves"
RANGES = (STEP, NOISE, HEAD, LOSS, MOVES)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
COPIES = ("copy_", "clone", "cat", "_to_copy", "fill_", "zero_", "contiguous")
SUMS = ("relu", "gelu", "silu", "add", "mul", "clamp_min", "add_", "mul_")
MEMORY = ("empty", "resize_", "empty_like", "empty_strided")


def named(owner: Any, name: str, label: str) -> None:
    """From now on the calls of ``owner.name`` are a range of the profiler's, ``label``."""
    plain: Callable[..., Any] = getattr(owner, name)

    def inside(*args: Any, **kwargs: Any) -> Any:
        with record_function(label):
            return plain(*args, **kwargs)

    setattr(owner, name, inside)


def name_ranges() -> None:
    """The engine's own passes over weights, its head and its loss."""
    for name in ("advance", "advance_flat", "flip", "normals"):
        named(kernels, name, NOISE)
    named(InPlace, "at", MOVES)
    for owner in (InPlace, Pristine):
        named(owner, "judge", HEAD)
    named(head.Head, "logits", HEAD)
    named(head, "log_probabilities", LOSS)
    named(loss.RunningLoss, "add", LOSS)


def part(event: Any) -> str:
    """What an event of the profiler's counts as."""
    if event.name in RANGES:
        return "noise and moves" if event.name in (NOISE, MOVES) else "Python"
    inside, name = event.cpu_parent, event.name.removeprefix("aten::")
    while inside is not None and inside.name not in RANGES:
        inside = inside.cpu_parent
    within = STEP if inside is None else inside.name
    if within in (NOISE, MOVES):
        return "noise and moves"
    if event.name in PRODUCTS:
        return "head's products" if within == HEAD else "products"
    if name in MEMORY:
        return "memory"
    if within in (HEAD, LOSS):
        return "loss"
    if "attention" in name:
        return "attention"
    if "norm" in name:
        return "norms"
    if name in COPIES:
        return "copies"
    return "activations and sums" if name in SUMS else "small operators"


def seconds_by_part(step: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """Seconds of one step by :func:`part`, and by the names of the operators of each part."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(STEP):
        step()
    parts, names = Counter[str](), Counter[str]()
    for event in profiler.events():
        own = event.self_cpu_time_total / 1e6
        parts[part(event)] += own
        names[f"{part(event)}: {event.name}"] += own
    return parts, names


def resident(name: str, tokens: int, noise: str) -> Callable[[], object]:
    """A step of ZO-SGD over one row of so many tokens, in fp32."""
    ids = torch.randint(5, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    model = models.build(name, "fp32")
    engine = Engine(model, EngineConfig(placement="resident", noise=noise), weights=RandomWeights(model, 0))
    method = ZOSGD(lr=1e-7)
    return lambda: method.step(engine, Batch(ids, ids))


def main(name: str, tokens: int, noise: str, rounds: int) -> None:
    """Prints what was measured. With no rounds the profiled step alone, without one before it, is run."""
    kernels.prepare("cpu")
    spec = RunSpec(model=name, seq_len=tokens, noise=noise).resolve("cpu")
    rates = Rates.of(calibrate("cpu"))
    step = resident(name, tokens, noise)
    told: list[tuple[float, float, int]] = []
    for _ in range(rounds + 1 if rounds else 0):
        before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        step()
        took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
        told.append((took, after.ru_stime - before.ru_stime, after.ru_minflt - before.ru_minflt))
    name_ranges()
    parts, names = seconds_by_part(step)
    whole, floor = sum(parts.values()), floor_seconds(spec, rates)
    print(f"{name}, {tokens} tokens, {noise} noise, {torch.get_num_threads()} threads; floor {floor:.4f} s")
    print(f"products {rates.flops['fp32'] / 1e9:.1f} GFLOP/s, {rates.operators['fp32']}")
    if told:
        took, system, faults = (statistics.median(column) for column in zip(*told[1:], strict=True))
        print(
            f"a step {took:.4f} s (floor {100 * floor / took:.1f} %), {system:.4f} s the system's, {faults:.0f} faults"
        )
    print(f"profiled: {whole:.4f} s")
    for key, seconds in parts.most_common():
        print(f"  {key:24} {seconds:9.4f} s  {100 * seconds / whole:5.1f} %")
    for key, seconds in names.most_common(24):
        print(f"    {key:50} {seconds:9.4f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
