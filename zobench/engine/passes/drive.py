"""How a model is called: on the tokens alone, or with what a tuning scheme puts before them."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, cast

from torch import Tensor, nn


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
