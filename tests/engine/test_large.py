"""A real model that does not fit the device, in fp32, streamed from disk."""

import pytest

from zobench.execute.process import run_in_process
from zobench.machine.memory import free_disk_bytes
from zobench.result import Outcome
from zobench.runspec import RunSpec

GB = 10**9


@pytest.mark.slow
def test_opt_350m_streams_from_disk_in_a_third_of_its_bytes_with_transfers_under_the_computation(tmp_path):
    """1.3 GB of weights; its table and three slots are 0.26 GB."""
    if free_disk_bytes(tmp_path) < 2 * GB:
        pytest.skip("needs 2 GB of disk")
    spec = RunSpec(model="OPT-350M", engine="offload", tier="disk", seq_len=256, steps=1, warmup=0, device="cpu")
    result = run_in_process(spec, disk_dir=tmp_path)
    assert result.outcome is Outcome.OK, result.traceback
    assert result.memory["device_peak_bytes"] <= 0.44 * GB
    busy = {
        kind: [(a, b) for _, k, _, a, b in result.timeline if k == kind] for kind in ("upload", "compute", "offload")
    }
    assert all(len(spans) >= 20 for spans in busy.values())
    for kind in ("upload", "offload"):
        under = sum(any(a < d and c < b for c, d in busy["compute"]) for a, b in busy[kind])
        assert under >= 0.8 * len(busy[kind]), f"{kind}s do not run while blocks compute"
    assert list(tmp_path.iterdir()) == []
