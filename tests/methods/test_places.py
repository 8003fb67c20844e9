"""Every method and scheme takes the same steps resident and offloaded, bit for bit, on each device."""

import pytest
import torch

from tests.support.devices import DEVICES, HOST
from tests.support.tuned import run, spec_of
from zobench.runspec import METHODS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("method", "noise"),
    [
        (kind.name, noise)
        for kind in METHODS.own()
        for noise in ("torch", "counter")
        if not kind.backpropagates and (kind.structure is None or noise == "counter")
    ],
)
def test_every_zeroth_order_method_is_the_same_resident_and_offloaded(method, noise, device):
    resident = run(spec_of(method, device, noise=noise, engine="resident"))
    for tier in (HOST[device], "disk"):
        offloaded = run(spec_of(method, device, noise=noise, engine="offload", tier=tier))
        assert offloaded[:2] == resident[:2]
        assert torch.equal(offloaded[3], resident[3])
        assert all(torch.equal(offloaded[2][name], tensor) for name, tensor in resident[2].items())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_every_scheme_is_the_same_resident_and_offloaded(scheme, noise, device):
    resident = run(spec_of("zo-sgd", device, scheme=scheme, noise=noise, engine="resident"))
    offloaded = run(spec_of("zo-sgd", device, scheme=scheme, noise=noise, engine="offload", tier=HOST[device]))
    assert offloaded[:2] == resident[:2]
    assert all(torch.equal(offloaded[2][name], tensor) for name, tensor in resident[2].items())
