"""The list of planted bugs fits the code: each can be planted, changes what runs, and names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.planted import __main__ as command
from tests.support.planted import ROOT, Bug, bugs


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_each_can_be_planted(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    planted = bug.planted_in(text)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))
    assert all((ROOT / path).is_file() for path in bug.tests)


def test_tests_that_hang_with_a_bug_are_killed_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a process that they started and that keeps their output open, for which a plain timeout would wait."""
    (tmp_path / "test_x.py").write_text("import subprocess\ndef test_it(): subprocess.run(['sleep', '60'])\n")
    (tmp_path / "x.py").write_text("a\n")
    monkeypatch.setattr(command, "SECONDS", 3)
    monkeypatch.setattr(command, "copied", lambda folder: tmp_path)
    monkeypatch.setattr(command, "bugs", lambda: [Bug(name="b", file="x.py", old="a", new="c", tests=["test_x.py"])])
    assert command.main([]) == 1
    assert capsys.readouterr().out.endswith(" s  b: timed out\n0 of 1 planted bugs are found\n")
    assert (tmp_path / "x.py").read_text() == "a\n"


def test_a_bug_whose_place_is_gone_is_told() -> None:
    with pytest.raises(ValueError, match=r"must have its text once in x.py, but it is there 2 times"):
        Bug(name="b", file="x.py", old="a", new="c", tests=[]).planted_in("a a")
