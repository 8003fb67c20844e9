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


@pytest.mark.gpu
def test_events_on_cuda():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    timer = StepTimer("cuda")
    x = torch.ones(2048, 2048, device="cuda")
    with timer:
        x @ x
    assert 0 < timer.seconds()[0] < 5
