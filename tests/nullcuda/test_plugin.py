"""What the plugin holds a run on the null GPU to: no skip that is not listed, no listed test that passes."""

import itertools
import os
import re
import subprocess
import textwrap

import pytest

from tests.nullcuda import build, thinned

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]

TESTS = """
    import pytest
    import torch

    def test_impossible_and_fails():
        assert torch.cuda.device_count() > 8

    def test_impossible_and_passes():
        pass

    def test_impossible_but_broken():
        raise RuntimeError("another error than an assertion")

    def test_not_run():
        raise RuntimeError("it was run")

    @pytest.mark.skip(reason="for no listed reason")
    def test_skipped():
        pass

    @pytest.mark.parametrize("waits", [True, False])
    def test_races(waits):
        side, host = torch.cuda.Stream(), torch.ones(8).pin_memory()
        device = torch.zeros(8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            device.copy_(host, non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        device * 2
    """


FILE = "test_planted.py"


def outcomes(folder, listed):
    """Test -> its outcome in a run on the null GPU, and all that it printed."""
    (folder / FILE).write_text(textwrap.dedent(TESTS))
    lists = {
        "IMPOSSIBLE": dict.fromkeys(listed, "why"),
        "NOT_RUN": {f"{FILE}::test_not_run": "why"},
        "COUNTS_ONLY": set(),
    }
    lines = [f"plugin.{name} = {value!r}" for name, value in lists.items()]
    (folder / "conftest.py").write_text("\n".join(["from tests.nullcuda import plugin", *lines]))
    command = [build.interpreter(), "-m", "pytest", "-p", "tests.nullcuda.plugin", "-rA", "--rootdir", ".", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    found = re.findall(r"^([A-Z]+) +test_planted\.py::(\S+)", done.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in found}, printed


def test_a_list_that_is_not_true_is_an_error(tmp_path):
    listed = [f"{FILE}::test_impossible_{name}" for name in ("and_fails", "and_passes", "but_broken")]
    found, printed = outcomes(tmp_path, listed)
    assert found == {
        "test_impossible_and_fails": "XFAIL",
        "test_impossible_and_passes": "FAILED",
        "test_impossible_but_broken": "FAILED",
        "test_skipped": "ERROR",
        "test_races[True]": "PASSED",
        "test_races[False]": "FAILED",
    }
    assert "not listed in tests/nullcuda/plugin.py" in printed
    assert "work on two streams without a wait between" in printed
    assert re.search(r"SKIPPED \[1\] .*: why$", printed, re.MULTILINE)


def test_a_listed_test_that_is_not_there_is_an_error(tmp_path):
    found, printed = outcomes(tmp_path, [f"{FILE}::test_renamed"])
    assert found == {}
    assert f"lists tests that are not there: {FILE}::test_renamed" in printed


def test_thinned_cases_still_have_every_two_values_together():
    product = list(itertools.product("abcd", "mn", "xyz", "pq", "0123456789"))
    cases = [case for case in product if case[0] != "d" or case[1] == "m"]  # what is never together is not asked for
    chosen = [cases[number] for number in thinned.pairwise(cases)]
    for first, second in itertools.combinations(range(5), 2):
        assert {(case[first], case[second]) for case in chosen} == {(case[first], case[second]) for case in cases}
    assert len(chosen) < 60 < len(cases)


def test_a_large_product_is_thinned_and_the_run_says_so(tmp_path):
    (tmp_path / FILE).write_text(
        textwrap.dedent("""
        import itertools
        import pytest

        @pytest.mark.parametrize("a", range(3))
        @pytest.mark.parametrize("b", [[0], [1], [2]])
        @pytest.mark.parametrize("c", range(6))
        def test_large(a, b, c):
            pass

        @pytest.mark.parametrize("a", range(40))
        def test_small(a):
            pass
    """)
    )
    command = [build.interpreter(), "-m", "pytest", "-p", "tests.nullcuda.plugin", "--rootdir", ".", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    passed, deselected = (int(re.search(rf"(\d+) {word}", done.stdout)[1]) for word in ("passed", "deselected"))
    assert passed + deselected == 54 + 40
    assert 18 <= passed - 40 <= 24
