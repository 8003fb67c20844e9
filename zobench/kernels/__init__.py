"""Counter-based noise and the passes over the weights that draw it: z(seed, tensor, element), never stored.

The stream is defined in ``philox``: normal numbers, or random signs where the seed says so. CPU tensors go to numba,
CUDA tensors to Triton, others to torch operations; the results have the same bits. Meta tensors are left alone; who
asks is told of the passes over them (:func:`watched`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import torch
from torch import Tensor

from zobench.kernels import philox
from zobench.kernels.base import DTYPES, Flat, Pass, Segment, Span, Update, check, check_copies, check_flat, is_pass

__all__ = [
    "DTYPES", "Flat", "Pass", "Segment", "Span", "Update", "advance", "advance_flat", "flip", "normals",
    "normals_each", "prepare", "watched",
]  # fmt: skip

_COMPILERS = {"cpu": "numba", "cuda": "triton"}
_MODULES = {"cpu": "cpu", "cuda": "gpu"}


@functools.cache
def _backend(device: str) -> ModuleType:
    """The module that serves a device type; the torch reference, with a warning, where its compiler is missing."""
    if device not in _MODULES:
        return philox
    try:
        return importlib.import_module(f"{__name__}.{_MODULES[device]}")
    except ImportError as error:
        warnings.warn(
            f"the counter noise runs in plain torch operations on {device}, many times slower: {error}; "
            f"install it with `pip install {_COMPILERS[device]}`",
            stacklevel=3,
        )
        return philox


_watching: list[Callable[[Pass], None]] = []


@contextlib.contextmanager
def watched(look: Callable[[Pass], None]) -> Iterator[None]:
    """Inside, ``look`` is told of every pass over tensors on the meta device, which have no operators of their own."""
    _watching.append(look)
    try:
        yield
    finally:
        _watching.remove(look)


def _count(elements: int, dtype: torch.dtype, drawn: int, moved: int) -> None:
    for look in _watching:
        look(Pass(elements, dtype.itemsize, drawn, moved))


def _count_advance(
    elements: int, dtype: torch.dtype, updates: Sequence[Update], base: Tensor | None, *made: Tensor | None
) -> None:
    """Counts a pass that reads W, or its ``base``, writes W where it changes, and each copy that is ``made``."""
    copies = sum(tensor is not None for tensor in made)
    changes = bool(updates) or base is not None
    _count(elements, dtype, len(updates) + bool(copies), 1 + changes + copies)


def normals(seed: int, span: Span, out: Tensor) -> None:
    """Writes z of the span's elements to ``out`` (float32, contiguous, any shape).

    Raises ValueError if ``out`` or the span does not have that form.
    """
    check(span, out)
    if out.dtype != torch.float32:
        raise ValueError(f"normals are float32, but `out` is {out.dtype}")
    if out.device.type == "meta":
        _count(out.numel(), out.dtype, 1, 1)
    elif out.numel():
        _backend(out.device.type).normals(seed, span, out)


def normals_each(seeds: Sequence[int], span: Span, out: Tensor) -> None:
    """:func:`normals` of the same span under each of several seeds, into ``out`` (seeds, ...).

    Raises ValueError if ``out`` or the span does not have that form; a span of ``rows`` does not.
    """
    check(span, out)
    if out.dtype != torch.float32 or span.rows is not None or len(out) != len(seeds):
        raise ValueError(
            f"normals of {len(seeds)} seeds are float32 ({len(seeds)}, ...) of one run of elements, but `out` is "
            f"{out.dtype} {tuple(out.shape)}" + (" of rows" if span.rows is not None else "")
        )
    if out.device.type == "meta":
        _count(out.numel(), out.dtype, 1, 1)
    elif out.numel():
        _backend(out.device.type).normals_each(seeds, span, out)


def advance(
    master: Tensor, span: Span, updates: Sequence[Update], *, base: Tensor | None = None,
    scratch: Tensor | None = None, mirror: Tensor | None = None, seed: int = 0, scale: float = 0.0,
) -> None:  # fmt: skip
    """Applies updates to the weights and writes perturbed copies of them, in one pass.

    All tensors are contiguous and of one size and dtype (float32, float16 or bfloat16); but on a CPU both
    copies of float32 weights may be of 16 bits. In float32, each product and sum rounded on its own::

        w = base or master
        for u in updates:  t = u.g * z(u.seed);  if u.weight_decay:  t += u.weight_decay * w;  w -= u.lr * t
        master  = round(w)                       # left alone if there are no updates and no base
        scratch = round(master + scale * z(seed))
        mirror  = round(2 * master - scratch)

    ``round`` is to the tensors' dtype, to nearest even; 16-bit copies of float32 weights are those of the float32
    copies, rounded. ``scratch`` and ``mirror`` may be absent. Raises ValueError if the tensors do not fit together.
    """
    check(span, master, base)
    check_copies(master, scratch, mirror)
    if not master.numel() or not is_pass(updates, base, scratch, mirror):
        return
    if master.device.type == "meta":
        _count_advance(master.numel(), master.dtype, updates, base, scratch, mirror)
        return
    _backend(master.device.type).advance(master, span, updates, base, scratch, mirror, seed, scale)


def advance_flat(
    master: Tensor, flat: Flat, updates: Sequence[Update], *, base: Tensor | None = None,
    scratch: Tensor | None = None, seed: int = 0, scale: float = 0.0,
) -> None:  # fmt: skip
    """:func:`advance` of all tensors of ``flat``, in one launch on a GPU; those without weight decay go without it.

    ``master``, ``base``, ``scratch``: flat buffers (uint8, contiguous) in which they lie at the same places. Raises
    ValueError if the buffers do not fit.
    """
    check_flat(flat, master, base, scratch)
    if not is_pass(updates, base, scratch):
        return
    if master.device.type == "meta":
        elements = sum(segment.numel for segment in flat.segments)
        _count_advance(elements, flat.dtype, updates, base, scratch)
    else:
        _backend(master.device.type).advance_flat(master, flat, updates, base, scratch, seed, scale)


def flip(master: Tensor, scratch: Tensor) -> None:
    """``scratch = round(2 * master - scratch)``, in place: W + eps * z becomes W - eps * z without another draw.

    Raises ValueError if the two are not contiguous and of one size, dtype and device.
    """
    check(Span(0), master, scratch)
    if master.device.type == "meta":
        _count(master.numel(), master.dtype, 0, 3)
    elif master.numel():
        _backend(master.device.type).flip(master, scratch)


def prepare(device: str = "cpu") -> None:
    """Compiles the kernels of a device for all dtypes, so that no measurement contains it; cheap once cached.

    Raises ValueError if the compiler itself lacks a C compiler, which Triton calls once.
    """
    if _backend(torch.device(device).type) is philox:
        return
    with compiler_remedy("noise=counter", device, "noise=torch"):
        _run_each(device)


@contextlib.contextmanager
def compiler_remedy(word: str, device: str, instead: str) -> Iterator[None]:
    """Inside, Triton's error where it finds no C compiler is a ValueError that says what to do."""
    try:
        yield
    except (RuntimeError, subprocess.CalledProcessError) as error:
        if "C compiler" not in str(error) and not isinstance(error, subprocess.CalledProcessError):
            raise
        raise ValueError(
            f"`{word}` on {device} needs a C compiler and Python's headers, for Triton, but got: {error}; "
            f"install gcc and python3-dev, or use {instead}"
        ) from error


