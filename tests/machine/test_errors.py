"""Other libraries' errors in one line."""

import pytest

from zobench.machine.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [(OSError("\n no such repository \nsee the log"), "no such repository "), (OSError(), "OSError"),
     (ValueError(" \n"), "ValueError")],
)  # fmt: skip
def test_the_first_line_or_the_type(error: Exception, line: str) -> None:
    assert first_line(error) == line
