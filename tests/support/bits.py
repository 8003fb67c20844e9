"""Tensors of any bits, and tensors that must have the same."""

import torch
from torch import Tensor


def any_bits(dtype, count, seed):
    """Tensors of arbitrary bit patterns: ties, subnormals, infinities, NaN."""
    size = torch.int32 if dtype == torch.float32 else torch.int16
    limits = torch.iinfo(size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max + 1, (count,), generator=generator).to(size).view(dtype)


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Raises unless both have the same names, and under each name the same bits."""
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
