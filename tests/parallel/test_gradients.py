"""First-order steps over ranks, through torch's FSDP, as a user has them: one device's steps, a share of its memory."""

import pytest

from zobench.execute.process import run_in_process
from zobench.programs import cell
from zobench.result import Outcome
from zobench.runspec import RunSpec

STEPS = 4


def ran(run=cell.run, **changes):
    fields = {
        "model": "opt-tiny",
        "engine": "resident",
        "device": "cpu",
        "batch_size": 4,
        "seq_len": 16,
        "steps": STEPS,
    }
    result = run(RunSpec(**{**fields, "warmup": 0, "data": "ragged", **changes}).resolve("cpu"))
    assert result.outcome is Outcome.OK, result.reason
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("method", "gpus", "lr"), [("fo-sgd", 2, 0.5), ("fo-adam", 4, 1e-2)])
def test_sharded_steps_are_those_of_one_device(method, gpus, lr):
    """Losses and gradients' norms, of shards that count different numbers of tokens."""
    still, alone = ran(method=method, lr=0.0), ran(method=method, lr=lr)
    shared = ran(run_in_process, method=method, lr=lr, gpus=gpus, parallel="fsdp")
    losses, norms = (alone.samples[name] for name in ("loss", "projected_grad"))
    assert abs(losses[-1] - still.samples["loss"][-1]) > 0.01  # the steps have moved the weights
    assert shared.samples["loss"] == pytest.approx(losses, rel=2e-6)
    assert shared.samples["projected_grad"] == pytest.approx(norms, rel=2e-5)
    rows = shared.environment.ranks
    assert len(rows) == gpus
    assert all(row["device_peak_bytes"] > 0 for row in rows)