def _run_each(device: str) -> None:
    """Every form in which an engine calls the kernels: whole tensors, and, without a base, single rows (embeddings)."""
    normals(0, Span(0), torch.empty(64, device=device))
    normals_each((0, 1), Span(0), torch.empty(2, 64, device=device))
    buffers = [torch.zeros(256, dtype=torch.uint8, device=device) for _ in range(3)]
    gathered = Span(0, rows=torch.zeros(4, dtype=torch.int64, device=device))
    some = (), (Update(0, 0.0, 0.0),)
    for dtype in DTYPES:
        flat = Flat(dtype, [Segment(0, 0, 0, 64)])
        for updates, base, scratch in itertools.product(some, (None, buffers[1]), (None, buffers[2])):
            advance_flat(buffers[0], flat, updates, base=base, scratch=scratch, seed=1, scale=1.0)
        matrix = torch.zeros(4, 16, dtype=dtype, device=device)
        for span, bases in ((Span(0), (None, matrix)), (gathered, (None,))):
            for updates, base, scratched in itertools.product(some, bases, (False, True)):
                scratch = torch.zeros_like(matrix) if scratched else None
                advance(matrix.clone(), span, updates, base=base, scratch=scratch, seed=1, scale=1.0)
        flip(matrix, matrix.clone())
        if device == "cpu":
            advance(torch.zeros(4, 16), Span(0), (), scratch=matrix, mirror=matrix.clone(), seed=1, scale=1.0)
