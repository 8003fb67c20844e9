"""How fast the pieces are on this machine. Nothing is asserted about time: run with ``pytest tests/benchmarks -s``."""

import itertools
import statistics
import subprocess
import sys
import time

import pytest
import torch

from zobench import ZOSGD, Engine, EngineConfig, RunSpec, models
from zobench.data.tokens import stream
from zobench.engine import schedule
from zobench.engine.noise import TorchNoise
from zobench.measure.sampler import Sampler
from zobench.models import weights


def test_building_a_schedule_of_96_blocks(benchmark):
    assert len(benchmark(schedule.step, 96, 3)) == 288


def test_drawing_and_adding_noise(benchmark):
    weight = torch.zeros(4 << 20)
    noise = TorchNoise([[(weight.shape, weight.dtype)]])

    def move():
        for _, _, w, z in noise.draw(0, 0, [weight]):
            w.add_(z.mul_(1e-3))

    benchmark.pedantic(move, rounds=5, warmup_rounds=1)
    benchmark.extra_info["elements_per_second"] = weight.numel() / benchmark.stats.stats.median


def test_help_starts_without_torch(benchmark):
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, "-m", "zobench", "--help"], check=True, capture_output=True), rounds=5
    )


def build(tmp_path, **config):
    spec = RunSpec(model="OPT-125M", seq_len=64)
    model = models.build(spec.model, "fp32")
    batches = stream(spec, model.config.vocab_size, model.config.pad_token_id)
    engine = Engine(model, EngineConfig(disk_dir=tmp_path, **config), weights=weights.RandomWeights(model, 0))
    return engine, ZOSGD(lr=1e-7), batches


@pytest.mark.slow
def test_step_of_an_offloaded_model_against_its_parts_and_a_resident_one(benchmark, tmp_path, capsys):
    """OPT-125M, fp32, 64 tokens, disk tier; the four durations are taken in turn and compared by their medians."""
    offloaded, resident = build(tmp_path, tier="disk"), build(tmp_path, placement="resident")
    seconds = {"offload": [], "resident": [], "transfer": [], "compute": []}

    def timed(name, action):
        began = time.perf_counter()
        action()
        seconds[name].append(time.perf_counter() - began)

    def steps(setup):
        engine, method, batches = setup
        return lambda: method.step(engine, next(batches))

    def round_():
        timed("offload", steps(offloaded))
        timed("resident", steps(resident))
        timed("transfer", offloaded[0].transfer_only)
        with offloaded[0].compute_only():
            timed("compute", steps(offloaded))

    benchmark.pedantic(round_, rounds=5, warmup_rounds=1)
    median = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    for engine, _, _ in (offloaded, resident):
        engine.close()
    floor = max(median["transfer"], median["compute"])
    with capsys.disabled():
        told = ", ".join(f"{name} {value:.3f} s" for name, value in median.items())
        print(f"\n{told}; step / larger part {median['offload'] / floor:.2f}, offload / resident "
              f"{median['offload'] / median['resident']:.2f}")  # fmt: skip


def test_cost_of_the_sampler(benchmark):
    with Sampler() as sampler:
        benchmark.pedantic(time.sleep, args=(2.0,), rounds=1)
    assert sampler.samples.overhead is not None
    benchmark.extra_info["cores"] = sampler.samples.overhead


def test_making_random_weights(benchmark):
    model = models.build("OPT-1.3B", "fp32")
    source, out = weights.RandomWeights(model, 0), torch.empty(8192, 2048)
    names = [f"model.decoder.layers.{i}.fc1.weight" for i in range(8)]
    benchmark.pedantic(
        lambda: [source.fill(name, out) for name in itertools.islice(names, 8)], rounds=3, warmup_rounds=1
    )
