"""Methods with counter noise, and backpropagation, on a CUDA device: near what a CPU computes."""

import pytest
import torch

from tests.support.devices import CUDA, ON_GPU
from tests.support.tuned import run, spec_of
from zobench.runspec import METHODS

pytestmark = ON_GPU
STATEFUL = [kind.name for kind in METHODS.builtin() if kind.travelling_states]


@pytest.mark.parametrize("method", [*STATEFUL, "zo-sgd-sign", "forward-grad"])
def test_counter_noise_gives_what_a_cpu_gives(method):
    here = run(spec_of(method, CUDA, noise="counter"))
    there = run(spec_of(method, "cpu", noise="counter"))
    assert here[0] == pytest.approx(there[0], abs=1e-3)
    torch.testing.assert_close(here[3], there[3], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("changes", [{}, {"autocast": "bf16"}, {"autocast": "fp16"}, {"checkpointing": True}], ids=str)
@pytest.mark.parametrize("method", [kind.name for kind in METHODS.builtin() if kind.backpropagates])
def test_backpropagation_gives_what_a_cpu_gives(method, changes):
    here, there = run(spec_of(method, CUDA, **changes)), run(spec_of(method, "cpu"))
    close = 2e-3 if changes.get("autocast", "none") == "none" and method != "hybrid" else 5e-2
    assert here[0][0] == pytest.approx(there[0][0], abs=close)
    assert here[0] != [here[0][0]] * len(here[0])
