"""Forward-Grad by its formula, on three numbers and on tiny models, resident and offloaded."""

import pytest
import torch

from tests.support.reference import draw_seeds
from tests.support.slopes import MODELS, batches, choosing, derivative, directions, engine_of, filled, padded
from tests.support.slopes import SEED as SLOPE_SEED
from zobench import RunSpec
from zobench.methods.first_order import ForwardGrad
from zobench.training.assemble import tuner

SEED, LR = 5, 1e-3


@pytest.mark.parametrize("config", [{"placement": "resident"}, {}], ids=str)
@pytest.mark.parametrize(("queries", "noise"), [(1, "torch"), (2, "counter")])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_a_plain_loop(name, queries, noise, config):
    model, data, seeds = filled(name), list(batches(3)), iter(draw_seeds(SEED, 3 * queries))
    expected = []
    for batch in data:
        values = [next(seeds) for _ in range(queries)]
        along = [dict(directions(model, noise, seed)) for seed in values]
        slopes = [derivative(model, batch, z) for z in along]
        with torch.no_grad():
            for key, p in model.named_parameters():
                ghat = sum(slope * z[key] for (_, slope), z in zip(slopes, along, strict=True)) / queries
                decayed = not any(word in key for word in ("bias", "layer_norm", "layernorm"))
                p.sub_(LR * (ghat + (0.1 * p if decayed else 0.0)))
        expected.append((slopes[0][0], values, [slope for _, slope in slopes]))
    with engine_of(name, noise=noise, **config) as engine:
        method = ForwardGrad(lr=LR, seed=SEED, weight_decay=0.1, queries=queries)
        for batch, (loss, values, slopes) in zip(data, expected, strict=True):
            step = method.step(engine, batch)
            assert step.applied
            assert step.seeds == tuple(values)
            assert step.loss == pytest.approx(loss, rel=1e-5)
            assert step.gradients == pytest.approx(slopes, rel=1e-3, abs=1e-3)
        for key, tensor in engine.named_tensors():
            assert torch.allclose(tensor, model.get_parameter(key), rtol=0, atol=2e-5), key


@pytest.mark.parametrize("kind", ["causal", "choice"])
@pytest.mark.parametrize("scheme", ["full", "lora", "prefix", "prompt"])
@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_every_scheme_has_its_slope(name, scheme, kind):
    """The sum of gradient times z, by backpropagation through the same scheme; offloaded and resident alike."""
    pytest.importorskip("peft")
    batch = padded() if kind == "causal" else choosing(kind)
    spec = RunSpec(model=name, scheme=scheme, seq_len=32, method="fo-sgd").resolve("cpu")
    with tuner(spec) as first_order:
        loss = first_order.engine.backward(batch)
        model = first_order.engine.model
        slope = sum((model.get_parameter(key).grad * z).sum() for key, z in directions(model, "torch")).item()
    for place, tier in (("resident", "device"), ("offload", "disk")):
        with tuner(spec.replace(method="forward-grad", engine=place, tier=tier)) as forward:
            assert forward.engine.tangent(batch, SLOPE_SEED) == pytest.approx((loss, slope), rel=1e-3, abs=1e-6)
