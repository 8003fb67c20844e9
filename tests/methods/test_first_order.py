"""FO-SGD and FO-Adam against hand-written loops, and what becomes of gradients that are not finite."""

import itertools
import json
import math

import pytest
import torch

from tests.support.backprop import RESIDENT, Values, backprop
from tests.support.first_order import batches, without_loss
from tests.support.slopes import MODELS, filled, padded, plain_loss
from zobench import Batch, Engine, EngineConfig, models
from zobench.methods.first_order import FIRST_SCALE, FirstOrder
from zobench.methods.hybrid import Hybrid
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


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_alone(optimizer, foreach):
    """Of a weight without gradient: what SGD adds to it and Adam takes off is lr * decay of the weight itself."""
    ids = torch.full((1, 8), 9)
    method = FirstOrder(optimizer=optimizer, lr=0.1, weight_decay=0.5, foreach=foreach)
    with backprop("llama-tiny", False) as engine:
        table = "model.embed_tokens.weight"
        before = dict(engine.named_tensors())[table]
        method.step(engine, Batch(ids, ids))
        after = dict(engine.named_tensors())[table]
        unseen = [row for row in range(128) if row != 9]
        assert torch.allclose(after[unseen], before[unseen] * (1 - 0.1 * 0.5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gradients_that_are_not_finite_are_skipped_and_counted(optimizer):
    method = FirstOrder(optimizer=optimizer, lr=0.1)
    with backprop() as engine:
        method.step(engine, padded())
        before, state = dict(engine.named_tensors()), dict(engine.state_tensors())
        result = method.step(engine, without_loss())
        assert not result.applied
        assert not math.isfinite(result.gradients[0])
        assert math.isnan(result.loss)
        assert method.skipped == 1
        assert all(torch.equal(tensor, before[key]) for key, tensor in engine.named_tensors())
        assert all(torch.equal(tensor, state[key]) for key, tensor in engine.state_tensors())
        assert method.step(engine, padded()).applied
        assert method.skipped == 1


def test_steps_that_are_lost_for_ever_end_no_run():
    """A loss scale of 0 would have no inverse."""
    method = FirstOrder(lr=0.1)
    method.restore({"skipped": 0, "scale": [2.0**-1074, 0]})
    with backprop(config=EngineConfig(placement="resident", autocast="fp16")) as engine:
        assert [method.step(engine, without_loss()).applied for _ in range(2)] == [False, False]
        assert method.step(engine, padded()).applied


def test_adam_goes_on_with_a_weight_that_had_no_gradient():
    with backprop() as engine:
        engine.backward(padded())
        alone = next(iter(engine._upper))
        engine._upper[alone].grad = None
        engine.update("adam", lr=1e-2)
        saved, state = Values(engine.named_tensors()), Values(engine.state_tensors())
        assert {key: float(tensor) for key, tensor in state.tensors.items() if key.endswith("#step")} == {
            f"{name}#step": float(name != alone) for name in engine._upper
        }
        engine.backward(padded())
        engine.update("adam", lr=1e-2)
        expected = dict(engine.named_tensors())
    with backprop(source=saved, state=state) as engine:
        engine.backward(padded())
        engine.update("adam", lr=1e-2)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in engine.named_tensors())


@pytest.mark.parametrize("autocast", ["none", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_goes_on_bit_for_bit(optimizer, autocast):
    """Weights, the optimizer's state and the method's own, through JSON; a step that overflows is among them."""
    config = EngineConfig(placement="resident", autocast=autocast)
    data = list(itertools.chain(batches(3), [without_loss()], batches(3)))

    def take(engine, method, steps):
        return [(step.loss, step.applied) for step in (method.step(engine, batch) for batch in steps)]

    def build():
        return FirstOrder(optimizer=optimizer, lr=1e-2, weight_decay=0.1)

    with backprop(config=config) as engine:
        whole = build()
        expected = take(engine, whole, data)
        tensors = dict(engine.named_tensors())
    with backprop(config=config) as engine:
        method = build()
        take(engine, method, data[:4])
        saved, state = Values(engine.named_tensors()), Values(engine.state_tensors())
        text = json.dumps(method.state())
    with backprop(config=config, source=saved, state=state if state.tensors else None) as engine:
        unread = dict(engine.state_tensors())  # as after a resumed run's first steps, if those were skipped
        assert unread.keys() == state.tensors.keys()
        assert all(torch.equal(unread[key], state.tensors[key]) for key in unread)
        method = build()
        method.restore(json.loads(text))
        assert take(engine, method, data[4:]) == expected[4:]
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in engine.named_tensors())
        assert method.state() == whole.state()
        assert method.skipped >= 1


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
    from zobench.methods.first_order import LossScale

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
        loss, found = mine.backward(engine, None)
        assert (loss, str(found)) == (1.0, str(norm))
    assert engine.scales == expected
    assert max(expected) == FIRST_SCALE
    assert min(expected) == FIRST_SCALE / 4
    assert engine.discarded == 3


def test_the_loss_is_scaled_for_fp16_alone():
    from zobench.methods.first_order import LossScale

    for autocast in ("none", "bf16"):
        engine, mine = Recorder([1.0, math.inf, 1.0], autocast), LossScale()
        for _ in range(3):
            mine.backward(engine, None)
        assert engine.scales == [1.0] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adm"}, "`optimizer` must be one of sgd, adam, but got 'adm'; did you mean adam"),
        ({"lr": -1.0}, "`lr >= 0` and `weight_decay >= 0` must hold, but got lr=-1.0, weight_decay=0.0; MeZO uses"),
        ({"weight_decay": math.nan}, "must hold, but got lr=0.1, weight_decay=nan"),
    ],
)
def test_what_it_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        FirstOrder(**{"lr": 0.1, **options})


@pytest.mark.parametrize("method", [FirstOrder(lr=0.1), Hybrid(lr=0.1)])
def test_it_needs_gradients(method):
    model = models.build("opt-tiny", "fp32")
    with (
        Engine(model, RESIDENT, weights=weights.RandomWeights(model, 3)) as engine,
        pytest.raises(ValueError, match="a first-order method needs a Backprop engine, but got Engine; build that"),
    ):
        method.step(engine, padded())
