"""Fingerprints of initial weights, which show whether a journal began from the weights of this process."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from zobench.models.weights import Weights
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ELEMENTS = 1024
"""Elements of a vector that count; of a matrix three rows do. Whole files would take minutes for a large model."""


def of_base(spec: RunSpec, model: PreTrainedModel, weights: Weights) -> str:
    """A fingerprint of the initial values of ``model``, which was built without weights.

    Random values follow from the seed. Of pretrained ones the first, the middle and the last row of every tensor count,
    in the run's dtype, so that the same weights in other files are the same.
    """
    if spec.weights != "pretrained":
        return f"{spec.weights}, seed {spec.seed}"
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        size = parameter.shape[0]
        places = (0, size // 2, size - 1) if parameter.dim() > 1 else (0,)
        for first in places:
            rows = 1 if parameter.dim() > 1 else min(size, _ELEMENTS)
            out = torch.empty(rows, *parameter.shape[1:], dtype=parameter.dtype)
            weights.fill(name, out, first)
            digest.update(out.view(torch.uint8).numpy().data)
    return f"sha256 {digest.hexdigest()[:16]}"
