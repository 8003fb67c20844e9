"""What zobench's Triton kernels would have written: computed after each launch by the CPU's kernels on the same memory.

The launch itself is Triton's own: compiled, loaded and launched on the null driver, where it is counted. The arguments
are taken from there, the tables of updates out of device memory, so a table that came too late gives wrong weights.
"""

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
        self.function, self.types = src.fn, src.signature

    @functools.wraps(call)
    def called(self: Any, *rest: Any) -> None:
        call(self, *rest)
        if values.ENABLED:
            with values.without_values():
                arguments = dict(zip(self.function.arg_names, rest[9:], strict=True))
                typing = {name: typed(value, self.types[name]) for name, value in arguments.items()}
                perform(self.function.__name__, {**typing, "programs": rest[0]})

    launcher.__init__, launcher.__call__ = made, called


def typed(value: Any, kind: str) -> Any:
    """An argument as the kernel has it: memory comes as bytes too."""
    return value.view(TYPES[kind]) if isinstance(value, Tensor) and kind in TYPES else value


def perform(kernel: str, arguments: dict[str, Any]) -> None:
    """Writes what ``kernel`` writes when it is launched with ``told``."""
    writes = [arguments[name] for name in WRITES[kernel] if arguments.get(name) is not None]
    reads = [value for value in arguments.values() if isinstance(value, Tensor)]
    values.arrive(kernel, reads, writes)
    KERNELS[kernel]({name: on_host(value) for name, value in arguments.items()})


def _word(low: int, high: int) -> int:
    return (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32


TYPES = {"*fp32": torch.float32, "*fp16": torch.float16, "*i16": torch.bfloat16}


def _span(arguments: dict[str, Any]) -> Any:
    from zobench.kernels import Span

    start = _word(arguments["start0"], arguments["start1"]) if arguments["rows"] is None else 0
    return Span(arguments["tensor_id"] & 0xFFFFFFFF, start, arguments["rows"])


def _normals(arguments: dict[str, Any]) -> None:
    from zobench.kernels import cpu

    cpu.normals(_word(arguments["key0"], arguments["key1"]), _span(arguments), arguments["out"])


def _advance(arguments: dict[str, Any]) -> None:
    from zobench.kernels import Flat, Segment, Update, cpu

    rows = [] if arguments["table"] is None else arguments["table"][: arguments["count"]].tolist()
    updates = [Update(_word(low, high), *map(_float, numbers)) for low, high, *numbers in rows]
    master, *others = (arguments[name] for name in ("master", "base", "scratch", "mirror"))
    draw = _word(arguments["key0"], arguments["key1"]), arguments["scale"]
    if arguments["segments"] is None:
        cpu.advance(master, _span(arguments), updates, *others, *draw)  # type: ignore[call-arg]
        return
    rows = arguments["segments"][: arguments["pieces"]].tolist()
    segments = [
        Segment(tensor, start, offset, numel, bool(decayed)) for _, offset, start, numel, tensor, decayed in rows
    ]
    flat = Flat(master.dtype, segments)
    base, scratch = (None if other is None else other.view(torch.uint8) for other in others[:2])
    cpu.advance_flat(master.view(torch.uint8), flat, updates, base, scratch, *draw)


def _float(bits: int) -> float:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32).item()


def _packing(arguments: dict[str, Any]) -> Any:
    from zobench.kernels.base import Packing, WireTensor

    rows = arguments["segments"][: arguments["count"]].tolist()
    ends = [row[0] for row in rows[1:]] + [arguments["programs"]]
    dtype = arguments["weights"].dtype
    pieces = [
        WireTensor(weights * dtype.itemsize, values, None if scales < 0 else 4 * scales, end - first, width)
        for (first, weights, values, width, scales, _), end in zip(rows, ends, strict=True)
    ]
    return Packing(dtype, pieces)


def _pack(arguments: dict[str, Any]) -> None:
    from zobench.kernels import scaled

    scaled.pack(_packing(arguments), arguments["weights"].view(torch.uint8), arguments["values"].view(torch.uint8))


def _unpack(arguments: dict[str, Any]) -> None:
    from zobench.kernels import scaled

    scaled.unpack(_packing(arguments), arguments["values"].view(torch.uint8), arguments["weights"].view(torch.uint8))


def _flip(arguments: dict[str, Any]) -> None:
    from zobench.kernels import cpu

    cpu.flip(arguments["master"], arguments["scratch"])


KERNELS: dict[str, Callable[[dict[str, Any]], None]] = {
    "_normals": _normals, "_advance": _advance, "_flip": _flip, "_pack": _pack, "_unpack": _unpack,
}  # fmt: skip
WRITES = {
    "_normals": ["out"], "_advance": ["master", "scratch", "mirror"], "_flip": ["scratch"], "_pack": ["values"],
    "_unpack": ["weights"],
}  # fmt: skip
