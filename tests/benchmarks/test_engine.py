"""How fast the pieces are on this machine. Nothing is asserted about time: run with ``pytest tests/benchmarks -s``."""

import statistics
import subprocess
import sys
import time

import torch

from zobench import ZOSGD, Engine, EngineConfig, RunSpec, models
from zobench.data.tokens import stream
from zobench.engine.directions.noise import TorchNoise
from zobench.engine.transfers import schedule
from zobench.measure.sampler import Sampler
from zobench.models import weights


def test_building_a_schedule_of_96_blocks(benchmark):
    assert len(benchmark(schedule.step, 96, 3)) == 288


def test_drawing_and_adding_noise(timed, small):
    weight = torch.zeros(1 << 16 if small else 4 << 20)
    noise = TorchNoise([[(weight.shape, weight.dtype)]])

    def move():
        for _, _, w, z in noise.draw(0, 0, [weight]):
            w.add_(z.mul_(1e-3))

    timed(move, weight.numel(), "elements")


def test_help_starts_without_torch(benchmark):
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, "-m", "zobench", "--help"], check=True, capture_output=True), rounds=5
    )


def build(name, tmp_path, **config):
    spec = RunSpec(model=name, seq_len=64)
    model = models.build(spec.model, "fp32")
    batches = stream(spec, model.config.vocab_size, model.config.pad_token_id)
    engine = Engine(model, EngineConfig(disk_dir=tmp_path, **config), weights=weights.RandomWeights(model, 0))
    return engine, ZOSGD(lr=1e-7), batches


def test_step_of_an_offloaded_model_against_its_parts_and_a_resident_one(benchmark, small, tmp_path, capsys):
    """OPT-125M, fp32, 64 tokens, disk tier; the four durations are taken in turn and compared by their medians."""
    name = "opt-tiny" if small else "OPT-125M"
    offloaded, resident = build(name, tmp_path, tier="disk"), build(name, tmp_path, placement="resident")
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
    for engine, _, _ in (offloaded, resident):
        engine.close()
    if small:
        return
    median = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    floor = max(median["transfer"], median["compute"])
    with capsys.disabled():
        told = ", ".join(f"{name} {value:.3f} s" for name, value in median.items())
        print(f"\n{told}; step / larger part {median['offload'] / floor:.2f}, offload / resident "
              f"{median['offload'] / median['resident']:.2f}")  # fmt: skip


def test_cost_of_the_sampler(benchmark, small):
    with Sampler() as sampler:
        benchmark.pedantic(time.sleep, args=(1.0 if small else 2.0,), rounds=1)
    assert sampler.samples.overhead is not None
    benchmark.extra_info["cores"] = sampler.samples.overhead


def test_making_random_weights(timed):
    model = models.build("OPT-1.3B", "fp32")
    source, out = weights.RandomWeights(model, 0), torch.empty(8192, 2048)
    timed(lambda: source.fill("model.decoder.layers.0.fc1.weight", out), out.numel(), "elements")
