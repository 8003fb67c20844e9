"""The conformance suite of methods on every method of zobench's."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from zobench import methods, schemes
from zobench.durable.snapshot import SnapshotWeights
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


TORCH = {"config": EngineConfig(slots=2)}
SHIPPED = {"definition": "as-shipped"}
LOW_RANK: dict[str, Any] = {"lr": 1e-3, "noise": "counter", "options": {"interval": 2}}
"""With an interval of two steps: the suite looks at the weights after two, when updates stay in any case."""
ROWS = {"lr": 1e-2, "queries": 6, "batch_size": 3, "options": {"shards": 3, "rank": 3, "shaping": "ranks"}}
SUITES: dict[str, dict[str, Any]] = {
    "ZOSGD": {"name": "zo-sgd", "changes": {"queries": 2}},
    "ZOSGDWithSigns": {"name": "zo-sgd", "changes": {"queries": 2, "noise": "counter", "law": "rademacher"}},
    "Sign": {"name": "zo-sgd-sign", "changes": {"lr": 1e-4}},
    "Momentum": {"name": "zo-sgd-mmt"},
    "Adam": {"name": "zo-adam", "changes": {"lr": 1e-4}},
    "Cons": {"name": "zo-sgd-cons", "changes": {"lr": 1e-3}},
    "Blockwise": {"name": "zo-sgd-block"},
    "Sparse": {"name": "zo-sgd-sparse", "changes": {"sparsity": 0.4}},
    "FZOO": {"name": "fzoo", "changes": {"lr": 1e-5, "queries": 3}},
    "FZOOAsShippedWithTorchNoise": {"name": "fzoo", "changes": {"queries": 3, **SHIPPED}, **TORCH},
    "HiZOO": {"name": "hizoo", "changes": {"options": {"smooth": 1e-3}}},
    "HiZOOWithTorchNoise": {"name": "hizoo", "changes": SHIPPED, **TORCH},
    "SparseMeZO": {"name": "sparse-mezo", "changes": {"sparsity": 0.4, "noise": "counter"}},
    "ConMeZO": {"name": "conmezo"},
    "MEAZO": {"name": "meazo", "changes": {"lr": 1e-4, "queries": 2}},
    "ES": {"name": "es", "changes": {"lr": 1e-4, "queries": 3}},
    "RAdaZO": {"name": "r-adazo", "changes": {"lr": 1e-5, "queries": 2}},
    "AdaMeZO": {"name": "adamezo", "changes": {"lr": 1e-4, "options": {"horizon": 3}}},
    "LOZO": {"name": "lozo", "changes": LOW_RANK},
    "LOZOM": {"name": "lozo-m", "changes": LOW_RANK},
    "SubZero": {"name": "subzero", "changes": {**LOW_RANK, "options": {"interval": 2, "rank": 4}}},
    "ZOMuon": {"name": "zo-muon", "changes": {**LOW_RANK, "queries": 3, "options": {"interval": 2, "rank": 6}}},
    "EGGROLL": {
        "name": "eggroll", "changes": {"lr": 1e-6, "noise": "counter", "queries": 6, "options": {"shards": 1}},
    },
    "EGGROLLOnRowsOfItsOwnAsShipped": {"name": "eggroll", "changes": {**ROWS, "noise": "counter", **SHIPPED}},
    "ForwardGrad": {"name": "forward-grad"},
}  # fmt: skip
"""What each suite sets of :class:`OfSpec`."""
globals().update({f"Test{suite}": type(f"Test{suite}", (OfSpec,), fields) for suite, fields in SUITES.items()})


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
