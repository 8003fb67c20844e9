"""The words of a spec that more than one place knows, and what groups of them have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SEQ_LEN = 2048
"""The papers' tokens per sequence."""


def suggestion(word: object, known: Iterable[str]) -> str:
    """Text naming the nearest of ``known`` to a mistyped ``word``: ``did you mean ...?`` or the whole list."""
    options = list(known)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(str(word).lower(), lowered, n=3, cutoff=0.55)
    if near:
        return "did you mean " + " or ".join(lowered[match] for match in near) + "?"
    return "use one of " + ", ".join(options)
