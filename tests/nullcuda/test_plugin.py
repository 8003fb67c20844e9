"""What the plugin holds a run on the null GPU to: no skip that is not listed, no listed test that passes."""

import os
import re
import subprocess
import textwrap

import pytest

from tests.nullcuda import build, plugin

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]

TESTS = """
    import pytest
    import torch

    def test_impossible_and_fails():
        assert torch.cuda.device_count() > 8

    def test_impossible_and_passes():
        pass

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


def test_a_list_that_is_not_true_is_an_error(tmp_path):
    (tmp_path / FILE).write_text(textwrap.dedent(TESTS))
    lists = {
        "IMPOSSIBLE": {f"{FILE}::test_impossible_{name}": "why" for name in ("and_fails", "and_passes")},
        "NOT_RUN": {f"{FILE}::test_not_run": "why"},
        "COUNTS_ONLY": set(),
    }
    lines = [f"plugin.{name} = {value!r}" for name, value in lists.items()]
    (tmp_path / "conftest.py").write_text("\n".join(["from tests.nullcuda import plugin", *lines]))
    command = [build.interpreter(), "-m", "pytest", "-p", "tests.nullcuda.plugin", "-rA", "--rootdir", ".", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    ended = {name: word for word, name in re.findall(r"^([A-Z]+) +test_planted\.py::(\S+)", done.stdout, re.MULTILINE)}
    assert ended == {
        "test_impossible_and_fails": "XFAIL",
        "test_impossible_and_passes": "FAILED",
        "test_skipped": "ERROR",
        "test_races[True]": "PASSED",
        "test_races[False]": "FAILED",
    }
    assert "not listed in tests/nullcuda/plugin.py" in printed
    assert "work on two streams without a wait between" in printed
    assert re.search(r"SKIPPED \[1\] .*: why$", printed, re.MULTILINE)


def test_a_listed_test_that_is_not_there_is_named():
    missing_file = next(iter(plugin.NOT_RUN)).partition("::")[0]
    assert plugin.absent({f"{missing_file}::test_another"}) == sorted(plugin.NOT_RUN)
