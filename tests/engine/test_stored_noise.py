"""Directions that stay in memory for a step: the numbers of those that are drawn again, at their price in memory."""

from typing import Any

import pytest
import torch

from tests.support.slopes import batches
from tests.support.watched import before
from zobench import RunSpec
from zobench.cost.footprint import memory
from zobench.cost.sizes import trained_count, trained_width
from zobench.engine.directions.noise import TorchNoise
from zobench.training.assemble import tuner

CELLS: list[dict[str, Any]] = [
    {"method": "zo-sgd", "dtype": "fp16", "queries": 2},
    {"method": "zo-sgd", "dtype": "bf16", "scheme": "lora"},
    *({"method": name} for name in ("zo-sgd-cons", "zo-adam", "zo-sgd-block")),
    {"method": "zo-sgd-sparse", "sparsity": 0.3},
    {"method": "forward-grad", "queries": 2},
]


def spec_of(**changes: Any) -> RunSpec:
    return RunSpec(**{"model": "opt-tiny", "engine": "resident", "seq_len": 16, "lr": 1e-3, **changes}).resolve("cpu")


def run(spec: RunSpec, steps: int = 3) -> tuple[list[Any], dict[str, torch.Tensor]]:
    with tuner(spec) as tuned:
        done = [tuned.method.step(tuned.engine, batch) for batch in batches(steps)]
        return done, dict(tuned.engine.named_tensors())


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: " ".join(map(str, cell.values())))
def test_a_stored_direction_gives_the_bits_of_one_that_is_drawn_again(cell: dict[str, Any]) -> None:
    if "scheme" in cell:
        pytest.importorskip("peft")
    (drawn, weights), (stored, same) = run(spec_of(**cell)), run(spec_of(**cell, noise="stored"))
    assert stored == drawn
    assert all(torch.equal(same[name], tensor) for name, tensor in weights.items())


def test_a_step_draws_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    count = lambda noise, seed, unit, tensors, *_: drawn.append(sum(tensor.numel() for tensor in tensors))  # noqa: E731
    before(monkeypatch.setattr, TorchNoise, "draw", count)
    for noise, uses in (("stored", 1), ("torch", 4)):
        with tuner(spec_of(method="zo-sgd", noise=noise)) as tuned:
            drawn.clear()
            tuned.method.step(tuned.engine, next(batches(1)))
            assert sum(drawn) == uses * sum(tensor.numel() for _, tensor in tuned.engine.named_tensors())


def test_it_takes_as_much_as_the_weights_by_prediction_and_by_count() -> None:
    """ZO-Bench, table A1: vanilla ZO-SGD 2 |x|, Forward-Grad 2 |x| + max |a_l|, which is more than with momentum."""
    cell = {"model": "OPT-13B", "batch_size": 4, "seq_len": 400}
    peak = {(m, n): memory(RunSpec(**cell, engine="resident", method=m, noise=n).resolve("cuda"))[0]
            for m in ("zo-sgd", "forward-grad", "zo-sgd-mmt") for n in ("torch", "stored")}  # fmt: skip
    spec = RunSpec(**cell)
    blocks = trained_count(spec) * trained_width(spec)
    for method in ("zo-sgd", "forward-grad"):
        assert 1.0 < (peak[method, "stored"] - peak[method, "torch"]) / blocks < 1.03
    assert peak["forward-grad", "torch"] < peak["zo-sgd-mmt", "torch"] < peak["forward-grad", "stored"]
