"""The words of a spec that more than one place knows, and what groups of them have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

METHOD_NAMES = (
    "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
    "forward-grad", "hybrid", "fo-sgd", "fo-adam",
)  # fmt: skip
SCHEME_NAMES = ("full", "lora", "prefix", "prompt")
TASK_NAMES = ("none", "sst2", "rte", "cb", "boolq", "wsc", "wic", "multirc", "copa", "winogrande")

FIRST_ORDER = ("fo-sgd", "fo-adam")
"""Methods that backpropagate through the whole model."""
BACKWARD = (*FIRST_ORDER, "hybrid")
"""Methods that backpropagate at all: their model is resident."""
STATEFUL = ("zo-sgd-mmt", "zo-adam")
"""Zeroth-order methods whose state, of the weights' shape, rests and travels with the weights."""
SHIPPED = ("zo-sgd-sign", "zo-adam", "zo-sgd-sparse")
"""Methods whose published program computes something else than its paper's formula (ZO-Bench, appendix A)."""

SEQ_LEN = 2048
"""The papers' tokens per sequence."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Text naming the nearest of ``known`` to a mistyped ``word``: ``did you mean ...?`` or the whole list."""
    options = list(known)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), lowered, n=3, cutoff=0.55)
    if near:
        return "did you mean " + " or ".join(lowered[match] for match in near) + "?"
    return "use one of " + ", ".join(options)
