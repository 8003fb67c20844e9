"""How the model's body is called: on the tokens alone, or with what a tuning scheme puts before them."""

from __future__ import annotations

from typing import Protocol, cast

from torch import Tensor, nn


class Drive(Protocol):
    """Calls a model's body once on a batch that holds one copy of the rows per point. Each module that owns parameters
    computes a copy with that point's weights (:mod:`zobench.engine.forwards`)."""

    def __call__(self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The last hidden states (rows, tokens, width) of ``input_ids`` (rows, tokens), and of nothing before them."""


def plain(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The model's own body on the tokens alone."""
    body = model.base_model
    output = body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)  # type: ignore[operator]
    return cast("Tensor", output.last_hidden_state)
