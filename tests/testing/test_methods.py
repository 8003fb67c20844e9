"""The conformance suite of methods on every method of zobench's."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from zobench import methods, schemes
from zobench.durable.tensors import SnapshotWeights
from zobench.engine import Engine, EngineConfig
from zobench.engine.backprop import Backprop
from zobench.engine.interface import TunedEngine
from zobench.methods import KINDS, Method
from zobench.models.weights import Weights
from zobench.runspec import RunSpec
from zobench.testing import MethodConformance
from zobench.testing.plain import start


class OfSpec(MethodConformance):
    """The method of a spec, by its name, on the engine that it needs."""

    name = ""
    changes: dict[str, Any] = {}  # noqa: RUF012
    config = EngineConfig(placement="resident", noise="counter")

    @property
    def spec(self) -> RunSpec:
        return RunSpec(
            **{
                **{"model": "opt-tiny", "method": self.name, "lr": 1e-3, "eps": 1e-2, "seed": 5, "weight_decay": 0.1},
                **self.changes,
            }
        )

    def method(self) -> Method:
        return methods.make(self.spec)

    def engine(self, model: nn.Module, weights: Weights, state: Weights | None = None) -> TunedEngine:
        return Engine(
            model, self.config, weights=weights, state=state, rule=methods.rule(self.spec),
            thresholds=methods.thresholds(self.spec, model, start()), directions=methods.directions(self.spec),
        )  # fmt: skip


class TestZOSGD(OfSpec):
    name, changes = "zo-sgd", {"queries": 2}


class TestZOSGDWithTorchNoise(OfSpec):
    name, config = "zo-sgd", EngineConfig(slots=2)


class TestZOSGDWithSigns(OfSpec):
    name, changes = "zo-sgd", {"queries": 2, "noise": "counter", "law": "rademacher"}


class TestSign(OfSpec):
    name, changes = "zo-sgd-sign", {"lr": 1e-4}


class TestSignAsShipped(OfSpec):
    name, changes = "zo-sgd-sign", {"lr": 1e-4, "definition": "as-shipped"}


class TestMomentum(OfSpec):
    name = "zo-sgd-mmt"


class TestAdam(OfSpec):
    name, changes = "zo-adam", {"lr": 1e-4}


class TestCons(OfSpec):
    name, changes = "zo-sgd-cons", {"lr": 1e-3}


class TestBlockwise(OfSpec):
    name = "zo-sgd-block"


class TestSparse(OfSpec):
    name, changes = "zo-sgd-sparse", {"sparsity": 0.4}


class TestFZOO(OfSpec):
    name, changes = "fzoo", {"lr": 1e-5, "queries": 3}


class TestFZOOAsShippedWithTorchNoise(OfSpec):
    name, changes = "fzoo", {"queries": 3, "definition": "as-shipped"}
    config = EngineConfig(slots=2)


class TestHiZOO(OfSpec):
    name, changes = "hizoo", {"options": {"smooth": 1e-3}}


class TestHiZOOWithTorchNoise(OfSpec):
    name, changes, config = "hizoo", {"definition": "as-shipped"}, EngineConfig(slots=2)


class TestSparseMeZO(OfSpec):
    name, changes = "sparse-mezo", {"sparsity": 0.4, "noise": "counter"}


class TestConMeZO(OfSpec):
    name = "conmezo"


class TestConMeZOAsShippedWithTorchNoise(OfSpec):
    name, changes, config = "conmezo", {"definition": "as-shipped"}, EngineConfig(slots=2)


class TestMEAZO(OfSpec):
    name, changes = "meazo", {"lr": 1e-4, "queries": 2}


class TestES(OfSpec):
    name, changes = "es", {"lr": 1e-4, "queries": 3}


class TestRAdaZO(OfSpec):
    name, changes = "r-adazo", {"lr": 1e-5, "queries": 2}


class TestAdaMeZO(OfSpec):
    name, changes = "adamezo", {"lr": 1e-4, "options": {"horizon": 3}}


class TestAdaMeZOWithTorchNoise(OfSpec):
    name, changes, config = "adamezo", {"lr": 1e-4}, EngineConfig(slots=2)


class OfLowRank(OfSpec):
    """With an interval of two steps: the suite looks at the weights after two, when updates stay in any case."""

    changes = {"lr": 1e-3, "noise": "counter", "options": {"interval": 2}}  # noqa: RUF012


class TestLOZO(OfLowRank):
    name = "lozo"


class TestLOZOAsShipped(OfLowRank):
    name = "lozo"
    changes = {**OfLowRank.changes, "definition": "as-shipped", "queries": 2}  # noqa: RUF012


class TestLOZOM(OfLowRank):
    name = "lozo-m"


class TestLOZOMAsShipped(OfLowRank):
    name = "lozo-m"
    changes = {**OfLowRank.changes, "definition": "as-shipped", "queries": 2}  # noqa: RUF012


class TestSubZero(OfLowRank):
    name, changes = "subzero", {**OfLowRank.changes, "options": {"interval": 2, "rank": 4}}


class TestZOMuon(OfLowRank):
    name = "zo-muon"
    changes = {**OfLowRank.changes, "queries": 3, "options": {"interval": 2, "rank": 6}}  # noqa: RUF012


class TestZOMuonAsShipped(OfLowRank):
    name = "zo-muon"
    changes = {**TestZOMuon.changes, "definition": "as-shipped"}  # noqa: RUF012


class TestEGGROLL(OfSpec):
    name = "eggroll"
    changes = {"lr": 1e-6, "noise": "counter", "queries": 6, "options": {"shards": 1}}  # noqa: RUF012


class TestEGGROLLOnRowsOfItsOwnAsShipped(OfSpec):
    name = "eggroll"
    changes = {  # noqa: RUF012
        "lr": 1e-2, "noise": "counter", "queries": 6, "definition": "as-shipped", "batch_size": 3,
        "options": {"shards": 3, "rank": 3, "shaping": "ranks"},
    }  # fmt: skip


class OfIntegers(OfSpec):
    """The method tunes a part of integer weights, which are made of the suite's weights or saved as they are."""

    def engine(self, model: PreTrainedModel, weights: Weights, state: Weights | None = None) -> TunedEngine:
        scheme = schemes.apply(self.spec, model)
        values = weights if isinstance(weights, SnapshotWeights) else scheme.weights(weights, self.config)
        return Engine(
            model, self.config, weights=values, state=state, drive=scheme.drive, rule=methods.rule(self.spec)
        )  # fmt: skip


