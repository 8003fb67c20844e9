"""Counter noise on CUDA: races, waits, memory against the ledger, bandwidth, overlap."""

import collections
import contextlib
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn import functional

import zobench
from tests.support.devices import ON_GPU
from zobench import ZOSGD, Batch, Engine, EngineConfig, RunSpec, models
from zobench.engine.weights import blocks as units
from zobench.execute.process import run_in_process
from zobench.measure.ledger import Ledger
from zobench.models.weights import RandomWeights
from zobench.result import Outcome

pytestmark = ON_GPU
GRANULARITIES = ["block", "linear", "tile"]
INTERVALS = [1, 4, "inf"]


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of a few rows also for tiny models."""
    monkeypatch.setattr(units.tiles, "__defaults__", (3000,))


@contextlib.contextmanager
def waits():
    """Counts the operators that make the host wait for the device, by the function of ours or transformers' they are
    in. Waits for an event or a stream that somebody asks for by name are not seen."""
    ours, theirs = (Path(package.__file__).parent for package in (zobench, transformers))
    counts = collections.Counter()

    def note(message, *_, **__):
        if "synchronizing CUDA operation" not in str(message):
            return
        for frame in reversed(traceback.extract_stack()):
            for package, root in (("zobench", ours), ("transformers", theirs)):
                if Path(frame.filename).is_relative_to(root):
                    counts[package, Path(frame.filename).name, frame.name] += 1
                    return
        counts["elsewhere", "", ""] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counts
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("every", INTERVALS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_a_step_waits_for_the_device_only_to_read_the_losses(name, granularity, every):
    """transformers' own forward may ask the device, before the first block, whether anything is masked or packed."""
    model, ids = models.build(name, "fp16"), torch.arange(40, device="cuda").view(2, 20)
    config = EngineConfig(
        device="cuda:0", tier="pinned", noise="counter", granularity=granularity, writeback_every=every
    )
    with Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-3, weight_decay=0.1)
        for _ in range(5):
            method.step(engine, Batch(ids, ids))
        with waits() as counts:
            for _ in range(4):
                method.step(engine, Batch(ids, ids))
    print(dict(counts))
    ours = [(package, function, count) for (package, _, function), count in counts.items() if package != "transformers"]
    assert ours == [("zobench", "on_cpu", 4)]
    assert sum(counts.values()) - 4 < 4 * 3, "a wait in every block"


def test_uploads_run_under_computes():
    """Units are short and attention, which no unit holds, is not on the timeline: so half of them are enough to show
    it. Without overlap there must be none."""
    common = {
        "model": "OPT-1.3B", "dtype": "fp16", "engine": "offload", "noise": "counter", "granularity": "linear",
        "batch_size": 4, "seq_len": 2048, "steps": 2, "device": "cuda",
    }  # fmt: skip
    shares = {}
    for overlap in (True, False):
        result = run_in_process(RunSpec(overlap=overlap, **common))
        assert result.outcome is Outcome.OK, result.traceback
        computes = [(a, b) for _, kind, _, a, b in result.timeline if kind == "compute"]
        uploads = [(a, b) for _, kind, _, a, b in result.timeline if kind == "upload"]
        assert len(uploads) == len(computes) >= 24 * 6
        shares[overlap] = sum(any(a < d and c < b for c, d in computes) for a, b in uploads) / len(uploads)
    print(f"uploads under computes: {shares[True]:.0%}, without overlap {shares[False]:.0%}")
    assert shares[True] >= 0.5
    assert shares[False] <= 0.05


def peak_of_steps(device, granularity, slots):
    """Peak bytes of two steps of OPT-1.3B in fp16, 2048 tokens: the allocator's on CUDA, the ledger's on meta.

    Only tensors count: what the libraries' workspaces take is taken before.
    """
    units.tiles.__defaults__ = (8 << 20,)
    model, ids = models.build("OPT-1.3B", "fp16"), torch.zeros(1, 2048, dtype=torch.long, device=device)
    tier = "pinned" if device == "cuda:0" else "pageable"
    config = EngineConfig(device=device, tier=tier, noise="counter", granularity=granularity, slots=slots)
    ledger = Ledger("meta") if device == "meta" else None
    before = torch.cuda.memory_allocated() if ledger is None else 0
    with ledger or contextlib.nullcontext(), Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        torch.cuda.reset_peak_memory_stats() if ledger is None else ledger.reset()
        for method in [ZOSGD(lr=1e-7)] * 2:
            method.step(engine, Batch(ids, ids))
        return torch.cuda.max_memory_allocated() - before if ledger is None else ledger.peak


def print_peaks(granularity, slots):
    """In a process of its own, so that the allocator holds nothing of other tests."""
    with torch.inference_mode():
        x, weight = torch.zeros(4096, 2048, device="cuda").half(), torch.zeros(8192, 2048, device="cuda").half()
        functional.linear(x, weight, weight[:, 0].contiguous())
        functional.linear(x, weight)
        del x, weight
    print(json.dumps([peak_of_steps(device, granularity, slots) for device in ("cuda:0", "meta")]))


@pytest.mark.parametrize(("granularity", "slots"), [("block", 3), ("linear", 3), ("tile", 2)])
def test_a_step_takes_what_the_ledger_counts_on_the_meta_device(granularity, slots):
    program = f"from tests.gpu.test_fast import print_peaks; print_peaks({granularity!r}, {slots})"
    environment = {**os.environ, "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}  # else each product takes one, and returns it
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    taken, counted = json.loads(done.stdout.splitlines()[-1])
    print(f"{granularity}: {taken / 1e6:.0f} MB taken, {counted / 1e6:.0f} MB counted")
    assert taken == pytest.approx(counted, rel=0.05)
