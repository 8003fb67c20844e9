"""The list of planted bugs fits the code: each can be planted, changes what runs, and names tests that are there."""

import ast

import pytest

from tests.support.planted import ROOT, Bug, bugs


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_each_can_be_planted(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    planted = bug.planted_in(text)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))
    assert all((ROOT / path).is_file() for path in bug.tests)
