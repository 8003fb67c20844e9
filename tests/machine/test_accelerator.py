"""The seam: what torch has on this machine decides the device, and another kind of accelerator is refused in a line."""

import re
from types import SimpleNamespace

import pytest
import torch

from zobench.machine import accelerator
from zobench.machine.device import choose_device


def has(monkeypatch: pytest.MonkeyPatch, family: str | None, count: int = 1) -> None:
    """A machine whose torch was built for ``family``."""
    device = None if family is None else SimpleNamespace(type=family)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("family", "count", "chosen", "why"),
    [
        ("cuda", 0, "cpu", "device: cpu, because no CUDA device is visible"),
        ("cuda", 2, "cuda:0", "device: cuda:0, because 2 CUDA devices are visible"),
        (
            "mps", 1, "cpu",
            "device: cpu, because no CUDA device is visible, and mps (an Apple GPU shares the CPU's memory, so nothing "
            "can be offloaded, and torch gives it one stream) is not used",
        ),
    ],
)  # fmt: skip
def test_the_device_is_cuda_where_one_is_visible_and_what_is_not_used_is_told(family, count, chosen, why, monkeypatch):
    has(monkeypatch, family, count)
    assert choose_device("auto") == (chosen, why)


def test_another_accelerator_is_refused_with_the_reason(monkeypatch):
    has(monkeypatch, "xpu")
    why = "torch cannot register host memory with an XPU, from which blocks would be streamed"
    text = f"`device` must be auto, cpu, cuda or cuda:N, but got 'xpu:0': {why}; use device=cpu"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        choose_device("xpu:0")


def test_tf32_is_as_it_was_afterwards_also_after_an_error():
    switches = torch.backends.cuda.matmul
    before = switches.allow_tf32

    def fails():
        with accelerator.tf32(not before):
            assert switches.allow_tf32 is not before
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fails()
    assert switches.allow_tf32 is before


def test_memory_that_cuda_refuses_to_register_is_told_with_the_remedy(monkeypatch):
    runtime = SimpleNamespace(cudaHostRegister=lambda address, nbytes, flags: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda index: accelerator.contextlib.nullcontext())
    with pytest.raises(MemoryError, match=r"pinning 8 bytes of host memory failed \(CUDA error 2\); use tier=pageable"):
        accelerator.Accelerator("cuda:0").register(torch.zeros(8, dtype=torch.uint8))
