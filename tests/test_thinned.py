"""Large products of parameters are thinned to their pairs, unless ``--products`` is given."""

import itertools
from types import SimpleNamespace

import pytest

from tests.support import thinned


def item(test, marks, **params):
    """A case of ``test`` as pytest collects it, of parametrize marks that name parameters."""
    marks_of = {"parametrize": [pytest.mark.parametrize(names, []).mark for names in marks]}
    return SimpleNamespace(
        nodeid=f"{test}[{params}]",
        callspec=SimpleNamespace(params=params),
        iter_markers=lambda name: iter(marks_of.get(name, ())),
        get_closest_marker=lambda name: None,
    )


def test_thinned_cases_still_have_every_two_values_together_and_listed_cases_are_not_thinned():
    """Names that one mark sets together are one value; what is never together is not asked for."""
    marks, values = ["a", ("b", "b_squared"), "c", "d"], itertools.product(range(3), range(4), range(6), range(10))
    cases = [case for case in values if case[0] or case[1]]
    product = [item("p", marks, a=a, b=[b], b_squared=b * b, c=c, d=d) for a, b, c, d in cases]
    left_out = thinned.left_out([*product, *(item("listed", ["a"], a=a) for a in range(40))])
    kept = [case for it, case in zip(product, cases, strict=True) if it not in left_out]
    for first, second in itertools.combinations(range(4), 2):
        assert {(case[first], case[second]) for case in kept} == {(case[first], case[second]) for case in cases}
    assert all(case.nodeid.startswith("p[") for case in left_out)
    assert 60 <= len(kept) < 90
