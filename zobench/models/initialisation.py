"""How a model's own code initialises each parameter: what its ``_init_weights`` would write, watched and not done."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one parameter: ``constant`` fills it, or normals of ``std`` do, and then ``zero_row`` is zero. With
    neither it is drawn by the model's own code (:func:`drawn`), by that of the module at the path ``writer``."""

    constant: float | None = None
    std: float | None = None
    zero_row: int | None = None
    writer: str = ""


def rules(model: PreTrainedModel) -> Mapping[str, Rule]:
    """The rule of every parameter that the model's initialisation writes, by each of its names.

    The model's own weights are not touched, wherever they are: a copy without memory is initialised, and each write
    into one of its parameters is noted in place of being done.
    """
    blank = _blank(model, "meta")
    named = dict(blank.named_parameters(remove_duplicate=False))
    with torch.no_grad(), _WriteWatch(set(named.values())) as watch:
        paths = {module: path for path, module in blank.named_modules()}
        watched = [part for part in paths if hasattr(part, "_init_weights")]
        for part in watched:
            part._init_weights = watch.noting(part._init_weights, paths)
        blank.initialize_weights()
        for part in watched:
            del part._init_weights  # which holds the part: a circle that would keep the blank model
    rows = {id(module.weight): module.padding_idx for module in blank.modules() if isinstance(module, nn.Embedding)}
    rules = {}
    for name, parameter in named.items():
        if (rule := watch.seen.get(parameter)) is not None:
            row = rows.get(id(parameter))
            rules[name] = rule if row is None or rule.std is None else Rule(std=rule.std, zero_row=row)
    return rules


def drawn(model: PreTrainedModel, name: str, writer: str, seed: int) -> Tensor:
    """Parameter ``name`` in float32 on the CPU, as the model's own code draws it with ``seed``: that for the module
    that has it, then that for each module around it up to ``writer``, which may write it again."""
    if not name.startswith(f"{writer}."):  # it is tied, and written under its other name
        writer = name.rpartition(".")[0]
    key = name.removeprefix(f"{writer}.")
    blank: Any = _blank(model.get_submodule(writer), "cpu")
    parts = key.split(".")[:-1]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for depth in range(len(parts), -1, -1):
            model._init_weights(blank.get_submodule(".".join(parts[:depth])))  # type: ignore[no-untyped-call]
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
"""The operations that write a whole tensor, whatever was in it, by their names."""


class _WriteWatch(TorchDispatchMode):
    """Notes the last whole write into each of ``targets``, and does none of them."""

    def __init__(self, targets: set[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._targets, self._writer = targets, ""
        self.seen: dict[Tensor, Rule] = {}

    def noting(self, initialise: Callable[[nn.Module], Any], paths: Mapping[nn.Module, str]) -> Callable[..., Any]:
        """``initialise`` of a module, during which what is written is noted as that module's, by its path."""

        def noted(module: nn.Module) -> None:
            self._writer = paths[module]
            initialise(module)

        return noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if target not in self._targets or not func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        fill = _FILLS.get(func._schema.name)
        rule = Rule() if fill is None else fill(*args[1:], **(kwargs or {}))
        self.seen[target] = replace(rule, writer=self._writer) if rule == Rule() else rule
        return target
