"""The CUDA paths: parity, races under torch's CUDA sanitizer, memory peak, overlap in the timeline."""

import itertools
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from tests.support.reference import draw_seeds, mezo
from zobench import ZOSGD, Engine, EngineConfig, RunSpec, models
from zobench.data.tokens import stream
from zobench.execute.process import run_in_process
from zobench.models import weights
from zobench.result import Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODES = {
    "resident": {"placement": "resident"},
    "one slot": {"tier": "pinned", "slots": 1},
    "two slots": {"tier": "pinned", "slots": 2},
    "three slots": {"tier": "pinned", "slots": 3},
    "pageable": {"tier": "pageable"},
    "disk": {"tier": "disk"},
    "no overlap": {"tier": "pinned", "overlap": False},
    "no reusable memory": {"tier": "pinned", "reusable_memory": False},
    "no fused update": {"tier": "pinned", "fused_update": False},
}


def batches(name, kind, count):
    spec = RunSpec(model=name, batch_size=3, seq_len=17, data=kind, seed=1)
    config = models.build_config(name)
    return [b.to("cuda") for b in itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), count)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("name", "tied"), [("opt-tiny", True), ("opt350-tiny", False), ("qwen3-tiny", True)])
def test_engine_equals_plain_mezo(name, tied, dtype, mode):
    plain = models.build(name, dtype, tied)
    weights.materialise(plain, weights.RandomWeights(plain, 3), "cuda")
    plain.to("cuda")
    data = batches(name, "ragged", 20)
    losses, gradients = mezo(plain, data, draw_seeds(7, 20), eps=1e-3, lr=1e-3, wd=0.1)
    model = models.build(name, dtype, tied)
    with Engine(model, EngineConfig(device="cuda:0", **MODES[mode]), weights=weights.RandomWeights(model, 3)) as engine:
        method = ZOSGD(lr=1e-3, eps=1e-3, seed=7, weight_decay=0.1)
        steps = [method.step(engine, batch) for batch in data]
        final = dict(engine.named_tensors())
    assert [s.loss for s in steps] == losses
    assert [s.projected_grad for s in steps] == gradients
    assert all(torch.equal(final[name].cpu(), p.detach().cpu()) for name, p in plain.named_parameters())


@pytest.mark.parametrize("mode", ["two slots", "three slots", "no reusable memory", "no fused update"])
def test_no_race_under_the_cuda_sanitizer(mode):
    program = f"""
    import torch
    from zobench import ZOSGD, Batch, Engine, EngineConfig, models, weights
    model = models.build("opt-tiny", "fp16")
    ids = torch.arange(20, device="cuda").view(1, 20)
    config = EngineConfig(device="cuda:0", **{MODES[mode]!r})
    with Engine(model, config, weights=weights.RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-3)
        for _ in range(3):
            method.step(engine, Batch(ids, ids))
    print("done")
    """
    environment = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True
    )
    assert "done" in done.stdout, done.stderr
    assert "data race" not in done.stderr, done.stderr


def test_offloading_holds_the_resident_parts_and_the_slots_only():
    common = {"model": "OPT-1.3B", "dtype": "fp16", "seq_len": 256, "steps": 2, "device": "cuda"}
    resident = run_in_process(RunSpec(engine="resident", **common))
    offload = run_in_process(RunSpec(engine="offload", **common))
    assert (resident.outcome, offload.outcome) == (Outcome.OK, Outcome.OK)
    assert offload.samples["loss"] == resident.samples["loss"]
    block = 2 * models.block_parameter_count("OPT-1.3B")
    saved = resident.memory["device_peak_bytes"] - offload.memory["device_peak_bytes"]
    assert saved == pytest.approx((24 - 3) * block, rel=0.1)


def test_uploads_run_under_computes():
    spec = RunSpec(model="OPT-1.3B", dtype="fp16", engine="offload", seq_len=2048, steps=2, device="cuda")
    result = run_in_process(spec)
    computes = [(a, b) for _, kind, _, a, b in result.timeline if kind == "compute"]
    uploads = [(a, b) for _, kind, _, a, b in result.timeline if kind == "upload"]
    under = sum(any(a < d and c < b for c, d in computes) for a, b in uploads)
    assert under >= 0.8 * len(uploads)
