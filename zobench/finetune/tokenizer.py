"""The tokenizer of a run's model: from the folder of its weights, or from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from zobench import models
from zobench.machine.errors import first_line
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(spec: RunSpec) -> tuple[PreTrainedTokenizerBase, str]:
    """(the tokenizer, one line that says where it is from and why).

    Raises ``ValueError``, one line, if there is none to be had, or one with more tokens than the model knows.
    """
    from transformers import AutoTokenizer

    location, why = models.tokenizer_place(spec)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:  # ImportError: a format that needs another package
        raise ValueError(
            f"{models.tokenizer_asker(spec)} needs the tokenizer of {spec.model}, but {location!r} gives none "
            f"({first_line(error)}); {models.tokenizer_remedy(spec)}"
        ) from error
    vocabulary = models.of(spec).vocab
    if len(tokenizer) > vocabulary:
        raise ValueError(
            f"the tokenizer must have at most the {vocabulary} tokens of {spec.model}, but {location!r} has "
            f"{len(tokenizer)}; give this model's own"
        )
    return cast("PreTrainedTokenizerBase", tokenizer), f"tokenizer: {location}, {why}"
