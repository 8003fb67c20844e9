"""Every method and scheme takes the same steps resident and offloaded, bit for bit, on each device."""

import pytest
import torch

from tests.support.devices import DEVICES
from tests.support.tuned import run, spec_of
from zobench.runspec import METHODS, RunSpec


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("method", "noise"),
    [
        (kind.name, noise)
        for kind in METHODS.builtin()
        for noise in ("torch", "counter")
        if not kind.backpropagates and "noise" not in kind.changes(RunSpec(model="opt-tiny", noise=noise))
    ],
)
def test_every_zeroth_order_method_is_the_same_resident_and_offloaded(method, noise, device):
    resident = run(spec_of(method, device, noise=noise, engine="resident"))
    offloaded = run(spec_of(method, device, noise=noise, engine="offload", tier="disk"))
    assert offloaded[:2] == resident[:2]
    assert torch.equal(offloaded[3], resident[3])
    assert all(torch.equal(offloaded[2][name], tensor) for name, tensor in resident[2].items())


@pytest.mark.parametrize("method", ["hizoo", "sparse-mezo", "adamezo", "zo-adam"])
def test_tiles_on_disk_are_the_same_as_whole_blocks_that_stay(method):
    resident = run(spec_of(method, "cpu", noise="counter", engine="resident"))
    tiles = run(spec_of(method, "cpu", noise="counter", engine="offload", tier="disk", granularity="tile"))
    assert tiles[0] == pytest.approx(resident[0], rel=1e-6)  # products of a layer's tiles are cut otherwise
    assert all(torch.allclose(tiles[2][name], tensor, 1e-5, 1e-6) for name, tensor in resident[2].items())
