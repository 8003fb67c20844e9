"""The table of methods: for each name what makes it, its update rule, and the formula that a result says it ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from zobench.engine.rules import Adam, Momentum, Sign, TorchAdam, UpdateRule
from zobench.methods.base import Method
from zobench.methods.sparsity import layer_sparsity, mask_thresholds
from zobench.methods.zo_sgd import ZOSGD, ZOSGDBlock, ZOSGDCons, ZOSGDSignOfG
from zobench.models.weights import Weights
from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One definition of a method. ``formula``: one line, what is done each step; ghat is the mean of g z.

    ``rule``: the engine's, None for SGD's.
    """

    make: Callable[[RunSpec], Method]
    formula: str
    rule: Callable[[RunSpec], UpdateRule] | None = None


def _zo_sgd(spec: RunSpec, kind: type[ZOSGD] = ZOSGD) -> Method:
    return kind(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)


def _cons(spec: RunSpec) -> Method:
    return ZOSGDCons(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay)


def _forward_grad(spec: RunSpec) -> Method:
    from zobench.methods.forward_grad import ForwardGrad

    return ForwardGrad(lr=spec.lr, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)


def _hybrid(spec: RunSpec) -> Method:
    from zobench.methods.hybrid import Hybrid

    return Hybrid(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)


def _first_order(spec: RunSpec) -> Method:
    from zobench.methods.first_order import FirstOrder

    optimizer = spec.method.removeprefix("fo-")
    return FirstOrder(optimizer=optimizer, lr=spec.lr, weight_decay=spec.weight_decay, foreach=spec.foreach)


AS_WRITTEN = {
    "zo-sgd": Row(make=_zo_sgd, formula="w -= lr * ghat"),
    "zo-sgd-sign": Row(
        make=_zo_sgd,
        formula="w -= lr * sign(ghat), elementwise, as ZO-Bench's equation 2 has it",
        rule=lambda spec: Sign(),
    ),
    "zo-sgd-mmt": Row(
        make=_zo_sgd,
        formula="m = beta * m + ghat; w -= lr * m; m in float32",
        rule=lambda spec: Momentum(spec.momentum),
    ),
    "zo-sgd-cons": Row(make=_cons, formula="the best of w, w - lr * ghat and w + lr * ghat by the batch's loss"),
    "zo-adam": Row(
        make=_zo_sgd,
        formula="w -= lr * m / sqrt(max(v_t, v_(t-1)) + 1e-8), without bias correction; m and v in float32",
        rule=lambda spec: Adam(),
    ),
    "zo-sgd-block": Row(
        make=lambda spec: _zo_sgd(spec, ZOSGDBlock),
        formula="w -= lr * ghat, ghat of each part along directions of its own; all estimated before any is updated",
    ),
    "zo-sgd-sparse": Row(
        make=_zo_sgd,
        formula="w -= lr * ghat, z masked at random; of a tensor s is zeroed, its share of magnitude pruning",
    ),
    "forward-grad": Row(make=_forward_grad, formula="w -= lr * (grad . z) z, grad . z by forward-mode differentiation"),
    "hybrid": Row(make=_hybrid, formula="w -= lr * ghat up to layer zo_layers, w -= lr * grad after it"),
    "fo-sgd": Row(make=_first_order, formula="w -= lr * grad, by backpropagation"),
    "fo-adam": Row(make=_first_order, formula="torch's AdamW on grad, by backpropagation"),
}
"""Every method as its paper's formula has it."""
AS_SHIPPED = {
    "zo-sgd-sign": Row(
        make=lambda spec: _zo_sgd(spec, ZOSGDSignOfG),
        formula="w -= lr * sign(g) z, as ZO-Bench's program and its appendix A have it",
    ),
    "zo-adam": Row(
        make=_zo_sgd,
        formula="torch's Adam on ghat, with bias correction; m and v in the weights' dtype",
        rule=lambda spec: TorchAdam(),
    ),
    "zo-sgd-sparse": Row(
        make=_zo_sgd,
        formula="w -= lr * ghat, z masked at random; of a tensor Phi(s) is zeroed, s its share of magnitude pruning",
    ),
}
"""Methods whose published program computes something else (docs/design/METHODS.md, "ZO-Bench's methods")."""


def make(spec: RunSpec) -> Method:
    """The method of a run, at its first step."""
    return _row(spec).make(spec)


def rule(spec: RunSpec) -> UpdateRule | None:
    """The update rule that the method needs of its engine, None for SGD's."""
    build = _row(spec).rule
    return None if build is None else build(spec)


def thresholds(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float] | None:
    """Where the method's directions are sparse, the threshold of each trainable parameter by its name, else None.

    ``weights``: those that training starts from, also when a run is resumed.
    """
    if spec.method != "zo-sgd-sparse":
        return None
    return mask_thresholds(layer_sparsity(model, weights, spec.sparsity), spec.definition)


def definition(spec: RunSpec) -> str:
    """One line saying which formula runs, as a result stores it."""
    return _row(spec).formula


def _row(spec: RunSpec) -> Row:
    return AS_SHIPPED[spec.method] if spec.definition == "as-shipped" else AS_WRITTEN[spec.method]
