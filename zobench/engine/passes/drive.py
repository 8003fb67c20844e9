"""How a model is called: on the tokens alone, or with what a tuning scheme puts before them, and up to its head.

The head stands still while the model's own forward runs, and what would be done to its logits, a multiplier or a soft
cap, is noted, to be done to a few of them at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Drive(Protocol):
    """Calls a model once on a batch that holds one copy of the rows per point. Each module that owns parameters
    computes a copy with that point's weights (:mod:`zobench.engine.passes.forwards`)."""

    def __call__(self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The logits (rows, tokens, ...) of ``input_ids`` (rows, tokens), and of nothing before them."""


def plain(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The model's own forward on the tokens alone."""
    return call(model, input_ids=input_ids, attention_mask=attention_mask)


def call(model: nn.Module, **inputs: Any) -> Tensor:
    """The logits of the model's own forward, which keeps no keys and values."""
    return cast("Tensor", outputs(model, **inputs)["logits"])


def outputs(model: nn.Module, **inputs: Any) -> Any:
    """All that the model's own forward gives, by name."""
    parameters = inspect.signature(model.forward).parameters
    names = set(parameters)
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):  # it passes them on
        names |= set(inspect.signature(model.base_model.forward).parameters)  # type: ignore[union-attr]
    if "use_cache" in names:
        inputs["use_cache"] = False
    return model(**inputs, return_dict=True)


_VALUES = {
    getattr(torch.Tensor, name)
    for name in (
        "mul", "__mul__", "__rmul__", "mul_", "__imul__", "div", "__truediv__", "div_", "__itruediv__", "__div__",
        "add", "__add__", "__radd__", "sub", "__sub__", "tanh", "tanh_", "float", "to", "type", "bfloat16", "half",
    )
    if hasattr(torch.Tensor, name)
} | {torch.tanh, torch.mul, torch.div, functional.tanh}  # fmt: skip
"""Functions that change each number by itself."""
_SUMS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__}
_ROWS = {torch.Tensor.contiguous, torch.Tensor.__getitem__, torch.Tensor.clone, torch.Tensor.detach}
"""Functions that choose or move rows."""


@dataclass(frozen=True, eq=False, slots=True)
class Note:
    """One operation of the model on its logits, which were the first of its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Driven:
    """The outcome of one drive of a model: the head's input ``states`` (rows, tokens, width) and the ``notes`` of what
    the model does with the head's output."""

    states: Tensor
    notes: Sequence[Note] = ()

    def logits(self, output: Tensor) -> Tensor:
        """The model's logits from its head's output, or from any part of that."""
        return finished(output, self.notes)


def finished(output: Tensor, notes: Sequence[Note]) -> Tensor:
    """``output`` of a head after what the model does with it."""
    for note in notes:
        output = note.function(output, *note.args, **note.kwargs)
    return output


class _HeadOutput(Tensor):
    """The head's input in the place of its output. Operations on numbers are noted; those on rows are done."""

    notes: tuple[Note, ...] = ()
    bias: Tensor | None = None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        stand_in = next((item for item in args if isinstance(item, _HeadOutput)), None)
        with torch._C.DisableTorchFunctionSubclass():
            if stand_in is None or getattr(func, "__name__", "") == "__get__":
                return func(*args, **kwargs)
            if func in _VALUES:
                return _noted(stand_in, func, args, kwargs)
            plain = [item.as_subclass(Tensor) if isinstance(item, _HeadOutput) else item for item in args]
            output = func(*plain, **kwargs)
            if not isinstance(output, Tensor):
                return output
            if func not in _ROWS or output.shape[-1] != stand_in.shape[-1] or output.ndim != stand_in.ndim:
                raise ValueError(_unknown(func))
            return _standing(output, stand_in.notes, stand_in.bias)


def _noted(
    stand_in: _HeadOutput, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> _HeadOutput:
    others = args[1:]
    if stand_in.bias is not None and func in _SUMS and any(item is stand_in.bias for item in args):
        return _standing(stand_in.as_subclass(Tensor), (*stand_in.notes, Note(_with_bias, (), {})), stand_in.bias)
    if args[0] is not stand_in or any(isinstance(item, Tensor) and item.numel() > 1 for item in others):
        raise ValueError(_unknown(func))
    return _standing(stand_in.as_subclass(Tensor), (*stand_in.notes, Note(func, tuple(others), kwargs)), stand_in.bias)


def _with_bias(output: Tensor) -> Tensor:
    """The head's output as it is: its holder would add the bias that the head has added (:func:`adopt_bias`)."""
    return output


def _standing(states: Tensor, notes: tuple[Note, ...], bias: Tensor | None) -> _HeadOutput:
    standing = states.as_subclass(_HeadOutput)
    standing.notes, standing.bias = notes, bias
    return standing


def _unknown(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func)).strip("_")
    what = "cuts the vocabulary" if func in _ROWS else f"calls {name!r} on more than each number by itself"
    return (
        "a model's logits must be its head's output, scaled or capped, but after its head this one "
        f"{what}; use another model"
    )


def holder_of(head: nn.Module, model: nn.Module) -> nn.Module:
    """The module of ``model`` that holds its head."""
    return next(module for module in model.modules() if head in module.children())


def may_adopt(head: nn.Module, key: str, parameter: Tensor) -> bool:
    """Whether a parameter of the head's holder may be a bias that the holder adds to the head's output, as ESM's."""
    parameters = head._parameters
    return (
        key == "bias"
        and parameters.get("bias") is None
        and parameter.shape == cast("Tensor", parameters["weight"]).shape[:1]
    )


def adopt_bias(model: nn.Module) -> Callable[[], None]:
    """Makes the bias that the head's holder adds the head's own too, so that both move together, until what it gives
    back is called. A pass over a model whose holder does not add it is a ``ValueError`` (:func:`drive_to_head`)."""
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    bias = holder_of(head, model)._parameters.get("bias")
    if bias is None or not may_adopt(head, "bias", bias):
        return lambda: None

    def give_back() -> None:
        head._parameters["bias"] = None
        del head.has_adopted

    head._parameters["bias"] = bias
    head.has_adopted = True  # type: ignore[assignment]
    return give_back


def unused_parameter(holder: nn.Module, key: str) -> str:
    """Why a parameter of the head's holder is refused."""
    return f"{type(holder).__name__} must hold no parameters but its head's, but got {key}, which nothing uses"


@contextmanager
def standing(head: nn.Module) -> Iterator[None]:
    """Inside, the head returns its input, as what notes are made on."""
    bias = head._parameters["bias"] if getattr(head, "has_adopted", False) else None
    head.forward = lambda states: _standing(states, (), bias)
    try:
        yield
    finally:
        del head.forward


def drive_to_head(drive: Drive, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Driven:
    """The model's own forward, up to its head and beyond, without the head itself.

    Raises ``ValueError``, one line, where the head does not make the model's logits.
    """
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    with standing(head):
        logits = drive(model, input_ids, attention_mask)
    if not isinstance(logits, _HeadOutput):
        raise ValueError(
            f"a model's logits must be its head's output, but {type(model).__name__} makes them without calling its "
            "head; use a model that calls it"
        )
    if logits.bias is not None and not any(note.function is _with_bias for note in logits.notes):
        raise ValueError(f"{unused_parameter(holder_of(head, model), 'bias')}; use another model")
    return Driven(logits.as_subclass(Tensor), logits.notes)
