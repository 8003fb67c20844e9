"""torch's optimizers by name, and their state as named tensors, with which a run can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zobench.engine.directions.perturb import is_decayed
from zobench.models.weights import Weights

OPTIMIZERS = ("sgd", "adam")
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
"""The names that torch gives to the state of its Adam."""

State = Mapping[str, Mapping[str, Any]]
"""A parameter's name -> torch's name -> state."""


def make(
    name: str, parameters: Mapping[str, nn.Parameter], foreach: bool, state: State | None
) -> torch.optim.Optimizer:
    """torch's SGD, or AdamW for "adam", whose decay is decoupled; its state is ``state``, or none yet.

    ``foreach``: many tensors per kernel, at the price of temporary memory of their size.
    """
    groups: list[dict[str, Any]] = [
        {"params": [tensor for key, tensor in parameters.items() if is_decayed(key) is decayed], "decayed": decayed}
        for decayed in (True, False)
    ]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[name]
    optimizer: torch.optim.Optimizer = kind([group for group in groups if group["params"]], lr=0.0, foreach=foreach)
    if name == "adam" and state:
        for key, tensor in parameters.items():
            optimizer.state[tensor] = dict(state[key])
    return optimizer


def step(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """One step by the gradients at hand; weight decay skips what MeZO's does."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, weight_decay if group["decayed"] else 0.0
    optimizer.step()


def state_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> State:
    """The optimizer's state by parameter; of one that had no gradient so far, what torch would begin with."""
    if not any(optimizer.state.values()):
        return {name: {} for name in parameters}
    return {name: optimizer.state.get(tensor) or _first(tensor) for name, tensor in parameters.items()}


def _first(tensor: Tensor) -> dict[str, Tensor]:
    """The state of Adam before a parameter's first gradient."""
    return dict(zip(ADAM_STATE, (torch.zeros(()), torch.zeros_like(tensor), torch.zeros_like(tensor)), strict=True))


def named(state: State) -> Iterator[tuple[str, Tensor]]:
    """(parameter#state, CPU copy): "#exp_avg" and "#exp_avg_sq" of the parameter's shape, "#step" of shape (1,)."""
    for name, values in state.items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                yield f"{name}#{key}", value.detach().cpu().clone().reshape(value.shape or (1,))


def read(source: Weights, parameters: Mapping[str, nn.Parameter]) -> State:
    """The inverse of :func:`named`: Adam's state, beside its parameters."""
    state = {}
    for name, tensor in parameters.items():
        state[name] = _first(tensor)
        for key, value in state[name].items():
            source.fill(f"{name}#{key}", value.view(value.shape or (1,)))
    return state
