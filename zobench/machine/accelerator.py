"""The accelerator: all that zobench asks of a device that is not the CPU, on torch.accelerator.

Streams, events, waits, memory and the allocator's peaks are torch's for any accelerator. What CUDA alone has is here
too and nowhere else: registering host memory, UUID, place on the PCI bus, peers, the products' precision, NCCL among
the devices of one process. A ROCm build of torch has all of it under CUDA's names; only NVML is missing there, and a
reading of it is then None. Other accelerators are refused by :func:`refused`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zobench.machine.files import contents

FAMILY = "cuda"
"""Torch's name for the devices that zobench runs on: NVIDIA's, and AMD's with a ROCm build."""

REFUSED = {
    "xpu": "torch cannot register host memory with an XPU, from which blocks would be streamed",
    "mps": "an Apple GPU shares the CPU's memory, so nothing can be offloaded, and torch gives it one stream",
}
"""Kind of accelerator -> why zobench does not run on it."""

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process, not only for the one that is current."""

CYCLES_PER_SECOND = 1_700_000_000
"""The rate of a GPU's clock, about, that :meth:`Accelerator.spin` reckons with."""


def count() -> int:
    """How many devices are visible that zobench can use."""
    accelerator = torch.accelerator.current_accelerator()
    return torch.accelerator.device_count() if accelerator is not None and accelerator.type == FAMILY else 0


def refused() -> str:
    """``xpu (why not)`` where this machine has an accelerator that zobench does not run on, else ""."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == FAMILY:
        return ""
    return f"{accelerator.type} ({REFUSED.get(accelerator.type, 'zobench was written for CUDA')})"


def is_initialised() -> bool:
    """Whether this process may have a context on a device already."""
    return bool(torch.cuda.is_initialized())


def platform() -> str | None:
    """The platform that torch was built for, ``13.0`` of CUDA or ``ROCm 7.1``; None for a CPU build."""
    return torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None)


def gather(slices: Sequence[Tensor], slots: Sequence[Tensor]) -> None:
    """NCCL's all-gather among devices of this process: each slot, one on each device, gets all slices.

    Raises ``RuntimeError`` or ``AttributeError`` where torch was built without NCCL or NCCL fails.
    """
    from torch.cuda import nccl

    nccl.all_gather(slices, slots)


@contextlib.contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Inside, products of float32 on the device run in TF32, or do not."""
    switches = torch.backends.cuda.matmul
    before, switches.allow_tf32 = switches.allow_tf32, wanted
    try:
        yield
    finally:
        switches.allow_tf32 = before


