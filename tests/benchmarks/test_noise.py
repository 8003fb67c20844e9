"""How fast the noise is drawn and the weights are moved on this machine; nothing is asserted about time."""

import pytest
import torch

from zobench import kernels
from zobench.kernels import Span, Update

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ONE = [Update(3, 0.5, 1e-7)]


@pytest.fixture(autouse=True, scope="module")
def compiled():
    kernels.prepare()


@pytest.fixture
def count(small):
    """Elements."""
    return 1 << 18 if small else 16 << 20


@pytest.fixture
def rate(timed, count):
    """Times a call that passes ``count`` elements."""
    return lambda action: timed(action, count, "elements")


def weights(count, dtype):
    """W and two outputs, touched so that no page is new in a timed round."""
    master = torch.full((count,), 0.02, dtype=dtype)
    return master, torch.zeros_like(master), torch.zeros_like(master)


def test_torch_normal(rate, count):
    out = torch.zeros(count)
    rate(lambda: out.normal_())


def test_normals(rate, count):
    out = torch.zeros(count)
    rate(lambda: kernels.normals(1, Span(1), out))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scratch_and_mirror(rate, count, dtype):
    master, scratch, mirror = weights(count, dtype)
    rate(lambda: kernels.advance(master, Span(1), [], scratch=scratch, mirror=mirror, seed=2, scale=1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_update_with_scratch_and_mirror(rate, count, dtype):
    master, scratch, mirror = weights(count, dtype)
    rate(lambda: kernels.advance(master, Span(1), ONE, scratch=scratch, mirror=mirror, seed=2, scale=1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_update_with_scratch_then_flip(rate, count, dtype):
    master, scratch, _ = weights(count, dtype)

    def step():
        kernels.advance(master, Span(1), ONE, scratch=scratch, seed=2, scale=1e-3)
        kernels.flip(master, scratch)

    rate(step)


def test_torch_chunks_of_one_update_with_scratch_and_mirror(rate, count):
    """The same work by torch operations, in pieces small enough for one thread: the kernels are compared with it."""
    master, scratch, mirror = weights(count, torch.float32)
    z = torch.empty(1 << 15)

    def step():
        for m, s, r in zip(*(t.split(1 << 15) for t in (master, scratch, mirror)), strict=True):
            m.sub_(z.normal_().mul_(0.5).mul_(1e-7))
            torch.add(m, z.normal_().mul_(1e-3), out=s)
            torch.sub(m * 2, s, out=r)

    rate(step)
