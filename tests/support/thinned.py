"""Which cases of a large product of parameters run: so few that any two values of two parameters still meet once.

A fault shows where two settings meet, seldom three. ``--products`` runs all cases, as before a release. A product is a
test with at least three ``parametrize`` marks: what one mark lists are cases that somebody chose.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import pytest

LARGE = 12
"""A test with more cases than this is thinned."""


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
    """The cases of large products among ``items`` that need not run. Cases that need a GPU cover their own pairs."""
    tests = defaultdict[tuple[str, bool], list[pytest.Item]](list)
    for item in items:
        if len(list(item.iter_markers("parametrize"))) >= 3:
            tests[item.nodeid.partition("[")[0], item.get_closest_marker("gpu") is not None].append(item)
    thinned = list[pytest.Item]()
    for cases in tests.values():
        if len(cases) > LARGE:
            kept = set(pairwise([_values(item) for item in cases]))
            thinned += [item for number, item in enumerate(cases) if number not in kept]
    return thinned


def _values(item: pytest.Item) -> list[str]:
    """A value for each ``parametrize`` mark of a case; names that one mark sets together are one value."""
    params = item.callspec.params  # type: ignore[attr-defined]
    values = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        values.append(repr([params[name.strip()] for name in names]))
    return values
