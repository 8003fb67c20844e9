"""Linear layers as units of their own, whole or in tiles of rows (granularity linear and tile).

Every module that owns parameters then runs once per point on its part of the batch, and all else, attention and
activations, on the whole batch of copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def linears(blocks: Sequence[nn.Module]) -> list[nn.Linear]:
    """All linear layers of the blocks, in registration order; ``ValueError`` if a block keeps matrices elsewhere."""
    layers = []
    for block in blocks:
        for name, module in block.named_modules():
            if type(module) is nn.Linear:
                layers.append(module)
                continue
            for key, parameter in module.named_parameters(recurse=False):
                if parameter.ndim > 1:
                    raise ValueError(
                        f"`granularity=linear` and `tile` need all matrices in nn.Linear, but {name}.{key} is in "
                        f"{type(module).__name__}; use granularity=block"
                    )
    return layers


def call_order(model: nn.Module, modules: Sequence[nn.Linear], device: str) -> list[nn.Linear]:
    """``modules`` in the order in which the model calls them, found by a forward of two tokens without their weights.

    Raises ``ValueError`` unless each is called exactly once.
    """
    called: list[nn.Linear] = []

    def stand_in(module: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            called.append(module)
            return x.new_zeros(*x.shape[:-1], module.out_features)

        return forward

    for module in modules:
        module.forward = stand_in(module)  # type: ignore[method-assign,assignment]
    try:
        model.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)  # type: ignore[operator]
    finally:
        for module in modules:
            del module.forward
    if sorted(map(id, called)) != sorted(map(id, modules)):
        raise ValueError(
            f"`granularity=linear` and `tile` need each linear layer called once per forward, but {len(called)} calls "
            f"reached {len(modules)} layers; use granularity=block"
        )
    return called


class TiledOutput:
    """A linear layer's output, filled tile by tile: from ``x`` (copies * n, ..., in) to (copies * n, ..., out)."""

    def __init__(self, x: Tensor, copies: int, width: int) -> None:
        self._parts, self._width = x.chunk(copies), width
        self._output: Tensor | None = None

    def add(self, copy: int, weight: Tensor, bias: Tensor | None, first: int) -> None:
        """Computes the columns from ``first`` on, for one copy, from a tile of the weights (rows, in)."""
        columns = functional.linear(self._parts[copy], weight, bias)
        if len(self._parts) == 1 and columns.shape[-1] == self._width:
            self._output = columns
            return
        if self._output is None:
            rows = sum(part.shape[0] for part in self._parts)
            self._output = columns.new_empty(rows, *columns.shape[1:-1], self._width)
        size = self._parts[0].shape[0]
        self._output[copy * size : (copy + 1) * size, ..., first : first + columns.shape[-1]] = columns

    def output(self) -> Tensor:
        """The whole output, once every tile was added for every copy."""
        assert self._output is not None
        return self._output
