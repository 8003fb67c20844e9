"""Batches for the methods that step along a gradient."""

import torch

from zobench import Batch


def batches(count):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        ids = torch.randint(3, 128, (2, 9), generator=generator)
        yield Batch(ids, ids)
