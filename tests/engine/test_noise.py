"""The noise stream: equal to one torch generator running through all tensors, whatever is drawn when."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zobench.engine.directions.noise import CHUNK, TorchNoise

SHAPES = [[(5,), (17, 3)], [(1,)], [(300, 512), (15,), (16,)], [(CHUNK + 7,)], [(2, CHUNK + 16)]]


def tensors(dtype, shapes=SHAPES):
    return [[torch.zeros(shape, dtype=dtype) for shape in unit] for unit in shapes]


def drawn(noise, seed, unit, targets):
    for _, _, weight, z in noise.draw(seed, unit, targets):
        weight.copy_(z)
    return targets


def one_stream(seed, dtype, shapes=SHAPES):
    """MeZO's way: reseed, then a normal tensor per parameter."""
    torch.manual_seed(seed)
    return [[torch.normal(mean=0, std=1, size=shape, dtype=dtype) for shape in unit] for unit in shapes]


def layout(units):
    return [[(t.shape, t.dtype) for t in unit] for unit in units]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 2, 0, 4, 1, 3, 0]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_units_drawn_in_any_order_equal_one_stream(dtype, order):
    mine = tensors(dtype)
    noise, expected = TorchNoise(layout(mine)), one_stream(7, dtype)
    for unit in order:
        for got, wanted in zip(drawn(noise, 7, unit, mine[unit]), expected[unit], strict=True):
            assert torch.equal(got, wanted)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=4), min_size=1, max_size=5), st.integers(0, 10**9 - 1)
)
def test_any_sizes_equal_one_stream(sizes, seed):
    """Sizes below 16 take another path in torch's generator, which keeps a spare normal: its state must carry that."""
    shapes = [[(size,) for size in unit] for unit in sizes]
    mine, expected = tensors(torch.float32, shapes), one_stream(seed, torch.float32, shapes)
    noise = TorchNoise(layout(mine))
    for unit in reversed(range(len(shapes))):
        assert all(map(torch.equal, drawn(noise, seed, unit, mine[unit]), expected[unit]))


def test_chunks_equal_a_whole_draw_at_every_length_around_a_chunk():
    for extra in (-16, -1, 0, 1, 15, 16, 17):
        size = 2 * CHUNK + extra
        noise = TorchNoise([[(torch.Size([size]), torch.float32)]])
        torch.manual_seed(3)
        assert torch.equal(drawn(noise, 3, 0, [torch.zeros(size)])[0], torch.randn(size)), extra


@pytest.mark.parametrize("between", [lambda noise, unit: drawn(noise, 2, 0, unit), lambda noise, unit: noise.keep({2})])
def test_another_seed_or_forgetting_this_one_changes_no_draw(between):
    mine = tensors(torch.float32)
    noise = TorchNoise(layout(mine))
    first = [t.clone() for t in drawn(noise, 1, 2, mine[2])]
    between(noise, mine[0])
    assert all(map(torch.equal, drawn(noise, 1, 2, mine[2]), first))


def test_only_the_wanted_seeds_are_remembered() -> None:
    shape = [[(torch.Size([32]), torch.float32)], [(torch.Size([32]), torch.float32)]]
    noise, tensor = TorchNoise(shape), torch.zeros(32)
    for seed in range(5):
        for unit in range(2):
            list(noise.draw(seed, unit, [tensor]))
        noise.keep({seed})
    assert set(noise._states) == {4}
