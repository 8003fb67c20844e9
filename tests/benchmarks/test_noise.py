"""How fast the noise is drawn and the weights are moved on this machine; nothing is asserted about time."""

import pytest
import torch

from zobench import kernels
from zobench.kernels import Span, Update

COUNT = 16 << 20
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ONE = [Update(3, 0.5, 1e-7)]


@pytest.fixture(autouse=True, scope="module")
def compiled():
    kernels.prepare()


@pytest.fixture
def rate(benchmark, capsys, request):
    """Times ``action()`` on COUNT elements, prints and keeps elements per second of the median round."""

    def measure(action):
        benchmark.pedantic(action, rounds=5, warmup_rounds=1)
        rate = COUNT / benchmark.stats.stats.median
        benchmark.extra_info["elements_per_second"] = rate
        with capsys.disabled():
            print(f"\n{request.node.name}: {rate / 1e9:.2f} G elements/s")

    return measure


def weights(dtype):
    """W and two outputs, touched so that no page is new in a timed round."""
    master = torch.full((COUNT,), 0.02, dtype=dtype)
    return master, torch.zeros_like(master), torch.zeros_like(master)


def test_torch_normal(rate):
    out = torch.zeros(COUNT)
    rate(lambda: out.normal_())


def test_normals(rate):
    out = torch.zeros(COUNT)
    rate(lambda: kernels.normals(1, Span(1), out))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scratch_and_mirror(rate, dtype):
    master, scratch, mirror = weights(dtype)
    rate(lambda: kernels.advance(master, Span(1), [], scratch=scratch, mirror=mirror, seed=2, scale=1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_update_with_scratch_and_mirror(rate, dtype):
    master, scratch, mirror = weights(dtype)
    rate(lambda: kernels.advance(master, Span(1), ONE, scratch=scratch, mirror=mirror, seed=2, scale=1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_update_with_scratch_then_flip(rate, dtype):
    master, scratch, _ = weights(dtype)

    def step():
        kernels.advance(master, Span(1), ONE, scratch=scratch, seed=2, scale=1e-3)
        kernels.flip(master, scratch)

    rate(step)


def test_torch_chunks_of_one_update_with_scratch_and_mirror(rate):
    """The same work by torch operations, in pieces small enough for one thread: the kernels are compared with it."""
    master, scratch, mirror = weights(torch.float32)
    z = torch.empty(1 << 15)

    def step():
        for m, s, r in zip(*(t.split(1 << 15) for t in (master, scratch, mirror)), strict=True):
            m.sub_(z.normal_().mul_(0.5).mul_(1e-7))
            torch.add(m, z.normal_().mul_(1e-3), out=s)
            torch.sub(m * 2, s, out=r)

    rate(step)
