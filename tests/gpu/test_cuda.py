"""The CUDA paths: races under torch's CUDA sanitizer, memory peak, overlap in the timeline."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.devices import ON_GPU
from zobench import RunSpec, models
from zobench.execute.process import run_in_process
from zobench.result import Outcome

pytestmark = ON_GPU
MODES = {
    "two slots": {"slots": 2},
    "no reusable memory": {"reusable_memory": False},
    "no fused update": {"fused_update": False},
    "tile, three slots": {"noise": "counter", "granularity": "tile", "slots": 3},
}


@pytest.mark.parametrize("mode", MODES)
def test_no_race_under_the_cuda_sanitizer(mode):
    """It sees torch's operators only: copies between slots and host, products that read scratch. Triton's launches are
    invisible to it; that they are ordered by the compute stream is what the parity tests show."""
    program = f"""
    import torch
    from zobench import ZOSGD, Batch, Engine, EngineConfig, models
    from zobench.engine.weights import blocks
    from zobench.models import weights
    blocks.tiles.__defaults__ = (3000,)
    model = models.build("opt-tiny", "fp16")
    ids = torch.arange(20, device="cuda").view(1, 20)
    config = EngineConfig(device="cuda:0", tier="pinned", **{MODES[mode]!r})
    with Engine(model, config, weights=weights.RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-3)
        for _ in range(3):
            method.step(engine, Batch(ids, ids))
        engine.flush()
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
    block = 2 * models.get("OPT-1.3B").block
    saved = resident.memory["device_peak_bytes"] - offload.memory["device_peak_bytes"]
    assert saved == pytest.approx((24 - 3) * block, rel=0.1)
