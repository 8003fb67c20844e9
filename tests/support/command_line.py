"""Fixtures of the command line in the test's own process; the conftest of a folder that uses them imports them."""

from collections.abc import Callable

import pytest

from zobench import cli


@pytest.fixture
def zobench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit code, standard output, standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def refused(zobench: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must end with exit code 2 and one line, but for that of its device: the line."""

    def line(*arguments: str) -> str:
        code, out, err = zobench(*arguments)
        lines = [text for text in err.splitlines() if not text.startswith("device: ")]
        assert (code, out, len(lines)) == (2, "", 1), err
        return lines[0]

    return line
