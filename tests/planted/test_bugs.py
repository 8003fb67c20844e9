"""The list of planted bugs fits the code: each can be planted, changes what runs, and names tests that are there."""

import ast
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import planted
from tests.support.planted import ROOT, Bug, bugs


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_each_can_be_planted(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    planted = bug.planted_in(text)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))
    assert all((ROOT / path).is_file() for path in bug.tests)


def test_tests_that_hang_with_a_bug_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a process that they started and that keeps their output open, for which a plain timeout would wait."""
    (tmp_path / "test_x.py").write_text("import subprocess\ndef test_it(): subprocess.run(['sleep', '60'])\n")
    monkeypatch.setattr(planted, "SECONDS", 1)
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        planted.failing(tmp_path, ["test_x.py"], "cache")
    assert time.monotonic() - begin < 50
