"""Integer weights that are themselves tuned: every linear layer of the blocks keeps codes and their groups' scales.

``method=qzo`` tunes the scales and leaves the codes; ``method=qes`` moves the codes by whole steps and leaves the
scales (docs/design/METHODS.md, "Integer weights").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from zobench import models
from zobench.engine.base import EngineConfig
from zobench.engine.passes.drive import Drive, plain
from zobench.engine.weights import grid
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.models.weights import Weights
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CODES, SCALES = "codes", "scales"


@dataclass(frozen=True, slots=True)
class Form:
    """How a layer keeps its weights: ``bits`` of a code, ``group`` values in a row that share a scale. ``steps``: the
    codes are tuned, int8, one a byte; else the scales are, float32, beside packed codes."""

    bits: int
    group: int
    steps: bool

    def count(self, shape: torch.Size) -> int:
        """Groups of a matrix; the last one may be short and is filled up with zeros."""
        return -(-shape.numel() // self.group)

    def empty(self, count: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """(codes, scales) of so many groups, without values."""
        width, stored = (self.group, torch.int8) if self.steps else (self.group * self.bits // 8, torch.uint8)
        codes = torch.empty(count, width, dtype=stored, device=device)
        return codes, torch.empty(count, 1, dtype=torch.bfloat16 if self.steps else torch.float32, device=device)

    def decoded(self, codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The matrix that codes and scales stand for, each value rounded once to ``dtype``."""
        whole = torch.empty(shape.numel(), dtype=dtype, device=codes.device)
        grid.decode(codes, scales, whole, self.bits, self.group)
        return whole.view(shape)

    def encoded(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`decoded` for a float32 matrix, or any groups of it, rounding to the grid."""
        codes, scales = self.empty(self.count(values.shape))
        grid.encode(values.reshape(-1), codes, scales, self.bits, self.group)
        return codes, scales


class IntegerLinear(nn.Module):
    """``nn.Linear`` whose weight is kept as ``codes`` and ``scales`` and made for each product."""

    def __init__(self, layer: nn.Linear, form: Form) -> None:
        super().__init__()
        self.in_features, self.out_features, self.form = layer.in_features, layer.out_features, form
        codes, scales = form.empty(form.count(layer.weight.shape), "meta")
        self.codes, self.scales = nn.Parameter(codes, False), nn.Parameter(scales, requires_grad=not form.steps)
        self.codes.is_stepped = form.steps  # type: ignore[attr-defined]  # torch has gradients of floats alone
        self.bias: nn.Parameter | None
        self.register_parameter("bias", layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        shape = torch.Size([self.out_features, self.in_features])
        return functional.linear(x, self.form.decoded(self.codes, self.scales, shape, x.dtype), self.bias)


class Integers:
    """The scheme of ``qzo`` and ``qes``: linear layers of the blocks become integers, of which one part is tuned; all
    else is frozen."""

    virtual_tokens = 0

    def __init__(self, spec: RunSpec, model: PreTrainedModel, steps: bool) -> None:
        self.drive: Drive = plain
        self._model, self._form = model, Form(spec.option("bits"), spec.option("group"), steps)
        self._shapes: dict[str, torch.Size] = {}
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        names = {id(module): name for name, module in model.named_modules()}
        for block in models.blocks(model):
            for parent in list(block.modules()):
                for key, layer in list(parent.named_children()):
                    if type(layer) is nn.Linear:
                        self._shapes[f"{names[id(layer)]}.weight"] = layer.weight.shape
                        setattr(parent, key, IntegerLinear(layer, self._form))
        if not self._shapes:
            raise ValueError(
                f"`method={spec.method}` needs linear layers in the blocks, but {type(model).__name__} has none; use "
                "method=zo-sgd"
            )

    def weights(self, base: Weights, config: EngineConfig) -> Weights:
        """See :class:`~zobench.schemes.base.Scheme`: those of ``base`` on the grid."""
        return _OnTheGrid(base, self._form, self._shapes)

    def save(self, folder: str | Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Writes a Hugging Face checkpoint of the plain model, its matrices made of their codes and scales."""
        save_checkpoint(_plain(self._model), self._decoded(tensors), Path(folder))

    def _decoded(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        gathered: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors:
            layer, _, kind = name.rpartition(".")
            weight = f"{layer}.weight"
            if weight not in self._shapes or kind not in (CODES, SCALES):
                yield name, tensor
                continue
            pair = gathered.setdefault(weight, {})
            pair[kind] = tensor
            if len(pair) == 2:
                del gathered[weight]
                yield weight, self._form.decoded(pair[CODES], pair[SCALES], self._shapes[weight], self._model.dtype)


class _OnTheGrid(Weights):
    """The values of a base whose matrices were rounded to a grid (see :class:`~zobench.models.weights.Weights`)."""

    def __init__(self, base: Weights, form: Form, shapes: dict[str, torch.Size]) -> None:
        self._base, self._form, self._shapes = base, form, shapes

    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        """See :class:`~zobench.models.weights.Weights`: of a matrix the rows that these groups lie in are read."""
        layer, _, kind = name.rpartition(".")
        shape = self._shapes.get(f"{layer}.weight")
        if shape is None or kind not in (CODES, SCALES):
            self._base.fill(name, out, first)
            return
        size, columns = self._form.group, shape[1]
        begin, end = first * size, min((first + len(out)) * size, shape.numel())
        top, bottom = begin // columns, -(-end // columns)
        rows = torch.empty(bottom - top, columns)
        self._base.fill(f"{layer}.weight", rows, top)
        codes, scales = self._form.encoded(rows.view(-1)[begin - top * columns : end - top * columns])
        out.copy_(codes if kind == CODES else scales)


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model as transformers has it, without weights: what a checkpoint is described by."""
    with torch.device("meta"):
        return type(model)._from_config(model.config, dtype=model.dtype)  # type: ignore[no-untyped-call, no-any-return]


scales, codes = functools.partial(Integers, steps=False), functools.partial(Integers, steps=True)
"""The schemes that tune the scales, and the codes."""
