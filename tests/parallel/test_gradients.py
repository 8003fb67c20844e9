"""First-order steps over ranks, through torch's FSDP, as a user has them: one device's steps, a share of its memory."""

import pytest

from zobench.execute.process import run_in_process
from zobench.programs import cell
from zobench.result import Outcome
from zobench.runspec import RunSpec


def ran(run=cell.run, **changes):
    fields = {"model": "opt-tiny", "method": "fo-adam", "engine": "resident", "device": "cpu", "data": "ragged"}
    sizes = {"batch_size": 4, "seq_len": 16, "steps": 4, "warmup": 0}
    result = run(RunSpec(**{**fields, **sizes, **changes}).resolve("cpu"))
    assert result.outcome is Outcome.OK, result.reason
    return result


@pytest.mark.slow
def test_sharded_steps_are_those_of_one_device():
    """Losses and gradients' norms, of shards that count different numbers of tokens."""
    still, alone = ran(lr=0.0), ran(lr=1e-2)
    shared = ran(run_in_process, lr=1e-2, gpus=2, parallel="fsdp")
    losses, norms = (alone.samples[name] for name in ("loss", "projected_grad"))
    assert abs(losses[-1] - still.samples["loss"][-1]) > 0.01  # the steps have moved the weights
    assert shared.samples["loss"] == pytest.approx(losses, rel=2e-6)
    assert shared.samples["projected_grad"] == pytest.approx(norms, rel=2e-5)
    rows = shared.environment.ranks
    assert len(rows) == 2
    assert all(row["device_peak_bytes"] > 0 for row in rows)
