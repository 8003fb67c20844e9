"""The engine's step beside a step of a plain MeZO loop, in turn: ``make bench``, or ``pytest tests/benchmarks -s``.

Every number is a ratio of one round: seconds of zobench's step / seconds of the plain step just before it. So what
pytest-benchmark saves and compares depends little on the machine and on what else it does. Nothing is asserted here;
``make bench`` fails where a median is a fifth above the saved one.
"""

import statistics
import time

import pytest
import torch

from tests.support.reference import mezo
from zobench import ZOSGD, Engine, EngineConfig, RunSpec, kernels, models
from zobench.data.batch import stream
from zobench.models import weights

ENGINES = {
    "MeZO": {"placement": "resident"},
    "ZO2": {"placement": "offload", "tier": "pageable"},
    "zobench resident": {"placement": "resident", "noise": "counter"},
    "zobench offloaded": {"placement": "offload", "tier": "pageable", "noise": "counter", "writeback_every": "inf"},
}
plain_seconds = 1.0


def plain_steps():
    """A clock whose unit is the last plain step."""
    return time.perf_counter() / plain_seconds


def measure(benchmark, capsys, name, seq_len, rounds, engine):
    """fp32, batch 1: one step of each in turn, after one of each to warm up; prints and keeps the ratio's median.

    Where nothing is measured: a tiny model's step of each.
    """
    kernels.prepare()
    if benchmark.disabled:
        name, seq_len = "opt-tiny", 16
    config, method, pairs = models.build_config(name), ZOSGD(lr=1e-7), []
    data = stream(RunSpec(model=name, seq_len=seq_len), config.vocab_size, config.pad_token_id)
    plain, streamed = models.build(name, "fp32"), models.build(name, "fp32")
    weights.materialise(plain, weights.RandomWeights(plain, 0), "cpu")

    def plain_step():
        global plain_seconds
        batch, began = next(data), time.perf_counter()
        mezo(plain, [batch], [len(pairs)], eps=1e-3, lr=1e-7)
        plain_seconds = time.perf_counter() - began
        pairs.append(plain_seconds)
        return (batch,), {}

    with Engine(streamed, EngineConfig(**ENGINES[engine]), weights=weights.RandomWeights(streamed, 0)) as built:
        step = lambda batch: method.step(built, batch)  # noqa: E731
        benchmark.pedantic(step, setup=plain_step, rounds=rounds, warmup_rounds=1)
    if benchmark.disabled:
        return
    ratio = benchmark.stats.stats.median
    benchmark.extra_info |= {"plain_seconds": statistics.median(pairs[1:]), "threads": torch.get_num_threads()}
    with capsys.disabled():
        print(f"\n{name} fp32 b1 s{seq_len}, {engine}: {ratio:.3f} of a plain MeZO step "
              f"({benchmark.extra_info['plain_seconds']:.3f} s), {1 / ratio:.2f} times as fast")  # fmt: skip


@pytest.mark.benchmark(timer=plain_steps)
@pytest.mark.parametrize("engine", ENGINES)
def test_step_in_plain_steps(benchmark, capsys, engine):
    measure(benchmark, capsys, "OPT-125M", 64, 3, engine)


@pytest.mark.benchmark(timer=plain_steps)
@pytest.mark.parametrize(
    ("name", "seq_len", "rounds"), [("OPT-125M", 256, 5), ("OPT-125M", 2048, 3), ("OPT-1.3B", 64, 3)]
)
def test_counter_noise_at_other_sizes(benchmark, capsys, name, seq_len, rounds):
    """The table of docs/fast-engine.md; fewer rounds where a step takes long."""
    measure(benchmark, capsys, name, seq_len, rounds, "zobench resident")
