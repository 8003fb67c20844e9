"""What ended a process, in a word."""

import pytest

from zobench.machine.processes import ended_by
from zobench.parallel.launch import Lost


@pytest.mark.parametrize(
    ("code", "name"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-35, "signal 35"), (-200, "signal 200")]
)
def test_a_signal_is_told_by_its_name_or_where_it_has_none_by_its_number(code: int, name: str) -> None:
    assert ended_by(code) == name
    assert Lost(rank=1, code=code).reason == f"rank 1 was ended by {name}"
