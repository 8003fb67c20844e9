"""How much of an update survives: what was intended is what the method's own directions ask for."""

import pytest

from tests.support.parity import batches
from zobench import Engine, EngineConfig, RunSpec, models
from zobench.engine.weights.survival import Survival
from zobench.methods import make, rule, thresholds
from zobench.models import weights


def build(spec, **config):
    model = models.build("opt-tiny", "fp32")
    source = weights.RandomWeights(model, 3)
    return Engine(
        model, EngineConfig(noise="counter", **config), weights=source, rule=rule(spec),
        thresholds=thresholds(spec, model, source),
    )  # fmt: skip


def spec_of(method, definition="as-written", **changes):
    return RunSpec(model="opt-tiny", method=method, definition=definition, lr=1e-4, eps=1e-2, seed=5, **changes)


@pytest.mark.parametrize(
    "spec",
    [
        spec_of("zo-sgd", queries=2), spec_of("zo-sgd-block"), spec_of("zo-sgd-sparse", sparsity=0.6),
        spec_of("zo-sgd-sparse", "as-shipped", sparsity=0.6), spec_of("zo-sgd-sign", "as-shipped"),
        spec_of("forward-grad"),
    ],
    ids=lambda spec: spec.label,
)  # fmt: skip
@pytest.mark.parametrize("config", [{"placement": "resident"}, {"writeback_every": 3}], ids=str)
def test_in_float32_all_of_an_update_survives(spec, config):
    """Only if the parts and masks of its directions are known is the share 1."""
    with build(spec, **config) as engine:
        watch, method = Survival(engine), make(spec)
        for batch in batches("opt-tiny", count=4):
            method.step(engine, batch)
        assert watch.share() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("method", "name"), [("zo-sgd-sign", "Sign"), ("zo-sgd-mmt", "Momentum"), ("zo-adam", "Adam")])
def test_an_update_by_a_rule_is_refused(method, name):
    with (
        build(spec_of(method)) as engine,
        pytest.raises(ValueError, match=rf"`survival` needs an update of lr \* g \* z, but got the rule {name}; use"),
    ):
        Survival(engine)
