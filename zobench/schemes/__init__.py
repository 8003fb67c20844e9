"""Schemes: what is tuned. All of the weights, or an adapter of ``peft``'s inside the model, offloaded like the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zobench.runspec import RunSpec
from zobench.schemes.base import Full as Full
from zobench.schemes.base import Scheme as Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def apply(spec: RunSpec, model: PreTrainedModel) -> Scheme:
    """Changes ``model``, built on the meta device, so that exactly what ``spec.scheme`` tunes is trainable.

    LoRA of rank 8 and alpha 16 on the query and value projections; a prefix of 5 keys and values per layer; a prompt of
    10 embeddings (docs/design/METHODS.md, "What is tuned"). Adapters are float32 whatever the model's dtype, as in
    ``peft``.
    Sources of the model's values (:mod:`zobench.models.weights`) look at the plain model: make them before this call.
    Raises ``ValueError`` for a model that the scheme does not fit, and ``ImportError`` without ``peft``.
    """
    if spec.scheme == "full":
        return Full(model)
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"`scheme={spec.scheme}` needs peft, which is absent; pip install 'zobench[tasks]'"
        ) from error
    from zobench.schemes.lora import Lora
    from zobench.schemes.prefix import Prefix
    from zobench.schemes.prompt import Prompt

    adapters: dict[str, Callable[[RunSpec, PreTrainedModel], Scheme]] = {
        "lora": Lora,
        "prefix": Prefix,
        "prompt": Prompt,
    }
    return adapters[spec.scheme](spec, model)