class Accelerator:
    """One device, such as ``cuda:0``; ``cuda`` is the current one. It holds nothing and is made where it is needed."""

    __slots__ = ("device",)

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    # --- any accelerator's ------------------------------------------------------------------------------------------

    def make_current(self) -> None:
        """Makes it the device that torch uses where none is named."""
        torch.accelerator.set_device_index(self.device)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, it is the device that torch uses where none is named."""
        return torch.accelerator.device_index(self._index)

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def stream(self) -> torch.Stream:
        """A new stream; ``with stream:`` issues what follows on it."""
        return torch.Stream(self.device)

    def current_stream(self) -> torch.Stream:
        """The stream on which this thread issues."""
        return torch.accelerator.current_stream(self.device)

    def mark(self, stream: torch.Stream, timed: bool = True) -> torch.Event:
        """An event that ``stream`` reaches now; two that are ``timed`` have a time between them."""
        event = torch.Event(self.device, enable_timing=timed)
        event.record(stream)
        return event

    def free_bytes(self) -> int:
        """Bytes of its memory that no process uses."""
        return torch.accelerator.get_memory_info(self.device)[0]

    def allocated_bytes(self) -> int:
        """Bytes of the tensors that this process holds there now."""
        return torch.accelerator.memory_allocated(self.device)

    def peak_bytes(self) -> int:
        """Most bytes of tensors at once since the last :meth:`reset_peaks`."""
        return torch.accelerator.max_memory_allocated(self.device)

    def reserved_peak_bytes(self) -> int:
        """Most bytes that torch's allocator held at once since then, its cache included."""
        return torch.accelerator.max_memory_reserved(self.device)

    def reset_peaks(self) -> None:
        """The peaks start again from what is in use now."""
        torch.accelerator.reset_peak_memory_stats(self.device)

    # --- CUDA's own -------------------------------------------------------------------------------------------------

    def properties(self) -> Any:
        """CUDA's properties: ``name``, ``total_memory`` in bytes, ``major`` and ``minor`` of the capability, ..."""
        return torch.cuda.get_device_properties(self.device)

    def uuid(self) -> str:
        """Its UUID, as torch spells it; of a part of a GPU with the ``MIG-`` in front that torch leaves out."""
        card = self.properties()
        return f"MIG-{card.uuid}" if " MIG " in card.name else str(card.uuid)

    def bus_address(self) -> str | None:
        """Its place on the PCI bus as /sys spells it, ``0000:c1:00.0``; None where torch does not tell."""
        card = self.properties()
        try:
            return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
        except AttributeError:
            return None

    def spin(self, seconds: float) -> None:
        """Keeps the current stream busy for about so long, with a kernel that does nothing."""
        torch.cuda._sleep(int(seconds * CYCLES_PER_SECOND))

    def reaches(self, other: int) -> bool:
        """Whether it can read the memory of the device with this index."""
        return torch.cuda.can_device_access_peer(self._index, other)

    def pool(self) -> Any:
        """A pool for :meth:`within`; when nobody has it or its tensors any more its memory is freed."""
        with self.current():
            return torch.cuda.MemPool()

    @contextlib.contextmanager
    def within(self, pool: Any) -> Iterator[None]:
        """Inside, tensors come from the device's own malloc, into ``pool``, and not from what the allocator keeps."""
        with self.current(), torch.cuda.use_mem_pool(pool):
            yield

    def register(self, memory: Tensor) -> None:
        """Pins host memory of any size where it lies. Raises ``MemoryError`` where CUDA refuses."""
        with self.current():  # else a filler thread would wake the first device
            code = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), PORTABLE)
        if int(code) != 0:
            raise MemoryError(
                f"pinning {memory.numel()} bytes of host memory failed (CUDA error {code}); use tier=pageable"
            )

    def unregister(self, memory: Tensor) -> None:
        """Undoes :meth:`register`, before the memory is unmapped."""
        with self.current():
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())

    @property
    def _index(self) -> int:
        return torch.accelerator.current_device_index() if self.device.index is None else self.device.index


def devices() -> list[Accelerator]:
    """All that are visible, in CUDA's order."""
    return [Accelerator(f"{FAMILY}:{index}") for index in range(count())]


def cpus_near(device: str, root: str = "") -> frozenset[int] | None:
    """The CPUs of a CUDA device's node that this process may use; None where it makes no difference or is not known.

    That is: another kind of device, one node, a node whose CPUs are all forbidden here. ``root`` replaces / in tests.
    """
    nodes = list(Path(f"{root}/sys/devices/system/node").glob("node[0-9]*"))
    if not device.startswith("cuda") or len(nodes) < 2 or not hasattr(os, "sched_getaffinity"):
        return None
    if (address := Accelerator(device).bus_address()) is None:
        return None
    node = contents(f"{root}/sys/bus/pci/devices/{address}/numa_node").decode().strip()
    if not node.isdigit():  # "-1": the firmware does not say
        return None
    cpus = _numbers(contents(f"{root}/sys/devices/system/node/node{node}/cpulist").decode().strip())
    return frozenset(cpus & os.sched_getaffinity(0)) or None


def stay_near(cpus: Collection[int] | None) -> None:
    """Keeps the calling thread on these CPUs from now on; None leaves it alone, and so does a system that refuses.

    Pages belong to the node of the thread that touches them first. Threads that this one starts inherit its CPUs.
    """
    if cpus:
        with contextlib.suppress(OSError):  # only the place of the pages, and so some speed, is lost
            os.sched_setaffinity(0, cpus)


def _numbers(text: str) -> set[int]:
    """The numbers in one of the kernel's lists, such as ``0-3,8,10-11``."""
    numbers: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers
