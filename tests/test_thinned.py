"""Large products of parameters are thinned to their pairs, unless ``--products`` is given."""

import itertools
from types import SimpleNamespace

import pytest

from tests.support import thinned


def test_thinned_cases_still_have_every_two_values_together():
    product = list(itertools.product("abcd", "mn", "xyz", "pq", "0123456789"))
    cases = [case for case in product if case[0] != "d" or case[1] == "m"]  # what is never together is not asked for
    chosen = [cases[number] for number in thinned.pairwise(cases)]
    for first, second in itertools.combinations(range(5), 2):
        assert {(case[first], case[second]) for case in chosen} == {(case[first], case[second]) for case in cases}
    assert len(chosen) < 60 < len(cases)


def item(test, marks, **params):
    """A case of ``test`` as pytest collects it, of parametrize marks that name parameters."""
    marks_of = {"parametrize": [pytest.mark.parametrize(names, []).mark for names in marks]}
    return SimpleNamespace(
        nodeid=f"{test}[{params}]",
        callspec=SimpleNamespace(params=params),
        iter_markers=lambda name: iter(marks_of.get(name, ())),
        get_closest_marker=lambda name: None,
    )


def test_a_large_product_is_thinned_and_listed_cases_are_not():
    """Names that one mark sets together are one value."""
    marks = ["a", ("b", "b_squared"), "c"]
    product = [item("p", marks, a=a, b=[b], b_squared=b * b, c=c) for a in range(3) for b in range(3) for c in range(6)]
    left_out = thinned.left_out([*product, *(item("listed", ["a"], a=a) for a in range(40))])
    assert all(case.nodeid.startswith("p[") for case in left_out)
    assert 18 <= len(product) - len(left_out) <= 24
