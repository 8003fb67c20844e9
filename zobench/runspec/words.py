"""The words of a spec that more than one place knows, and what groups of them have in common."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

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


def check_keywords(function: str, given: Iterable[str], taken: Iterable[str]) -> None:
    """Raises ``ValueError``, one line, for a word of ``given`` that is no keyword of ``function``, which has
    ``taken``."""
    names = list(taken)
    for word in given:
        if word not in names:
            raise ValueError(f"`{function}` takes no argument {word!r}; {suggestion(word, names)}")


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, of Python's interface, for which a keyword that it does not take is a one-line ``ValueError``."""
    taken = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(function.__name__, kwargs, taken)
        return function(*args, **kwargs)

    return checked
