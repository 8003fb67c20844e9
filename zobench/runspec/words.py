"""The words of a spec that more than one place knows, and what groups of them have in common."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SEQ_LEN = 2048  # the papers' tokens per sequence

SIGNED = ("pertp", "2d", "2d-outer")
"""The values of ``parallel`` that share out the two signs of a perturbation, one to a rank (DistZO2, section 4)."""

_MOST = 3  # words that are suggested


def suggestion(word: object, words: Iterable[str], written: Mapping[str, str] | None = None) -> str:
    """Text naming the nearest of ``words`` to a mistyped ``word``, first those that begin with it: ``did you mean
    ...?`` or the whole list. ``written``: of further words that may be meant how each is written."""
    further = written or {}
    options = [*words, *further]
    lowered = {option.lower(): option for option in options}
    text = str(word).lower()
    most = 1 if further else _MOST
    begun = [option for option in lowered if len(text) > 1 and option.startswith(text)]
    close = difflib.get_close_matches(text, lowered, n=most, cutoff=0.55)
    near = [text] if text in lowered else list(dict.fromkeys([*begun, *close]))[:most]
    if near:
        return "did you mean " + " or ".join(further.get(lowered[match], lowered[match]) for match in near) + "?"
    return "use one of " + ", ".join(option for option in options if option not in further)


def check_choice(name: str, value: object, words: Iterable[str]) -> None:
    """Raises ``ValueError``, one line that lists ``words`` once, unless ``value``, given for ``name``, is of them."""
    options = list(words)
    if value not in options:
        near = suggestion(value, options)
        remedy = near if near.endswith("?") else f"for example {options[0]}"
        raise ValueError(f"`{name}` must be one of {', '.join(options)}, but got {value!r}; {remedy}")


def check_keywords(
    function: str, given: Iterable[str], taken: Iterable[str], written: Mapping[str, str] | None = None
) -> None:
    """Raises ``ValueError``, one line, for a word of ``given`` that is no keyword of ``function``, which has
    ``taken``; ``written``: how the fields of a run, which may be meant, are written there."""
    names = dict.fromkeys(taken)
    for word in given:
        if word not in names:
            raise ValueError(f"`{function}` takes no argument {word!r}; {suggestion(word, tuple(names), written)}")


def named_arguments(fields: Iterable[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes an unknown keyword of a function a one-line ``ValueError``. ``fields``: those of its argument ``spec``."""

    def made(function: Callable[P, R]) -> Callable[P, R]:
        taken = inspect.signature(function).parameters
        written = {field: f"spec=RunSpec({field}=...)" for field in fields}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check_keywords(function.__name__, kwargs, taken, written)
            return function(*args, **kwargs)

        return checked

    return made
