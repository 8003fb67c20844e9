"""Methods: a training step as points to probe and entries to commit. Imports no torch until one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.methods import adaptive, eggroll, first_order, integers, low_rank, populations, rule_only, zo_sgd
from zobench.methods.base import Method as Method
from zobench.methods.base import StepResult as StepResult
from zobench.methods.base import learning_rate as learning_rate
from zobench.methods.zo_sgd import ZOSGD as ZOSGD
from zobench.methods.zo_sgd import ZOSGDBlock as ZOSGDBlock
from zobench.methods.zo_sgd import ZOSGDCons as ZOSGDCons
from zobench.methods.zo_sgd import ZOSGDSignOfG as ZOSGDSignOfG
from zobench.runspec.registries import METHODS
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from torch import nn

    from zobench.engine.directions.factors import LowRank
    from zobench.engine.interface import TunedEngine
    from zobench.engine.updates.rules import UpdateRule
    from zobench.methods.engines import EngineParts
    from zobench.models.weights import Weights
    from zobench.runspec import RunSpec
    from zobench.runspec.kinds import MethodKind

KINDS = (
    zo_sgd.KIND, rule_only.SIGN, rule_only.MOMENTUM, zo_sgd.CONS, rule_only.ADAM, zo_sgd.BLOCK, rule_only.SPARSE,
    low_rank.LOZO_KIND, low_rank.LOZO_M_KIND, low_rank.SUBZERO_KIND, low_rank.ZO_MUON_KIND, eggroll.KIND,
    populations.FZOO_KIND, adaptive.HIZOO_KIND, rule_only.SPARSE_MEZO, adaptive.CONMEZO_KIND, adaptive.MEAZO_KIND,
    populations.ES_KIND, rule_only.R_ADAZO, adaptive.ADAMEZO_KIND, integers.QZO_KIND, integers.QES_KIND,
    first_order.FORWARD_GRAD_KIND, first_order.HYBRID_KIND, first_order.SGD, first_order.ADAM,
)  # fmt: skip
"""zobench's own methods, in the order in which they are listed."""


def make(spec: RunSpec) -> Method:
    """The method of a run, at its first step."""
    method: Method = resolve(METHODS.get(spec.method).definition(spec).make)(spec)
    return method


def rule(spec: RunSpec) -> UpdateRule | None:
    """The update rule that the method needs of its engine, None for SGD's.

    Raises ``ValueError`` if it keeps another number of states than the method's kind says, by which memory is planned.
    """
    kind = METHODS.get(spec.method)
    dotted = kind.definition(spec).rule
    rule: UpdateRule | None = None if dotted is None else resolve(dotted)(spec)
    _check_states("states", kind, kind.travelling_states, 0 if rule is None else len(rule.states))
    return rule


def _check_states(field: str, kind: MethodKind, stated: int, count: int) -> None:
    """Plans of memory go by what a kind says."""
    if stated != count:
        raise ValueError(
            f"`{field}` of the method {kind.name!r} must be {count:d}, as many as its rule keeps, but is {stated}; "
            f"plans would be wrong: use {field}={count:d}"
        )


def thresholds(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float] | None:
    """Where the method's directions are sparse, the threshold of each trainable parameter by its name, else None.

    ``weights``: those that training starts from, also when a run is resumed.
    """
    dotted = METHODS.get(spec.method).thresholds
    return None if dotted is None else resolve(dotted)(spec, model, weights)


def directions(spec: RunSpec) -> LowRank | None:
    """The method's directions where they have low rank, else None.

    Raises ``ValueError`` if their rule keeps another number of states than the method's kind says.
    """
    kind = METHODS.get(spec.method)
    if kind.structure is None:
        return None
    structure: LowRank = resolve(kind.structure.make)(spec)
    _check_states(
        "structure.states", kind, kind.structure.states, structure.rule is not None and structure.rule.has_state
    )
    return structure


def engine(spec: RunSpec, parts: EngineParts) -> TunedEngine:
    """The engine that the method steps, built of ``parts``."""
    built: TunedEngine = resolve(METHODS.get(spec.method).engine)(spec, parts)
    return built


def definition(spec: RunSpec) -> str:
    """One line saying which formula runs, as a result stores it."""
    return METHODS.get(spec.method).definition(spec).formula
