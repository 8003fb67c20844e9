"""What the null runtime has counted, and the races that it has seen."""

import ctypes
import functools

FIELDS = (
    "launches", "triton", "h2d_pinned", "h2d_pageable", "d2h_pinned", "d2h_pageable", "d2d", "memsets",
    "stream_syncs", "device_syncs", "event_syncs", "events_made", "records", "waits",
    "mallocs", "frees", "host_allocs", "host_registers", "bytes_h2d", "bytes_d2h", "races",
    "waiting_frees",
)  # fmt: skip
"""As in ``struct counts`` of src/runtime.h."""


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in FIELDS]


@functools.cache
def runtime() -> ctypes.CDLL:
    """The null runtime that this process has loaded."""
    library = ctypes.CDLL("libcudart.so.13")
    library.nullcuda_races.restype = ctypes.c_char_p
    library.nullcuda_issue.argtypes = [ctypes.c_void_p]
    library.nullcuda_touched.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p,
    ]  # fmt: skip
    return library


def counts() -> dict[str, int]:
    """All counts since the process began."""
    counts = _Counts.in_dll(runtime(), "nullcuda_counts")
    return {name: getattr(counts, name) for name in FIELDS}


def kernels() -> dict[str, int]:
    """How often each of torch's kernels was launched, by its mangled name."""
    text = ctypes.create_string_buffer(1 << 22)
    runtime().nullcuda_kernels(text, len(text))
    rows = (line.split(" ", 1) for line in text.value.decode().splitlines())
    return {name: int(count) for count, name in rows}


def races() -> str:
    """A line for each race seen since the last call."""
    text = runtime().nullcuda_races().decode()
    runtime().nullcuda_forget_races()
    return text
