"""Large products of parameters are thinned to their pairs, unless ``--products`` is given."""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import thinned


def test_thinned_cases_still_have_every_two_values_together():
    product = list(itertools.product("abcd", "mn", "xyz", "pq", "0123456789"))
    cases = [case for case in product if case[0] != "d" or case[1] == "m"]  # what is never together is not asked for
    chosen = [cases[number] for number in thinned.pairwise(cases)]
    for first, second in itertools.combinations(range(5), 2):
        assert {(case[first], case[second]) for case in chosen} == {(case[first], case[second]) for case in cases}
    assert len(chosen) < 60 < len(cases)


@pytest.mark.slow
def test_a_large_product_is_thinned_and_listed_cases_are_not(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_addoption, pytest_collection_modifyitems  # noqa: F401\n"
    )
    (tmp_path / "test_products.py").write_text(
        textwrap.dedent("""
        import pytest

        @pytest.mark.parametrize("a", range(3))
        @pytest.mark.parametrize(("b", "b_squared"), [([0], 0), ([1], 1), ([2], 4)])
        @pytest.mark.parametrize("c", range(6))
        def test_product(a, b, b_squared, c):
            pass

        @pytest.mark.parametrize("a", range(40))
        def test_listed(a):
            pass
    """)
    )

    def passed_and_deselected(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *options, "."]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        return [int(match[1]) if (match := re.search(rf"(\d+) {word}", done.stdout)) else 0 for word in OUTCOMES]

    passed, deselected = passed_and_deselected()
    assert passed + deselected == 54 + 40
    assert 18 <= passed - 40 <= 24
    assert passed_and_deselected("--products") == [94, 0]


OUTCOMES = ("passed", "deselected")
