"""What a model does with its head's output: the head stands still while the model's own forward runs, and what would be
done to its logits, a multiplier or a soft cap, is noted, to be done to a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zobench.engine.drive import Drive

_VALUES = {
    getattr(torch.Tensor, name)
    for name in (
        "mul", "__mul__", "__rmul__", "mul_", "__imul__", "div", "__truediv__", "div_", "__itruediv__", "__div__",
        "add", "__add__", "__radd__", "sub", "__sub__", "tanh", "tanh_", "float", "to", "type", "bfloat16", "half",
    )
    if hasattr(torch.Tensor, name)
} | {torch.tanh, torch.mul, torch.div, functional.tanh}  # fmt: skip
"""What changes each number by itself."""
_ROWS = {torch.Tensor.contiguous, torch.Tensor.__getitem__, torch.Tensor.clone, torch.Tensor.detach}
"""What chooses or moves rows."""


@dataclass(frozen=True, eq=False, slots=True)
class Note:
    """One operation of the model on its logits, which were the first of its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Driven:
    """What one drive of a model came to: the head's input ``states`` (rows, tokens, width) and the ``notes`` of what
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


class _Standing(Tensor):
    """The head's input in the place of its output. Operations on numbers are noted; those on rows are done."""

    notes: tuple[Note, ...] = ()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own = next((item for item in args if isinstance(item, _Standing)), None)
        with torch._C.DisableTorchFunctionSubclass():
            if own is None or getattr(func, "__name__", "") == "__get__":
                return func(*args, **kwargs)
            if func in _VALUES:
                return _noted(own, func, args, kwargs)
            plain = [item.as_subclass(Tensor) if isinstance(item, _Standing) else item for item in args]
            output = func(*plain, **kwargs)
            if not isinstance(output, Tensor):
                return output
            if func not in _ROWS or output.shape[-1] != own.shape[-1] or output.ndim != own.ndim:
                raise ValueError(_unknown(func))
            return _standing(output, own.notes)


def _noted(own: _Standing, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Standing:
    others = args[1:]
    if args[0] is not own or any(isinstance(item, Tensor) and item.numel() > 1 for item in others):
        raise ValueError(_unknown(func))
    return _standing(own.as_subclass(Tensor), (*own.notes, Note(func, tuple(others), kwargs)))


def _standing(states: Tensor, notes: tuple[Note, ...]) -> _Standing:
    standing = states.as_subclass(_Standing)
    standing.notes = notes
    return standing


def _unknown(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func)).strip("_")
    what = "cuts the vocabulary" if func in _ROWS else f"calls {name!r} on more than each number by itself"
    return (
        "a model's logits must be its head's output, scaled or capped, but after its head this one "
        f"{what}; use another model"
    )


@contextmanager
def standing(head: nn.Module) -> Iterator[None]:
    """Inside, the head returns its input, as what notes are made on."""
    head.forward = lambda states: _standing(states, ())
    try:
        yield
    finally:
        del head.forward


def drive_to_head(drive: Drive, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Driven:
    """The model's own forward, up to its head and beyond, without the head itself.

    Raises ``ValueError``, one line, where the head does not make the model's logits.
    """
    with standing(model.get_output_embeddings()):  # type: ignore[operator]
        logits = drive(model, input_ids, attention_mask)
    if not isinstance(logits, _Standing):
        raise ValueError(
            f"a model's logits must be its head's output, but {type(model).__name__} makes them without calling its "
            "head; use a model that calls it"
        )
    return Driven(logits.as_subclass(Tensor), logits.notes)
