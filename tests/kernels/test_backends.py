"""Which back end serves, what is said where something is missing, and that ``prepare`` compiles all of a step."""

import sys
import types

import pytest
import torch

from tests.support.kernels import drawn, needs_numba, needs_triton, same
from zobench import ZOSGD, Batch, Engine, EngineConfig, kernels, models
from zobench.kernels import Span
from zobench.models.weights import RandomWeights


@needs_numba
def test_without_numba_the_reference_serves_and_says_so_once(monkeypatch):
    expected = drawn(kernels, 1, Span(2), 5000)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "zobench.kernels.cpu")
    kernels._backend.cache_clear()
    try:
        with pytest.warns(UserWarning, match="pip install numba") as caught:
            results = [drawn(kernels, 1, Span(2), 5000) for _ in range(2)]
        kernels.prepare()
        assert len(caught) == 1
        assert all(same(r, expected) for r in results)
    finally:
        kernels._backend.cache_clear()


def instances(monkeypatch, calls):
    """The forms in which the kernels of ``calls()`` are asked for: what compiles a kernel of its own."""
    asked, real = set(), kernels._backend("cpu")

    def normals(seed, span, out):
        asked.add(("normals", out.dtype, span.rows is None))
        real.normals(seed, span, out)

    def normals_each(seeds, span, out):
        asked.add(("normals_each", out.dtype, span.rows is None))
        real.normals_each(seeds, span, out)

    def advance(master, span, updates, base, scratch, *rest):
        rows = "tensor" if span.rows is None else "rows"
        asked.add((rows, master.dtype, bool(updates), base is None, scratch is None))
        real.advance(master, span, updates, base, scratch, *rest)

    def advance_flat(master, flat, updates, base, scratch, *rest):
        asked.add(("flat", flat.dtype, bool(updates), base is None, scratch is None))
        real.advance_flat(master, flat, updates, base, scratch, *rest)

    def flip(master, scratch):
        asked.add(("flip", master.dtype))
        real.flip(master, scratch)

    fake = types.SimpleNamespace(
        normals=normals, normals_each=normals_each, advance=advance, advance_flat=advance_flat, flip=flip
    )
    monkeypatch.setattr(kernels, "_backend", lambda device: fake)
    calls()
    monkeypatch.undo()
    return asked


@needs_numba
def test_prepare_asks_for_every_kernel_that_a_step_asks_for(monkeypatch):
    """With the rows of an embedding, and updates that are pending: else a measured step compiles."""
    model, ids = models.build("opt-tiny", "fp16"), torch.arange(20).view(1, 20)

    def steps():
        config = EngineConfig(noise="counter", writeback_every=2)
        with Engine(model, config, weights=RandomWeights(model, 0)) as engine:
            method = ZOSGD(lr=1e-3)
            for _ in range(5):
                method.step(engine, Batch(ids, ids))

    asked = instances(monkeypatch, steps)
    assert {("rows", torch.float16, True), ("flat", torch.float16, True)} <= {form[:3] for form in asked}
    assert asked <= instances(monkeypatch, kernels.prepare)


@needs_triton
@pytest.mark.parametrize("planted", ["none", "broken", "another error"])
def test_without_a_c_compiler_prepare_says_what_to_install(planted, monkeypatch, tmp_path):
    """Triton's own error, from its own build."""
    from triton.runtime import build

    def normals(seed, span, out):
        if planted == "another error":
            raise RuntimeError("CUDA error: misaligned address")
        build._build("name", str(tmp_path / "name.c"), str(tmp_path), [], [], [], [])

    monkeypatch.setattr(kernels, "_backend", lambda device: types.SimpleNamespace(normals=normals))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if planted == "broken":
        monkeypatch.setenv("CC", "/bin/false")
    if planted == "another error":
        with pytest.raises(RuntimeError, match="misaligned"):
            kernels.prepare()
        return
    message = r"`noise=counter` on cpu needs a C compiler and Python's headers.*install gcc and python3-dev"
    with pytest.raises(ValueError, match=message):
        kernels.prepare()
