"""The fast engine against a plain MeZO loop, interleaved in one run; run with ``pytest tests/benchmarks -s``.

Nothing is asserted about time: ratios of medians are printed and stored with the benchmark.
"""

import statistics
import time

import pytest
import torch

from tests.support.reference import mezo
from zobench import ZOSGD, Engine, EngineConfig, RunSpec, kernels, models
from zobench.data.tokens import stream
from zobench.models import weights


def batches(name, seq_len):
    config = models.build_config(name)
    return stream(RunSpec(model=name, seq_len=seq_len), config.vocab_size, config.pad_token_id)


def plain(name, dtype):
    model = models.build(name, dtype)
    weights.materialise(model, weights.RandomWeights(model, 0), "cpu")
    return model


def fast(name, dtype, **config):
    model = models.build(name, dtype)
    config = {"placement": "resident", "noise": "counter", **config}
    return Engine(model, EngineConfig(**config), weights=weights.RandomWeights(model, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seq_len", "rounds"), [("OPT-125M", 256, 5), ("OPT-125M", 2048, 3), ("OPT-1.3B", 64, 3)]
)
def test_counter_noise_resident_against_plain_mezo(benchmark, capsys, name, seq_len, rounds):
    """fp32, batch 1: one step of each in turn, after one of each to warm up; fewer rounds where a step takes long."""
    kernels.prepare()
    model, data, method = plain(name, "fp32"), batches(name, seq_len), ZOSGD(lr=1e-7)
    seconds = {"MeZO": [], "zobench": []}
    with fast(name, "fp32") as engine:

        def timed(label, action):
            began = time.perf_counter()
            action()
            seconds[label].append(time.perf_counter() - began)

        def round_():
            batch, seed = next(data), len(seconds["MeZO"])
            timed("MeZO", lambda: mezo(model, [batch], [seed], eps=1e-3, lr=1e-7))
            timed("zobench", lambda: method.step(engine, batch))

        benchmark.pedantic(round_, rounds=rounds, warmup_rounds=1)
    median = {label: statistics.median(values[1:]) for label, values in seconds.items()}
    ratio = median["MeZO"] / median["zobench"]
    benchmark.extra_info |= {"ratio": ratio, **median}
    with capsys.disabled():
        print(f"\n{name} fp32 b1 s{seq_len}: MeZO {median['MeZO']:.3f} s, zobench {median['zobench']:.3f} s, "
              f"{ratio:.2f} times faster ({torch.get_num_threads()} threads)")  # fmt: skip
