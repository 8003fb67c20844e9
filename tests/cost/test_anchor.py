"""A GPU fitted to a user's own runs: from steps that a GPU with other constants would take."""

import dataclasses
from typing import Any

import pytest

from zobench.cost import hardware
from zobench.cost.gpu import predict
from zobench.cost.hardware import Gpu
from zobench.cost.hardware.measured import anchor
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

SHEET = hardware.load("rtx-4090")
TRUTH = dataclasses.replace(SHEET, fp16_products=0.55, kernel=22e-6)
SEEN = ({"model": "OPT-1.3B", "engine": "resident"}, {"model": "OPT-6.7B", "engine": "offload", "noise": "counter"})
UNSEEN = ({"model": "OPT-2.7B", "engine": "resident"}, {"model": "OPT-6.7B", "engine": "resident", "noise": "counter"})


def spec(**fields: Any) -> RunSpec:
    return RunSpec(**{"dtype": "fp16", **fields}).resolve("cuda:0")


def ran(gpu: Gpu, factor: float = 1.0, **fields: Any) -> Result:
    """A run of what ``gpu`` would take, times ``factor``."""
    truth = spec(**fields)
    return Result(spec=truth, outcome=Outcome.OK, samples={"step_seconds": [predict(truth, gpu).step_seconds * factor]})


def test_two_runs_give_a_gpu_its_own_two_constants_and_a_narrower_range() -> None:
    card = Facts(gpu={"name": "NVIDIA GeForce RTX 4090"})
    anchored = anchor(SHEET, [dataclasses.replace(ran(TRUTH, **fields), environment=card) for fields in SEEN])
    assert anchored.gpu.fp16_products == pytest.approx(0.55, rel=0.05)
    assert max(map(abs, anchored.errors)) < 0.02
    for fields in UNSEEN:
        before, after, truth = (predict(spec(**fields), gpu) for gpu in (SHEET, anchored.gpu, TRUTH))
        assert after.step_seconds == pytest.approx(truth.step_seconds, rel=0.03)
        assert abs(before.step_seconds / truth.step_seconds - 1) > 0.1
        assert after.share < before.share


def test_one_run_is_met_and_what_two_constants_cannot_explain_keeps_the_wide_range() -> None:
    alone = anchor(SHEET, [ran(TRUTH, **SEEN[0])])
    assert abs(alone.errors[0]) < 0.02
    assert alone.gpu.errors == "anchored"
    free = anchor(dataclasses.replace(SHEET, kernel=0.0), [ran(TRUTH, **SEEN[0])])
    assert abs(free.errors[0]) < 0.02
    odd = anchor(SHEET, [ran(TRUTH, 2.5, **SEEN[0]), ran(TRUTH, 0.8, **SEEN[0])])
    assert odd.gpu.errors == "other"
    assert predict(spec(**SEEN[0]), odd.gpu).share == predict(spec(**SEEN[0]), SHEET).share


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome": Outcome.OOM}, "`--anchor` needs a finished run on a GPU, but OPT-1.3B .* is oom on cuda:0"),
        ({"spec": spec(model="OPT-1.3B").replace(device="cpu")}, "is ok on cpu; run one there"),
        ({"spec": spec(model="OPT-1.3B", engine="offload", tier="disk")}, "needs a run without a disk"),
        ({"environment": Facts(gpu={"name": "NVIDIA RTX A6000"})}, "ran on NVIDIA RTX A6000; name that GPU"),
    ],
)
def test_a_run_that_says_nothing_of_a_gpu_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anchor(SHEET, [dataclasses.replace(ran(TRUTH, **SEEN[0]), **changes)])
