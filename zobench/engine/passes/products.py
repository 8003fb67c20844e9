"""The forwards of a model whose directions act on products: a block runs on all copies of the batch at once, and each
linear layer in it multiplies W once by all of them. :class:`RowForwards` are those of a population, with one point per
row, or per few rows, of the batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from zobench.engine.base import Point
from zobench.engine.directions.factored import Factored, RowFactored
from zobench.engine.passes.drive import Driven
from zobench.engine.passes.fold import Follows, fold, leaves
from zobench.engine.passes.forwards import Forwards, lookup_rows
from zobench.engine.passes.head import Head, Objective
from zobench.engine.weights.blocks import Unit

TOGETHER = 1024
"""Tokens that go through a block at once, if one copy of the batch is not longer: beyond that no product waits for W to
come through the memory, and activations would outgrow the perturbed copy of W that is not there."""


class ProductForwards(Forwards):
    """As :class:`Forwards`, for an ``arithmetic`` that adds directions to products.

    In a block, linear layers (and GPT-2's transposed ones) use W as it is, norms and other modules of vectors run on
    each point's part of the batch. A block with any other parameters runs point by point, and these are made for it.
    """

    arithmetic: Factored

    def __init__(self, *parts: Any) -> None:
        self._in_block: Sequence[Point] = ()  # the points whose copies are going through a block or a norm
        self._known_refs: dict[tuple[int, int], dict[str, tuple[Unit, int]]] = {}
        super().__init__(*parts)

    def _whole(self, module: nn.Module, units: Sequence[Unit], follows: Follows, is_block: bool) -> Callable[..., Any]:
        if isinstance(module, (nn.Linear, Conv1D)) and len(units) == 1:
            return functools.partial(self._linear, units, module)
        if not is_block:
            return super()._whole(module, units, follows, is_block)
        (unit,), block_forward, others = units, module.forward, list[nn.Module]()
        for inner in module.modules():
            if isinstance(inner, (nn.Linear, Conv1D)) and inner is not module:
                self._replace(inner, functools.partial(self._product, unit, inner, inner.forward))
            elif inner._parameters and all(tensor is None or tensor.ndim == 1 for tensor in inner._parameters.values()):
                self._replace(inner, functools.partial(self._vectors, unit, inner, inner.forward))
            elif any(tensor is not None for tensor in inner._parameters.values()):
                others.append(inner)
        return functools.partial(self._block, unit, block_forward, follows, others)

    def _block(
        self, unit: Unit, forward: Callable[..., Any], follows: Follows, others: Sequence[nn.Module], *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """A block on as many copies of the batch at once as fit :data:`TOGETHER`."""
        copies = len(self.points)
        size = 1 if others else self._together((*leaves(args, ("args",)), *leaves(kwargs, ("kwargs",))))

        def prepare(number: int) -> None:
            self._in_block = self.points[number * size : (number + 1) * size]
            for module in others:
                self._bind_tensors(unit, module, self._in_block[0])

        def turn() -> Any:
            unit.bind(self.arithmetic.begin(unit))
            rows, frozen = self._rows * size, not unit.trained
            output = fold(unit.name, forward, copies // size, rows, prepare, args, kwargs, follows, frozen)
            self._in_block = ()
            self.arithmetic.finish(unit)
            if unit.streamed:
                unit.release()
            return output

        self._locate(unit)
        return self.while_on_device(unit, turn)

    def _together(self, arguments: Sequence[tuple[Any, Tensor]]) -> int:
        """How many copies go through at once: a divisor of all of them."""
        copies = len(self.points)
        rows = copies * self._rows
        tokens = max((x.shape[1] for _, x in arguments if x.ndim == 3 and x.shape[0] == rows), default=1)
        room = max(1, TOGETHER // (tokens * self._rows))
        return max(size for size in range(1, copies + 1) if copies % size == 0 and size <= room)

    def _product(self, unit: Unit, module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A linear layer of a block, on the copies that go through it."""
        if not self._in_block:  # within a derivative, whose weights carry their tangents
            return forward(x)
        return self._times(unit, module, x, self._in_block)

    def _times(self, unit: Unit, module: nn.Module, x: Tensor, points: Sequence[Point]) -> Tensor:
        """The product of ``x`` with a linear layer's W at ``points``."""
        refs = self._refs(unit, module)
        transposed = isinstance(module, Conv1D)
        return self.arithmetic.product(refs["weight"], refs.get("bias"), x, points, transposed=transposed)

    def _vectors(
        self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """A norm of a block: each point's on its part of the rows."""
        if not self._in_block:
            return forward(x, *args, **kwargs)
        points = self._in_block
        outputs = []
        for point, part in zip(points, x.chunk(len(points)), strict=True):
            self._bind_tensors(unit, module, point)
            outputs.append(forward(part, *args, **kwargs))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _linear(self, units: Sequence[Unit], module: nn.Module, x: Tensor) -> Tensor:
        """A linear layer outside the blocks, or one that is a unit of its own, tile by tile: on all copies."""
        columns = [self._alone(unit, functools.partial(self._times, unit, module, x, self.points)) for unit in units]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)

    def _alone(self, unit: Unit, compute: Callable[[], Tensor]) -> Tensor:
        """Returns what ``compute`` returns, called in a turn of the unit's own."""

        def turn() -> Tensor:
            self.arithmetic.begin(unit)
            output = compute()
            self.arithmetic.finish(unit)
            return output

        self._locate(unit)
        return self.while_on_device(unit, turn)

    def _embed(self, unit: Unit, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`Forwards._embed`; the table is settled at its first use in a pass."""
        self._locate(unit)
        return super()._embed(unit, *args, **kwargs)

    def _bind_tensors(self, unit: Unit, module: nn.Module, point: Point) -> None:
        """Makes a module use its own parameters at a point."""
        for attribute, ref in self._refs(unit, module).items():
            if attribute in module._parameters:
                tensor = self.arithmetic.made(ref, point)
                module._parameters[attribute] = nn.Parameter(tensor, requires_grad=False)

    def _refs(self, unit: Unit, module: nn.Module) -> dict[str, tuple[Unit, int]]:
        """Where the module's own tensors are in the unit, by attribute."""
        key = id(unit), id(module)
        if key not in self._known_refs:
            self._known_refs[key] = {
                attribute: (unit, number)
                for number, item in enumerate(unit.fields)
                for home, attribute in item.homes
                if home is module
            }
        return self._known_refs[key]


class RowForwards(ProductForwards):
    """As :class:`ProductForwards`, where nothing is done point by point that many points would wait for: norms and
    tables outside the head serve all of them at once. Their rows may be of different batches."""

    arithmetic: RowFactored

    def judge(self, driven: Driven, objective: Objective) -> list[Tensor]:
        return self.judge_each(driven, [objective] * len(self.points))

    def judge_each(self, driven: Driven, objectives: Sequence[Objective]) -> list[Tensor]:
        """As :meth:`judge`, where each point has an objective of its own."""
        head, copies = self._head(driven), driven.states.split(self._rows)
        states = [objective.states([copy])[0] for objective, copy in zip(objectives, copies, strict=True)]
        targets = [objective.targets for objective in objectives]
        judged = self.arithmetic.judge_each(head, states, targets, self.points)
        return [objective.reduced(picked) for objective, picked in zip(objectives, judged, strict=True)]

    def next_logits(self, driven: Driven) -> Tensor:
        """The logits after each row's last token, float32 (points * rows, vocabulary)."""
        return self.arithmetic.logits(self._head(driven), driven.states[:, -1], self.points)

    def _head(self, driven: Driven) -> Head:
        for unit in self.head.units:
            self._locate(unit)
        return replace(self.head, notes=driven.notes)

    def _whole(self, module: nn.Module, units: Sequence[Unit], follows: Follows, is_block: bool) -> Callable[..., Any]:
        if not is_block and len(units) == 1:
            if isinstance(module, nn.Embedding) and module.max_norm is None and len(units[0].fields) == 1:
                return functools.partial(self._table, units[0], module, module.forward)
            if _is_norm(module):
                return functools.partial(self._norm, units[0], module, module.forward)
        return super()._whole(module, units, follows, is_block)

    def _embed(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The word embedding, on the rows of all points."""
        self._locate(unit)
        lookup = functools.partial(lookup_rows, module, forward, ids, args, kwargs)
        return self.arithmetic.embed(unit, ids.reshape(-1), self.points, lookup, unit in self.head.units)[0]

    def _table(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Another embedding outside the blocks, of positions perhaps."""

        def lookup(table: Tensor) -> Tensor:
            module._parameters["weight"] = nn.Parameter(table, requires_grad=False)
            output: Tensor = forward(*args, **kwargs)
            return output

        return self._alone(unit, lambda: self.arithmetic.embedded((unit, 0), lookup, self.points, self._rows))

    def _norm(self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> Tensor:
        """A norm outside the blocks."""

        def compute() -> Tensor:
            self._in_block = self.points
            output = self._vectors(unit, module, forward, x, **kwargs)
            self._in_block = ()
            return output

        return self._alone(unit, compute)

    def _vectors(
        self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """A norm's numbers differ from row to row: those of torch's own are applied after it, an RMS norm's given to it
        in the shape of the rows. Any other module of vectors runs point by point."""
        points = self._in_block
        if not points or not _is_norm(module):
            return super()._vectors(unit, module, forward, x, *args, **kwargs)
        tensors = {name: self.arithmetic.vectors(ref, points) for name, ref in self._refs(unit, module).items()}
        if type(module) is nn.LayerNorm:
            return _scaled(functional.layer_norm(x, module.normalized_shape, None, None, module.eps), **tensors)
        if type(module) is nn.RMSNorm:
            return _scaled(functional.rms_norm(x, module.normalized_shape, None, module.eps), **tensors)
        rows = tensors["weight"].repeat_interleave(len(x) // len(points), 0)
        weight = rows.view(len(x), *[1] * (x.ndim - 2), rows.shape[1])
        module._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
        return forward(x, *args, **kwargs)


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of torch's, or has an RMS norm's form: one vector of weights, and nothing else."""
    tensors = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
    if any(tensor.ndim != 1 for tensor in tensors.values()) or any(True for _ in module.children()):
        return False
    return bool(tensors) and (type(module) in (nn.LayerNorm, nn.RMSNorm) or list(tensors) == ["weight"])


def _scaled(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """``x * weight + bias``, of each point on its part of the rows: ``x`` (points * n, ..., width), the others
    (points, width)."""
    assert weight is not None
    each = x.view(len(weight), -1, x.shape[-1])
    if bias is None:
        return each.mul(weight.unsqueeze(1)).view_as(x)
    return torch.addcmul(bias.unsqueeze(1), each, weight.unsqueeze(1)).view_as(x)
