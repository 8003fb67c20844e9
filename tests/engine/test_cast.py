"""Under autocast on a CPU the perturbed matrices of products are written in 16 bits, with the bits of casts."""

from typing import Any

import pytest
import torch

from tests.support.causal import model_of
from tests.support.families import CONFIGS, made
from tests.support.reference import z_of
from tests.support.watched import before
from zobench import Batch, Engine, EngineConfig
from zobench.engine import build
from zobench.engine.base import BASE, Entry, Point

EPS = 1e-2
POINTS = [Point(7, EPS), Point(7, -EPS)]


def batch() -> Batch:
    ids = torch.randint(3, 64, (3, 9), generator=torch.Generator().manual_seed(1))
    return Batch(ids, ids.clone())


def trained(model: torch.nn.Module, config: EngineConfig, passes: list[list[Point]]) -> tuple[list[Any], list[Any]]:
    """The losses of a pass at each list of points, with an update after it, and the weights at the end."""
    losses = []
    with Engine(model, config) as engine:
        for step, points in enumerate(passes):
            losses.append(engine.probe(batch(), points))
            engine.commit([Entry(step=step, seed=7 + step, g=0.3, lr=1e-2, weight_decay=0.1)])
        return losses, [tensor.clone() for _, tensor in engine.named_tensors()]


@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "resident"},
        {"placement": "resident", "writeback_every": 3, "packed": True},
        {"placement": "offload"},
        {"placement": "offload", "tier": "disk", "granularity": "linear", "writeback_every": 2},
        {"placement": "offload", "wire": "bf16", "accumulate": 3},
        {"placement": "offload", "reusable_memory": False},
    ],
)
def test_losses_and_weights_are_those_of_casts(settings, autocast, monkeypatch) -> None:
    seen: set[torch.dtype] = set()
    before(monkeypatch.setattr, torch.nn.functional, "linear", lambda x, weight, *_: seen.add(weight.dtype))
    passes = [[BASE, *POINTS], [Point(8, EPS), Point(9, EPS), Point(9, -EPS)], POINTS, [Point(5, -EPS)]]
    config = EngineConfig(noise="counter", autocast=autocast, **settings)
    halved = trained(model_of("llama"), config, passes)
    assert {"bf16": torch.bfloat16, "fp16": torch.float16}[autocast] in seen
    seen.clear()
    monkeypatch.setattr(build, "cast_by_products", lambda config: None)
    cast = trained(model_of("llama"), config, passes)
    assert seen == {torch.float32}
    assert halved[0] == cast[0]
    assert all(map(torch.equal, halved[1], cast[1]))


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"roberta", "hrm_text", "nemotron_h"}))  # causal, and callable
def test_losses_of_every_family_are_those_of_transformers_under_autocast(name: str) -> None:
    plain, losses = made(name), []
    weights = {key: tensor.detach().clone() for key, tensor in plain.named_parameters()}
    for point in POINTS:
        for tensor_id, (key, tensor) in enumerate(plain.named_parameters()):
            moved = weights[key] + z_of(7, tensor_id, tensor) * EPS
            tensor.data.copy_(moved if point.scale > 0 else 2 * weights[key] - moved)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits = plain(input_ids=batch().input_ids).logits.float()
        losses.append(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch().labels[:, 1:].flatten()))
    with Engine(made(name), EngineConfig(placement="resident", noise="counter", autocast="bf16")) as engine:
        assert engine.probe(batch(), POINTS) == pytest.approx([float(loss) for loss in losses], abs=1e-4)
