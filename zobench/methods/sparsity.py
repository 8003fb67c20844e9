"""The thresholds of sparse directions: ZO-SGD-Sparse's layer-wise sparsity, from magnitude pruning (ZO-Bench, section
5), and the magnitudes above which Sparse-MeZO's weights stay.

The paper takes each layer's share from magnitude pruning of the whole model, and each step a fresh random mask with
that share. A mask is z'(seed) >= threshold, z' another standard normal for each element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist

import torch
from torch import Tensor, nn

from zobench.models.weights import Weights
from zobench.runspec import RunSpec

CHUNK = 1 << 20
"""Elements looked at at once."""
DROPPED = 13
"""Low bits of a float32 that the histogram leaves out: it is exact for 16-bit weights, for float32 to one in 1024."""
BINS = 1 << (31 - DROPPED)


def random_masks(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float]:
    """ZO-SGD-Sparse's threshold of each trainable parameter by its name (see :func:`zobench.methods.thresholds`)."""
    return mask_thresholds(layer_sparsity(model, weights, spec.sparsity), spec.definition)


def small_weights(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float]:
    """Sparse-MeZO's magnitude of each trainable parameter, by its name, above which a weight stays."""
    return magnitude_quantiles(model, weights, 1 - spec.sparsity)


def layer_sparsity(model: nn.Module, weights: Weights, sparsity: float) -> dict[str, float]:
    """Name -> share of its elements among the ``sparsity`` (a share below 1) smallest of all trainable ones.

    ``weights``: the values to prune by, those that training starts from. Two passes over them, :data:`CHUNK` elements
    in memory at a time. Elements of one magnitude (of a histogram's bin) are pruned in equal shares everywhere, so that
    the shares add up to ``sparsity`` also where many elements are equal, as a new adapter's zeros are.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    counts = torch.zeros(BINS, dtype=torch.int64)
    for name, parameter in trainable.items():
        counts += _histogram(name, parameter, weights)
    below = counts.cumsum(0)
    rank = sparsity * int(below[-1])
    edge = int((below > rank).nonzero()[0])
    at_edge = (rank - int(below[edge] - counts[edge])) / int(counts[edge])
    shares = {}
    for name, parameter in trainable.items():
        counted = torch.zeros(2, dtype=torch.int64)
        for bins in _magnitudes(name, parameter, weights):
            counted += torch.stack([(bins < edge).count_nonzero(), (bins == edge).count_nonzero()])
        shares[name] = (int(counted[0]) + at_edge * int(counted[1])) / parameter.numel()
    return shares


def magnitude_quantiles(model: nn.Module, weights: Weights, share: float) -> dict[str, float]:
    """Name of a trainable parameter -> the smallest magnitude, of a histogram's bin, that ``share`` of its own weights
    do not exceed.

    ``weights``: the values to look at, those that training starts from. One pass over them, :data:`CHUNK` elements in
    memory at a time.
    """
    quantiles = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            counts = _histogram(name, parameter, weights)
            edge = int((counts.cumsum(0) >= share * parameter.numel()).nonzero()[0])
            largest = torch.tensor((edge << DROPPED) + (1 << DROPPED) - 1, dtype=torch.int32)
            quantiles[name] = float(largest.view(torch.float32))
    return quantiles


def mask_thresholds(shares: Mapping[str, float], definition: str) -> dict[str, float]:
    """Name -> t, so that a direction keeps the elements whose normal number is at least t.

    as-written: t is the quantile of the share, which is what is zeroed. as-shipped: t is the share s itself, so that
    Phi(s) is zeroed, half of a tensor whose share is 0 (docs/design/METHODS.md, "ZO-Bench's methods").
    """
    return {name: share if definition == "as-shipped" else _quantile(share) for name, share in shares.items()}


def _quantile(share: float) -> float:
    """Phi^-1, its ends included."""
    if share <= 0 or share >= 1:
        return -math.inf if share <= 0 else math.inf
    return NormalDist().inv_cdf(share)


def _histogram(name: str, parameter: nn.Parameter, weights: Weights) -> Tensor:
    """How many of the parameter's magnitudes are in each bin, int64 (BINS,)."""
    counts = torch.zeros(BINS, dtype=torch.int64)
    for bins in _magnitudes(name, parameter, weights):
        counts += bins.bincount(minlength=BINS)
    return counts


def _magnitudes(name: str, parameter: nn.Parameter, weights: Weights) -> Iterator[Tensor]:
    """The bins of the parameter's magnitudes, int32, some rows at a time: a float32's bits rise with its magnitude."""
    rows = max(1, CHUNK // parameter.shape[1:].numel())
    for first in range(0, parameter.shape[0], rows):
        count = min(rows, parameter.shape[0] - first)
        values = torch.empty(count, *parameter.shape[1:], dtype=parameter.dtype)
        weights.fill(name, values, first)
        yield values.float().abs_().view(torch.int32).flatten().bitwise_right_shift_(DROPPED)
