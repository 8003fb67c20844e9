"""Schemes: what is tuned. All of the weights, or an adapter of ``peft``'s inside the model, offloaded like the rest.

Imports no torch until one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.runspec.registries import scheme_of
from zobench.runspec.registry import resolve
from zobench.schemes.kinds import KINDS as KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.runspec import RunSpec
    from zobench.schemes.base import Scheme


def apply(spec: RunSpec, model: PreTrainedModel) -> Scheme:
    """Changes ``model``, built on the meta device, so that exactly what ``spec`` tunes is trainable.

    LoRA of rank 8 and alpha 16 on the query and value projections; a prefix of 5 keys and values per layer; a prompt of
    10 embeddings (docs/design/METHODS.md, "What is tuned"); or the part of integer weights that the method tunes.
    Adapters are float32 whatever the model's dtype, as in ``peft``.
    Sources of the model's values (:mod:`zobench.models.weights`) look at the plain model: make them before this call.
    Raises ``ValueError`` for a model that the scheme does not fit, and ``ImportError`` without ``peft``.
    """
    kind = scheme_of(spec)
    if kind.peft:
        _check_peft(spec)
    scheme: Scheme = resolve(kind.make)(spec, model)
    return scheme


def _check_peft(spec: RunSpec) -> None:
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"`scheme={spec.scheme}` needs peft, which is absent; pip install 'zobench[tasks]'"
        ) from error
