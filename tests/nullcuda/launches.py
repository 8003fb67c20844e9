"""What zobench's Triton kernels would have written: computed after each launch by the CPU's kernels on the same memory.

The launch itself is Triton's own: compiled, loaded and launched on the null driver, where it is counted. The arguments
are taken from there, the tables of updates out of device memory, so a table that came too late gives wrong weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.nullcuda import values
from tests.nullcuda.values import on_host


def watch(driver: ModuleType) -> None:
    """Follows every launch of ``driver``, Triton's for NVIDIA."""
    launcher = driver.CudaLauncher
    make, call = launcher.__init__, launcher.__call__

    @functools.wraps(make)
    def made(self: Any, src: Any, metadata: Any) -> None:
        make(self, src, metadata)
        self.function = src.fn

    @functools.wraps(call)
    def called(self: Any, *rest: Any) -> None:
        call(self, *rest)
        if values.ENABLED:
            with values.without_values():
                perform(self.function.__name__, dict(zip(self.function.arg_names, rest[9:], strict=False)))

    launcher.__init__, launcher.__call__ = made, called


def perform(kernel: str, told: dict[str, Any]) -> None:
    """Writes what ``kernel`` writes when it is launched with ``told``."""
    writes = [told[name] for name in WRITES[kernel] if told.get(name) is not None]
    reads = [value for value in told.values() if isinstance(value, Tensor)]
    values.arrive(kernel, reads, writes)
    KERNELS[kernel]({name: on_host(value) for name, value in told.items()})


def _word(low: int, high: int) -> int:
    return (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32


def _span(told: dict[str, Any]) -> Any:
    from zobench.kernels import Span

    start = _word(told["start0"], told["start1"]) if told["rows"] is None else 0
    return Span(told["tensor_id"] & 0xFFFFFFFF, start, told["rows"])


def _weights(tensor: Tensor | None) -> Tensor | None:
    """bfloat16 travels as int16."""
    return tensor.view(torch.bfloat16) if tensor is not None and tensor.dtype == torch.int16 else tensor


def _normals(told: dict[str, Any]) -> None:
    from zobench.kernels import cpu

    cpu.normals(_word(told["key0"], told["key1"]), _span(told), told["out"])


def _advance(told: dict[str, Any]) -> None:
    from zobench.kernels import Update, cpu

    rows = [] if told["table"] is None else told["table"][: told["count"]].tolist()
    updates = [Update(_word(low, high), *map(_float, numbers)) for low, high, *numbers in rows]
    tensors = (_weights(told[name]) for name in ("master", "base", "scratch", "mirror"))
    master, *others = tensors
    cpu.advance(master, _span(told), updates, *others, _word(told["key0"], told["key1"]), told["scale"])


def _float(bits: int) -> float:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32).item()


def _flip(told: dict[str, Any]) -> None:
    from zobench.kernels import cpu

    cpu.flip(_weights(told["master"]), _weights(told["scratch"]))


KERNELS: dict[str, Callable[[dict[str, Any]], None]] = {"_normals": _normals, "_advance": _advance, "_flip": _flip}
WRITES = {"_normals": ["out"], "_advance": ["master", "scratch", "mirror"], "_flip": ["scratch"]}
