"""Populations by hand: W + c E made whole for each member, E = U V^T / sqrt(rank) in matrices, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.support.low_rank import direction
from zobench.data.batch import Batch
from zobench.engine.base import Point
from zobench.engine.twin import own_loss


def normalised(number: int, shape: torch.Size, seed: int, subspace: int | None, rank: int) -> Tensor:
    """z of the parameter of this number in ``named_parameters()``; its elements have the variance 1."""
    z = direction(number, shape, seed, subspace, rank)
    return z / math.sqrt(rank) if len(shape) == 2 else z


@contextmanager
def at(model: Any, point: Point, rank: int) -> Iterator[None]:
    """Inside, the model's weights are W + c E."""
    before = [tensor.detach().clone() for tensor in model.parameters()]
    with torch.no_grad():
        for number, tensor in enumerate(model.parameters()):
            if point.seed is not None:
                tensor.add_(normalised(number, tensor.shape, point.seed, point.subspace, rank), alpha=point.scale)
        yield
        for tensor, own in zip(model.parameters(), before, strict=True):
            tensor.copy_(own)


def one_by_one(
    model: Any, batches: Sequence[Batch], points: Sequence[Point], rank: int, look: Callable[..., Any] = own_loss
) -> list[Any]:
    """What ``look(model, batch)`` gives of each member, one after another."""
    seen = []
    for batch, point in zip(batches, points, strict=True):
        with at(model, point, rank):
            seen.append(look(model, batch))
    return seen
