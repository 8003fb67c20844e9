"""Large products of parameters are thinned to their pairs, unless ``--products`` is given."""

import itertools

from tests.support import thinned


def test_thinned_cases_still_have_every_two_values_together():
    product = list(itertools.product("abcd", "mn", "xyz", "pq", "0123456789"))
    cases = [case for case in product if case[0] != "d" or case[1] == "m"]  # what is never together is not asked for
    chosen = [cases[number] for number in thinned.pairwise(cases)]
    for first, second in itertools.combinations(range(5), 2):
        assert {(case[first], case[second]) for case in chosen} == {(case[first], case[second]) for case in cases}
    assert len(chosen) < 60 < len(cases)
