"""Tensors of any bits."""

import torch


def any_bits(dtype, count, seed):
    """Tensors of arbitrary bit patterns: ties, subnormals, infinities, NaN."""
    size = torch.int32 if dtype == torch.float32 else torch.int16
    limits = torch.iinfo(size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max + 1, (count,), generator=generator).to(size).view(dtype)
