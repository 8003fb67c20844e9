"""Which back end serves, what is said where something is missing, and that ``prepare`` compiles all of a step."""

import sys
import types

import pytest
import torch

from tests.support.kernels import drawn, needs_numba, needs_triton, same
from zobench import ZOSGD, Batch, Engine, EngineConfig, kernels, models
from zobench.kernels import Flat, Span
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


def form_of(value):
    """What of an argument chooses a compiled kernel."""
    if isinstance(value, torch.Tensor | Flat):
        return value.dtype
    if isinstance(value, Span):
        return value.rows is None
    return bool(value) if isinstance(value, list | tuple) else type(value)


def instances(monkeypatch, calls):
    """The forms in which the kernels of ``calls()`` are asked for: what compiles a kernel of its own."""
    asked, real = set(), kernels._backend("cpu")

    def noted(name):
        def call(*given):
            asked.add((name, *map(form_of, given)))
            getattr(real, name)(*given)

        return call

    names = ("normals", "normals_each", "advance", "advance_flat", "flip")
    fake = types.SimpleNamespace(**{name: noted(name) for name in names})
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
    assert {name for name, *_ in asked} == {"advance", "advance_flat", "flip"}
    assert asked <= instances(monkeypatch, kernels.prepare)


@needs_triton
def test_without_a_c_compiler_prepare_says_what_to_install(monkeypatch, tmp_path):
    """Triton's own error, from its own build."""
    from triton.runtime import build

    def normals(seed, span, out):
        build._build("name", str(tmp_path / "name.c"), str(tmp_path), [], [], [], [])

    monkeypatch.setattr(kernels, "_backend", lambda device: types.SimpleNamespace(normals=normals))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    message = r"`noise=counter` on cpu needs a C compiler and Python's headers.*install gcc and python3-dev"
    with pytest.raises(ValueError, match=message):
        kernels.prepare()
