"""torch's optimizers by name, and their state as named tensors, with which a run can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zobench.engine.perturb import is_decayed
from zobench.weights import Weights

OPTIMIZERS = ("sgd", "adam")
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
"""The names that torch gives to the state of its Adam."""


def make(
    name: str, parameters: Mapping[str, nn.Parameter], foreach: bool, state: Weights | None
) -> torch.optim.Optimizer:
    """torch's SGD, or AdamW for "adam", whose decay is decoupled; its state as ``state`` has it, or none yet.

    ``foreach``: many tensors per kernel, at the price of temporary memory of their size.
    """
    groups: list[dict[str, Any]] = [
        {"params": [tensor for own, tensor in parameters.items() if is_decayed(own) is decayed], "decayed": decayed}
        for decayed in (True, False)
    ]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[name]
    optimizer: torch.optim.Optimizer = kind([group for group in groups if group["params"]], lr=0.0, foreach=foreach)
    if name == "adam" and state is not None:
        for own, tensor in parameters.items():
            optimizer.state[tensor] = _read(own, tensor, state)
    return optimizer


def step(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """One step by the gradients at hand; weight decay skips what MeZO's does."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, weight_decay if group["decayed"] else 0.0
    optimizer.step()


def state_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> Iterator[tuple[str, Tensor]]:
    """(parameter#state, CPU copy): "#exp_avg" and "#exp_avg_sq" of the parameter's shape, "#step" of shape (1,)."""
    for name, tensor in parameters.items():
        for key, value in optimizer.state.get(tensor, {}).items():
            if isinstance(value, Tensor):
                yield f"{name}#{key}", value.detach().cpu().clone().reshape(value.shape or (1,))


def _read(name: str, tensor: Tensor, source: Weights) -> dict[str, Tensor]:
    values = torch.zeros(1), torch.zeros_like(tensor), torch.zeros_like(tensor)
    for key, value in zip(ADAM_STATE, values, strict=True):
        source.fill(f"{name}#{key}", value)
    return dict(zip(ADAM_STATE, (values[0].reshape(()), *values[1:]), strict=True))
