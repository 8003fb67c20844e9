"""What a step reads: batches of token ids, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""The label of a position that has no part in the loss."""


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Token ids, labels and mask of ``b`` rows of ``t`` tokens, each an int64 tensor of shape (b, t).

    ``labels`` are token ids, :data:`IGNORED` where the loss skips them; ``labels[:, i]`` belongs to ``input_ids[:, i]``
    (the loss shifts them). ``attention_mask`` is 1 on tokens and 0 on padding, or None without padding.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.input_ids.dim() != 2:
            raise ValueError(
                f"`input_ids` must have shape (rows, tokens), but got {tuple(self.input_ids.shape)}; "
                "give one row as ids[None]"
            )
        for name in ("input_ids", "labels", "attention_mask"):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.dtype != torch.int64:
                raise ValueError(f"`{name}` must be of dtype int64, but got {tensor.dtype}; give {name}.long()")
            if tensor.shape != self.input_ids.shape:
                raise ValueError(
                    f"`{name}` must have the shape of input_ids {tuple(self.input_ids.shape)}, but got "
                    f"{tuple(tensor.shape)}; pad both alike"
                )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        return Batch(self.input_ids.to(device), self.labels.to(device), mask)

    @property
    def tokens(self) -> int:
        """Positions of the batch, padding included, as the papers count throughput."""
        return self.input_ids.numel()
