"""How a model's own code initialises each parameter: what its ``_init_weights`` would write, watched and not done."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one parameter: ``constant`` fills it, or normals of ``std`` do, and then ``zero_row`` is zero. With
    neither it is drawn by the model's own code (:func:`drawn`)."""

    constant: float | None = None
    std: float | None = None
    zero_row: int | None = None


def rules(model: PreTrainedModel) -> Mapping[str, Rule]:
    """The rule of every parameter that the model's initialisation writes, by each of its names.

    The model's own weights are not touched, wherever they are: a copy without memory is initialised, and each write
    into one of its parameters is noted in place of being done.
    """
    blank = _blank(model, "meta")
    named = dict(blank.named_parameters(remove_duplicate=False))
    with torch.no_grad(), _WriteWatch(set(named.values())) as watch:
        blank.initialize_weights()
    rows = {id(module.weight): module.padding_idx for module in blank.modules() if isinstance(module, nn.Embedding)}
    rules = {}
    for name, parameter in named.items():
        if (rule := watch.seen.get(parameter)) is not None:
            row = rows.get(id(parameter))
            rules[name] = rule if row is None or rule.std is None else Rule(std=rule.std, zero_row=row)
    return rules


def drawn(model: PreTrainedModel, module: nn.Module, key: str, seed: int) -> Tensor:
    """Parameter ``key`` of ``module`` in float32 on the CPU, as the model's own code draws it with ``seed``."""
    blank: Any = _blank(module, "cpu")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model._init_weights(blank)  # type: ignore[no-untyped-call]
    values: Tensor = blank.get_parameter(key).detach()
    return values


def _blank(module: Any, device: str) -> Any:
    """A copy of ``module`` whose tensors are not copied: empty float32 ones on ``device``, its buffers as they are."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device=device, dtype=torch.float32))
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device=device) if device == "meta" else buffer.clone()
    twin = copy.deepcopy(module, memo)
    for part in twin.modules():
        part.__dict__.pop("_is_hf_initialized", None)  # transformers' mark of what it leaves alone
    return twin


_FILLS: Mapping[str, Callable[..., Rule]] = {
    "aten::zero_": lambda: Rule(constant=0.0),
    "aten::fill_": lambda value: Rule(constant=float(value)),
    "aten::normal_": lambda mean=0.0, std=1.0, generator=None: Rule(std=std) if mean == 0 else Rule(),
}
"""What writes a whole tensor, whatever was in it, by the name of the operation."""


class _WriteWatch(TorchDispatchMode):
    """Notes the last whole write into each of ``targets``, and does none of them."""

    def __init__(self, targets: set[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._targets = targets
        self.seen: dict[Tensor, Rule] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if target not in self._targets or not func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        fill = _FILLS.get(func._schema.name)
        self.seen[target] = Rule() if fill is None else fill(*args[1:], **(kwargs or {}))
        return target
