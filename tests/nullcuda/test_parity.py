"""Losses, g and weights of zobench on the null GPU, whose values are the CPU's, are those of zobench on the CPU, bit
for bit: wherever blocks lie, whatever crosses the link, every method and scheme, either noise."""

import itertools
import math
import sys

import pytest
import torch

from tests.support.devices import CUDA, HOST, ON_GPU
from tests.support.tuned import run, spec_of
from zobench.engine.weights import blocks as units
from zobench.runspec import DECLARED, METHODS, RunSpec

NULL = "tests.nullcuda.start" in sys.modules
pytestmark = [*ON_GPU, pytest.mark.skipif(not NULL, reason="needs the null CUDA runtime: make nullcuda")]

EPS = 2**-10
"""Its reciprocal is exact: CUDA multiplies by it where a CPU divides, see zobench/methods/zo_sgd.py."""
PLACES = {
    "resident": {"engine": "resident"}, "pinned": {}, "two slots": {"slots": 2}, "pageable": {"tier": "pageable"},
    "disk": {"tier": "disk"}, "one block resident": {"resident_blocks": 1}, "allocated": {"reusable_memory": False},
    "one lane": {"overlap": False, "slots": 1}, "second round": {"fused_update": False},
}  # fmt: skip
GRANULARITIES = ["block", "linear", "tile"]
INTERVALS = [1, 3, "inf"]
WIRES = ["none", "fp16", "bf16", "fp8"]
METHODS_OF_POINTS = [
    (kind.name, noise)
    for kind in METHODS.builtin()
    for noise in ("torch", "counter")
    if not kind.backpropagates and "noise" not in kind.changes(RunSpec(model="opt-tiny", noise=noise))
]
PLAIN = {"eggroll": {"options": {"shards": 3, "shaping": "none"}}}
"""A score of members whose losses are nearly one would multiply their rounding."""
METHODS_OF_GRADIENTS = [kind.name for kind in METHODS.builtin() if kind.backpropagates]
SCHEMES = [name for name in DECLARED["scheme"].choices if name != "full"]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(units.tiles, "__defaults__", (3000,))


def both(method, **changes):
    """What a few steps give on the null GPU, and what they give on the CPU, whose tier is pageable for pinned."""
    fields = {"eps": EPS, "engine": "offload", "noise": "counter", **changes}
    runs = []
    for device in (CUDA, "cpu"):
        tier = HOST[device] if fields["engine"] == "offload" and fields.get("tier") != "disk" else "auto"
        runs.append(run(spec_of(method, device, **{"tier": tier, **fields})))
    return runs


def assert_same(computed, there):
    assert computed[:2] == there[:2]
    assert computed[2].keys() == there[2].keys()
    assert [name for name, value in there[2].items() if not torch.equal(computed[2][name], value)] == []
    torch.testing.assert_close(computed[3], there[3], rtol=0, atol=0)
    assert len(set(computed[0])) > 1  # runs that never moved would agree
    assert all(map(math.isfinite, computed[0]))


def assert_near(computed, there):
    """To 1e-6; g has the difference of two losses over 2 eps."""
    assert computed[0] == pytest.approx(there[0], rel=1e-6)
    assert computed[1] == pytest.approx(there[1], rel=0, abs=2 * 1e-6 * max(there[0]) / (2 * EPS))
    torch.testing.assert_close(computed[2], there[2], rtol=0, atol=1e-6)
    assert len(set(computed[0])) > 1


def placements():
    """Every granularity, interval and wire with one another, and with each of the places in turn."""
    turn = itertools.cycle(PLACES.items())
    for granularity, every, wire in itertools.product(GRANULARITIES, INTERVALS, WIRES):
        name, place = next(turn)
        # nothing crosses the link of a resident model; without a fused update nothing is kept
        while (wire != "none" and "engine" in place) or (every != 1 and "fused_update" in place):
            name, place = next(turn)
        case = {"granularity": granularity, "writeback_every": every, "wire": wire, **place}
        yield pytest.param(case, id=f"{name}-{granularity}-{every}-{wire}")


@pytest.mark.parametrize("case", list(placements()))
def test_wherever_blocks_lie_and_whatever_crosses_the_link(case):
    assert_same(*both("zo-sgd", queries=2, weight_decay=0.1, **case))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_sixteen_bits(noise, dtype):
    assert_same(*both("zo-sgd", noise=noise, dtype=dtype))


@pytest.mark.parametrize(("method", "noise"), METHODS_OF_POINTS)
def test_every_method_of_points(method, noise):
    """Where directions act on products, those of all points are one on CUDA, and as many as points on a CPU."""
    agree = assert_same if METHODS.get(method).structure is None else assert_near
    agree(*both(method, noise=noise, **PLAIN.get(method, {})))


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme(scheme, noise):
    assert_same(*both("zo-sgd", scheme=scheme, noise=noise))


@pytest.mark.parametrize("method", METHODS_OF_GRADIENTS)
def test_every_method_of_gradients(method):
    """Their attention has another backward pass on CUDA."""
    assert_near(*both(method, engine="resident", noise="torch"))


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize(
    ("model", "agree"), [("opt350-tiny", assert_same), ("llama-tiny", assert_near), ("qwen3-tiny", assert_near)]
)
def test_other_models(model, agree, noise):
    """Where several queries share a key, attention adds up in another order."""
    agree(*both("zo-sgd", model=model, noise=noise))
