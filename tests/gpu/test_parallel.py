"""On CUDA devices: ranks on NCCL get the bits of one device; host memory of which a rank pins a part."""

import ctypes
import json

import pytest
import torch
from safetensors.torch import load_file

from tests.support.devices import ON_GPU
from tests.support.parity import engine_of
from tests.support.processes import torchrun
from zobench import RunSpec
from zobench.execute.process import run_in_process
from zobench.parallel.hosts import Counts, SharedTier
from zobench.result import Outcome

pytestmark = ON_GPU
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
STEPS, EXAMPLES = 6, 4
ENGINES = {
    "torch": {"noise": "torch"},
    "torch, a slot": {"noise": "torch", "slots": 1, "overlap": False},
    "counter": {"noise": "counter"},
    "counter, allocated": {"noise": "counter", "reusable_memory": False},
    "counter, fp8": {"noise": "counter", "wire": "fp8", "writeback_every": 4, "granularity": "linear"},
}


def spec_of(engine, **changes):
    fields = {
        "model": "opt-tiny", "dtype": "fp32", "batch_size": EXAMPLES, "seq_len": 9, "steps": STEPS, "lr": 1e-4,
        "seed": 7, "noise": engine["noise"], "engine": "offload", "device": "cuda", "tier": "pinned",
    }  # fmt: skip
    return RunSpec(**{**fields, **changes})


def is_pinned(memory):
    """Whether the page where ``memory`` begins is pinned: ``Tensor.is_pinned`` looks where the storage begins."""
    page = (ctypes.c_char * 4096).from_address(memory.data_ptr())
    return torch.frombuffer(page, dtype=torch.uint8).is_pinned()


def test_blocks_that_are_pinned_in_part_are_read_and_given_back():
    """Of a block with slices a rank pins its part only, and CUDA refuses to copy across the edge of what is pinned."""
    page, size = 4096, 4 * 4096
    memory = torch.zeros(3 * size, dtype=torch.uint8)
    start = -memory.data_ptr() % page
    block = memory[start : start + size]
    table = torch.ones(4, 1, 4, dtype=torch.int64)
    tier = SharedTier(
        [block], Counts(table, 1), lambda slot, mine: None, coordinated=True, pinned=True, device="cuda:0"
    )
    tier.fill(0, lambda buffer: None)
    block.copy_(torch.arange(size) % 251)
    assert [is_pinned(block[at:]) for at in range(0, size, page)] == [False, True, False, False]
    out = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    tier.read(0, out)
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), block)
    tier.close()
    assert not is_pinned(block[page:])


def ranks(cases, folder, gpus=2):
    """What ``gpus`` ranks got in each case, started once: losses and g of each rank, and its tensors."""
    (folder / "told.json").write_text(json.dumps({"spec": cases[0]["spec"], "cases": cases}))
    settings = {"GLOO_SOCKET_IFNAME": "lo", "ZOBENCH_PEER_TIMEOUT": "60"}
    done = torchrun(gpus, "-m", "tests.support.host_rank", folder / "told.json", folder / "out", **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(gpus)]
    for number in range(len(cases)):
        files = [folder / f"out.{number}.{rank}.safetensors" for rank in range(gpus)]
        yield [result[number] for result in results], [load_file(file) for file in files]


@several
def test_two_ranks_on_nccl_get_the_bits_of_one_device(tmp_path):
    """Three examples cannot be cut, so both ranks see what one device does; PertP, whole and sliced."""
    from tests.support.host_rank import alone as plain_spec
    from tests.support.host_rank import steps_of as take

    cases = [
        {
            "spec": spec_of(engine, gpus=2, parallel="pertp", transfers=transfers).to_dict(),
            "engine": {**engine, "tier": "pinned"},
        }
        for transfers in ("whole", "sliced")
        for engine in ENGINES.values()
    ]
    for case, (answer, tensors) in zip(cases, ranks(cases, tmp_path), strict=True):
        assert plain_spec(RunSpec(**case["spec"])).gpus == 1
        engine = {key: value for key, value in case["engine"].items() if key != "tier"}
        with engine_of(device="cuda:0", tier="pinned", **engine) as ran:
            steps = take(case, ran)
            final = dict(ran.named_tensors())
        expected = {"losses": [step.loss for step in steps], "gs": [step.projected_grad for step in steps]}
        for tensor, weights_of in zip(answer, tensors, strict=True):
            assert tensor == expected, case
            assert all(torch.equal(weights_of[name], value) for name, value in final.items()), case


@several
@pytest.mark.parametrize(("parallel", "transfers"), [("pertp", "sliced"), ("ddp", "whole")])
def test_a_cell_on_two_devices_has_the_losses_of_one(parallel, transfers):
    fields = {"steps": 3, "warmup": 1}
    alone = run_in_process(spec_of({"noise": "counter"}, **fields))
    two = run_in_process(
        spec_of({"noise": "counter"}, gpus=2, parallel=parallel, transfers=transfers, parts=True, **fields), timeout=300
    )
    assert (two.outcome, two.reason) in ((Outcome.OK, ""), (Outcome.CONTAMINATED, two.reason))
    assert two.samples["loss"] == pytest.approx(alone.samples["loss"], rel=1e-6)
    assert [row["device"] for row in two.environment.ranks] == ["cuda:0", "cuda:1"]
    assert all(row["device_peak_bytes"] > 0 for row in two.environment.ranks)
    assert len(two.parts["upload_seconds"]) == 2
    assert all(0 < count < 1024 for count in two.parts["exchanged_bytes"])


@several
def test_a_device_whose_memory_runs_out_is_told(tmp_path, monkeypatch):
    """Rank 0 waits in an all-gather on its device for a rank that has failed."""
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "30")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.environ.get('RANK') == '1' and 'zobench.execute.rank' in sys.orig_argv:\n"
        "    import torch\n"
        "    from zobench.parallel import hosts\n"
        "    upload, seen = hosts.SharedTier.upload, []\n"
        "    def failing(self, block, slot, first=0):\n"
        "        seen.append(block)\n"
        "        if len(seen) == 5:\n"
        "            torch.empty(1 << 50, device='cuda')\n"
        "        upload(self, block, slot)\n"
        "    hosts.SharedTier.upload = failing\n"
    )
    spec = spec_of({"noise": "counter"}, gpus=2, parallel="pertp", transfers="sliced")
    result = run_in_process(spec, timeout=200)
    assert result.outcome is Outcome.OOM
    assert result.reason.startswith("rank 1: device memory ran out on cuda:1")
