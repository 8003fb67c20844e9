"""Which cases of a large product run on the null GPU: so few that any two values of two parameters still meet once.

A fault of the CUDA path shows where two settings meet, seldom three; and on a real GPU all of them run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

LARGE = 40
"""Cases of one test from which on they are thinned."""


def pairwise(cases: Sequence[Sequence[str]]) -> list[int]:
    """The indices of cases, as many values each, that cover all pairs of values which the cases have; greedily."""
    pairs = [set(itertools.combinations(enumerate(case), 2)) for case in cases]
    missing, chosen = set[object]().union(*pairs), list[int]()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of large products among ``items`` that need not run."""
    found = list[pytest.Item]()
    for _, own in itertools.groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(own)
        if len(cases) > LARGE:
            kept = {id(cases[number]) for number in pairwise([_values(item) for item in cases])}
            found += [item for item in cases if id(item) not in kept]
    return found


def _values(item: pytest.Item) -> list[str]:
    return [repr(value) for _, value in sorted(item.callspec.params.items())]  # type: ignore[attr-defined]
