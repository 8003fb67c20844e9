"""FO-SGD and FO-Adam against hand-written loops, and what becomes of gradients that are not finite."""

import math

import pytest
import torch

from tests.support.slopes import MODELS, RESIDENT, backprop, batches, filled, padded, plain_loss
from zobench import Engine, EngineConfig, models
from zobench.methods.first_order import FIRST_SCALE, FirstOrder, Hybrid, LossScale
from zobench.models import weights


def plain_loop(model, data, make, lr):
    """torch's optimizer on the plain model's own loss: (losses, norms of the gradients)."""
    optimizer, losses, norms = make(model.parameters(), lr=lr), [], []
    for batch in data:
        loss = plain_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters())))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adam"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_a_plain_loop(name, tied, make):
    if make is torch.optim.AdamW:
        make = lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)  # noqa: E731
        method = FirstOrder(optimizer="adam", lr=1e-3)
    else:
        method = FirstOrder(lr=0.3)
    model = filled(name, tied)
    losses, norms = plain_loop(model, batches(4), make, method.lr)
    with backprop(name, tied) as engine:
        steps = [method.step(engine, batch) for batch in batches(4)]
        assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-4)
        assert [step.projected_grad for step in steps] == pytest.approx(norms, rel=1e-3)
        assert all(step.applied and step.seeds == () for step in steps)
        for key, tensor in engine.named_tensors():
            assert torch.allclose(tensor, model.get_parameter(key), rtol=0, atol=2e-4), key


class Recorder:
    """Answers like Backprop, with gradients that are finite or not as told."""

    def __init__(self, norms, autocast):
        self.norms, self.scales, self.discarded = iter(norms), [], 0
        self.config = EngineConfig(placement="resident", autocast=autocast)

    def backward(self, batch, scale):
        self.scales.append(scale)
        return 1.0

    def gradient_norm(self):
        return next(self.norms)

    def discard(self):
        self.discarded += 1


def test_the_loss_scale_follows_overflows():
    """torch.amp.GradScaler beside it is given the same overflows."""
    norms = [math.inf, math.nan, *[1.0] * 2000, 1.0, math.inf, *[1.0] * 1999, 1.0, 1.0]
    engine, mine = Recorder(norms, "fp16"), LossScale()
    theirs = torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, expected = torch.optim.SGD([parameter], lr=0.0), []
    for norm in norms:
        expected.append(theirs.scale(torch.ones(())).item())
        parameter.grad = torch.tensor([norm])
        theirs.step(optimizer)
        theirs.update()
        loss, gradients = mine.backward(engine, None)
        assert (loss, str(gradients)) == (1.0, str(norm))
    assert engine.scales == expected
    assert max(expected) == FIRST_SCALE
    assert min(expected) == FIRST_SCALE / 4
    assert engine.discarded == 3


@pytest.mark.parametrize("method", [FirstOrder(lr=0.1), Hybrid(lr=0.1)])
def test_it_needs_gradients(method):
    model = models.build("opt-tiny", "fp32")
    with (
        Engine(model, RESIDENT, weights=weights.RandomWeights(model, 3)) as engine,
        pytest.raises(ValueError, match="a first-order method needs a Backprop engine, but got Engine; build that"),
    ):
        method.step(engine, padded())
