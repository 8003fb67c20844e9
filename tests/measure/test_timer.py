"""StepTimer on the CPU: one time per step that ended."""

import time

import pytest

from zobench.measure.timer import StepTimer


def test_one_time_per_step():
    timer = StepTimer("cpu")
    assert timer.seconds() == []
    for pause in (0.01, 0.03):
        with timer:
            time.sleep(pause)
    first, second = timer.seconds()
    assert 0.01 <= first < second
    with pytest.raises(RuntimeError), timer:
        raise RuntimeError
    assert len(timer.seconds()) == 2
