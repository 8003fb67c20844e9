"""The words of a spec that more than one place knows, and what groups of them have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SEQ_LEN = 2048
"""The papers' tokens per sequence."""

SIGNED = ("pertp", "2d", "2d-outer")
"""The values of ``parallel`` that share out the two signs of a perturbation, one to a rank (DistZO2, section 4)."""

_MOST = 3
"""Words that are suggested."""


def suggestion(word: object, words: Iterable[str]) -> str:
    """Text naming the nearest of ``words`` to a mistyped ``word``, first those that begin with it: ``did you mean
    ...?`` or the whole list."""
    options = list(words)
    lowered = {option.lower(): option for option in options}
    text = str(word).lower()
    begun = [option for option in lowered if len(text) > 1 and option.startswith(text)]
    near = list(dict.fromkeys([*begun, *difflib.get_close_matches(text, lowered, n=_MOST, cutoff=0.55)]))[:_MOST]
    if near:
        return "did you mean " + " or ".join(lowered[match] for match in near) + "?"
    return "use one of " + ", ".join(options)
