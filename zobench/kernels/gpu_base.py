"""The parts that the kernels on a CUDA device share: how weights are stored, tables of segments, and launching a
compiled form.

bfloat16 weights travel as int16 and are rounded by integer operations, so that Triton's interpreter, which truncates,
gives the same bits. Nothing is fused (``enable_fp_fusion=False``): see ``philox``.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped,import-not-found"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zobench.machine.accelerator import Accelerator

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""The options with which every kernel is compiled."""
KNOWN_TRITON = triton.__version__.startswith(("3.6.", "3.7."))
"""Whether a compiled kernel is called as ``Launcher`` does; others may want other arguments."""

_COLUMNS = tl.constexpr(6)
"""The columns of a table of segments, int64: the first program of each, and what else its kernels know of it."""


@triton.jit
def widen(x):
    """A stored weight (float32, float16; int16: bfloat16) -> float32."""
    if x.dtype == tl.int16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 -> a stored weight, rounded to nearest even."""
    if dtype == tl.int16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.int16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def row_of(segments, count, rounds, program):
    """The row of the table of ``count`` segments that a program works on: the last that begins no later."""
    low, high = count * 0, count
    for _ in range(rounds):
        middle = (low + high) // 2
        below = tl.load(segments + middle * _COLUMNS) <= program
        low, high = tl.where(below, middle, low), tl.where(below, high, middle)
    return segments + low * _COLUMNS


class Launcher:
    """Launches a kernel. Triton looks at every argument of every call, some 50 us of Python, to find the compiled form;
    here that is kept by what forms differ in, and called as it is.

    Triton's own way is taken the first time, and always where what it gives back is not the form (its interpreter) or
    its way to call one is not known here.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._forms: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, programs: int, dtype: torch.dtype, tensors: Sequence[Tensor | None], numbers: Sequence[Any],
        *constants: Any,
    ) -> None:  # fmt: skip
        """``tensors`` come first among the kernel's arguments, weights with elements of ``dtype``, however they are
        typed; then ``numbers``, of which no value compiles anew, and ``constants``, known when compiling."""
        first = tensors[0]
        assert first is not None
        if first.device.type != "cuda":  # Triton's interpreter
            self._first(programs, dtype, tensors, numbers, constants)
            return
        index, driver = first.device.index, _active()
        if index != driver.get_current_device():
            with Accelerator(first.device).current():
                self(programs, dtype, tensors, numbers, *constants)
            return
        form = (index, dtype, *constants, *[None if tensor is None else tensor.data_ptr() & 15 for tensor in tensors])
        compiled = self._forms.get(form)
        if compiled is None:
            compiled = self._first(programs, dtype, tensors, numbers, constants)
            if KNOWN_TRITON:
                self._forms[form] = compiled
            return
        stream = driver.get_current_stream(index)
        if _hooks.launch_enter_hook.calls or _hooks.launch_exit_hook.calls:  # a profiler's
            compiled[programs, 1, 1](*tensors, *numbers, *constants, stream=stream)
            return
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *tensors, *numbers, *constants,
        )  # fmt: skip

    def _first(
        self, programs: int, dtype: torch.dtype, tensors: Sequence[Tensor | None], numbers: Sequence[Any],
        constants: Sequence[Any],
    ) -> Any:  # fmt: skip
        typed = [tensor if tensor is None else _typed(tensor, dtype) for tensor in tensors]
        return self._kernel[programs,](*typed, *numbers, *constants, **OPTIONS)


_hooks: Any = triton.knobs.runtime if KNOWN_TRITON else None


def _active() -> Any:
    return triton.runtime.driver.active


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights in a flat buffer as elements of ``dtype``, bfloat16 as it travels; a table as it is."""
    if tensor.dtype not in (torch.uint8, torch.bfloat16):
        return tensor
    return tensor.detach().view(torch.int16 if dtype == torch.bfloat16 else dtype)


def stream_of(device: torch.device) -> int:
    """Returns the handle of the device's current stream; 0 for a CPU, where Triton's interpreter runs."""
    return int(_active().get_current_stream(device.index)) if device.type == "cuda" else 0


def to_device(rows: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table of ``rows`` on the device, for use on its current stream; the host does not wait for the copy."""
    return torch.tensor(rows, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
