"""The threads that the kernels of the CPU run on: those that torch computes with, where they can be had."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

TILE = 1024
"""Elements drawn at once: the words, z and W of a tile (12 KiB) stay in the L1 cache."""
SMALLEST, LARGEST = 32, 512
"""Tiles that a thread takes at once."""

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_is_forked = False
"""Whether this process is the fork of one whose OpenMP threads had begun, which it does not have."""


@functools.cache
def _openmp() -> Any:
    """``GOMP_parallel`` of the OpenMP that torch computes with; None where it is not GNU's (macOS, Windows). It runs a
    function on torch's own threads: any other thread would share its core with one of those, which spins for
    milliseconds after an operation unless it waits passively."""
    try:
        parallel = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return parallel


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """The threads beside the caller's where there are none of OpenMP, kept between calls."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="zobench-kernel")


def _after_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or _openmp.cache_info().currsize > 0
    _helpers.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spread(kernel: Callable[..., None], numel: int, *arguments: Any) -> None:
    """``kernel(begin, end, *arguments)`` over [0, numel), in pieces taken by torch's number of threads."""
    threads = torch.get_num_threads()
    # a multiple of TILE: several per thread, so that a busy core takes fewer, yet few calls from Python
    size = min(max(-(-numel // (8 * threads * TILE)), SMALLEST), LARGEST) * TILE
    begins = iter(range(0, numel, size))
    errors: list[BaseException] = []

    def work(_: Any = None) -> None:
        try:
            for begin in begins:
                kernel(begin, min(begin + size, numel), *arguments)
        except BaseException as error:  # a callback of C cannot raise
            errors.append(error)

    count = min(threads, -(-numel // size))
    if count > 1 and not _is_forked and (parallel := _openmp()) is not None:
        parallel(_CALLBACK(work), None, count, 0)
    else:
        waiting = [_helpers().submit(work) for _ in range(count - 1)]
        work()
        wait(waiting)
    if errors:
        raise errors[0]
