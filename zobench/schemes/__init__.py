"""Schemes: what is tuned. All of the weights, or an adapter of ``peft``'s inside the model, offloaded like the rest.

What each adds to a model, and how large that is (docs/design/METHODS.md, "What is tuned"), is data here. Imports no
torch until a scheme is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.machine.files import check_extras
from zobench.runspec.kinds import SchemeKind
from zobench.runspec.registries import scheme_of
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.runspec import RunSpec
    from zobench.schemes.base import Scheme

LORA_RANK, LORA_ALPHA = 8, 16
PREFIX_TOKENS, PROMPT_TOKENS = 5, 10

KINDS = (
    SchemeKind(name="full", make="zobench.schemes.base:Full", about="all weights"),
    SchemeKind(
        name="lora", make="zobench.schemes.adapters:Lora", inputs=2, peft=True,
        adapter=lambda widths, spec: (LORA_RANK * (2 * widths.hidden + widths.queries + widths.values), 0),  # A and B
        about=f"two factors of rank {LORA_RANK} beside each query and value projection (peft)",
    ),
    SchemeKind(
        name="prefix", make="zobench.schemes.adapters:Prefix", virtual_tokens=PREFIX_TOKENS, peft=True,
        adapter=lambda widths, spec: (0, PREFIX_TOKENS * 2 * widths.layers * widths.values),  # in one tensor
        about=f"keys and values of {PREFIX_TOKENS} virtual tokens in each layer (peft)",
    ),
    SchemeKind(
        name="prompt", make="zobench.schemes.adapters:Prompt", virtual_tokens=PROMPT_TOKENS, peft=True,
        adapter=lambda widths, spec: (0, PROMPT_TOKENS * widths.hidden),
        about=f"embeddings of {PROMPT_TOKENS} virtual tokens before the others (peft)",
    ),
)  # fmt: skip
"""All schemes, in the order in which they are listed."""


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
        check_extras(f"`scheme={spec.scheme}`", ["peft"], "tasks")
    scheme: Scheme = resolve(kind.make)(spec, model)
    return scheme