class TestQZO(OfIntegers):
    name, changes = "qzo", {"lr": 1e-4, "weight_decay": 0.0, "options": {"group": 32}}


class TestQES(OfIntegers):
    name = "qes"
    changes = {  # noqa: RUF012
        "lr": 0.02, "eps": 0.3, "weight_decay": 0.0, "queries": 3, "noise": "counter", "options": {"group": 32},
    }  # fmt: skip


class TestForwardGrad(OfSpec):
    name = "forward-grad"


class OfGradients(OfSpec):
    retraceable = False
    layers = 0

    def engine(self, model: nn.Module, weights: Weights, state: Weights | None = None) -> TunedEngine:
        config = EngineConfig(placement="resident")
        return Backprop(model, config, weights=weights, state=state, zo_layers=self.layers)


class TestFOSGD(OfGradients):
    name, changes = "fo-sgd", {"lr": 1e-2}


class TestFOAdam(OfGradients):
    name = "fo-adam"


class TestHybrid(OfGradients):
    name, layers = "hybrid", 1


def test_every_method_is_run_through_the_suite() -> None:
    suites = [suite for suite in globals().values() if isinstance(suite, type) and issubclass(suite, OfSpec)]
    assert {suite.name for suite in suites if suite.name} == {kind.name for kind in KINDS}
