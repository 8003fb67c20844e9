"""The schemes as data: what each adds to a model, and how large that is (docs/design/METHODS.md, "What is tuned")."""

from __future__ import annotations

from zobench.runspec.kinds import SchemeKind, SpecFields, Widths

LORA_RANK, LORA_ALPHA = 8, 16
PREFIX_TOKENS, PROMPT_TOKENS = 5, 10


def _lora(widths: Widths, spec: SpecFields) -> tuple[int, int]:
    """A and B of the query and of the value projection."""
    return LORA_RANK * (2 * widths.hidden + widths.queries + widths.values), 0


def _prefix(widths: Widths, spec: SpecFields) -> tuple[int, int]:
    """Keys and values of every layer, which are one tensor outside the blocks."""
    return 0, PREFIX_TOKENS * 2 * widths.layers * widths.values


def _prompt(widths: Widths, spec: SpecFields) -> tuple[int, int]:
    return 0, PROMPT_TOKENS * widths.hidden


KINDS = (
    SchemeKind(name="full", make="zobench.schemes.base:Full", about="all weights"),
    SchemeKind(
        name="lora", make="zobench.schemes.lora:Lora", adapter=_lora, inputs=2, peft=True,
        about=f"two factors of rank {LORA_RANK} beside each query and value projection (peft)",
    ),
    SchemeKind(
        name="prefix", make="zobench.schemes.prefix:Prefix", adapter=_prefix, virtual_tokens=PREFIX_TOKENS, peft=True,
        about=f"keys and values of {PREFIX_TOKENS} virtual tokens in each layer (peft)",
    ),
    SchemeKind(
        name="prompt", make="zobench.schemes.prompt:Prompt", adapter=_prompt, virtual_tokens=PROMPT_TOKENS, peft=True,
        about=f"embeddings of {PROMPT_TOKENS} virtual tokens before the others (peft)",
    ),
)  # fmt: skip
"""All schemes, in the order in which they are listed."""
