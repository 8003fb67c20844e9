"""The logits after a batch's last tokens, from which text is generated: one row of the vocabulary per row of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zobench.engine.forwards import Forwards
from zobench.engine.logits import Driven


@torch.inference_mode()
def last_logits(forwards: Forwards, driven: Driven) -> Tensor:
    """The logits (rows, vocabulary), float32 on the CPU, that follow the last of the head's states (rows, tokens,
    width), at the weights with every update applied. It is the last use of the head's units in a pass."""
    head = forwards.head
    for unit in head.units:
        forwards.touch(unit)
        unit.bind(forwards.arithmetic.whole(unit))
    logits = driven.logits(head.module(driven.states[:, -1])).float()
    for unit in head.units:
        forwards.arithmetic.rest(unit)
        if unit.buffer is not None:
            unit.bind(unit.views(unit.buffer))
    return torch.full(logits.shape, math.nan) if logits.is_meta else logits.cpu()
