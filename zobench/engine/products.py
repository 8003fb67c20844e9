"""The forwards of a model whose directions act on products: a block runs on all copies of the batch at once, and each
linear layer in it multiplies W once by all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from zobench.engine.base import Point
from zobench.engine.blocks import Unit
from zobench.engine.factored import Factored
from zobench.engine.fold import Follows, fold, leaves
from zobench.engine.forwards import Forwards

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
        self._here_now: Sequence[Point] = ()
        self._found: dict[tuple[int, int], dict[str, tuple[Unit, int]]] = {}
        super().__init__(*parts)

    def _whole(self, module: nn.Module, units: Sequence[Unit], follows: Follows, is_block: bool) -> Callable[..., Any]:
        if isinstance(module, (nn.Linear, Conv1D)) and len(units) == 1:
            return functools.partial(self._linear, units, module)
        if not is_block:
            return super()._whole(module, units, follows, is_block)
        (unit,), own_forward, others = units, module.forward, list[nn.Module]()
        for inner in module.modules():
            if isinstance(inner, (nn.Linear, Conv1D)) and inner is not module:
                self._replace(inner, functools.partial(self._product, unit, inner, inner.forward))
            elif inner._parameters and all(own is None or own.ndim == 1 for own in inner._parameters.values()):
                self._replace(inner, functools.partial(self._vectors, unit, inner, inner.forward))
            elif any(own is not None for own in inner._parameters.values()):
                others.append(inner)
        return functools.partial(self._block, unit, own_forward, follows, others)

    def _block(
        self, unit: Unit, forward: Callable[..., Any], follows: Follows, others: Sequence[nn.Module], *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """A block on as many copies of the batch at once as fit :data:`TOGETHER`."""
        self._locate(unit)
        copies = len(self.points)
        size = 1 if others else self._together((*leaves(args, ("args",)), *leaves(kwargs, ("kwargs",))))
        output: list[Any] = []

        def prepare(number: int) -> None:
            self._here_now = self.points[number * size : (number + 1) * size]
            for module in others:
                self._bind_own(unit, module, self._here_now[0])

        def turn() -> None:
            unit.bind(self.arithmetic.begin(unit))
            rows, frozen = self._rows * size, not unit.trained
            output.append(fold(unit.name, forward, copies // size, rows, prepare, args, kwargs, follows, frozen))
            self._here_now = ()
            self.arithmetic.rest(unit)
            if unit.streamed:
                unit.release()

        self.run(unit, turn)
        return output[0]

    def _together(self, given: Sequence[tuple[Any, Tensor]]) -> int:
        """How many copies go through at once: a divisor of all of them."""
        copies = len(self.points)
        rows = copies * self._rows
        tokens = max((own.shape[1] for _, own in given if own.ndim == 3 and own.shape[0] == rows), default=1)
        room = max(1, TOGETHER // (tokens * self._rows))
        return max(size for size in range(1, copies + 1) if copies % size == 0 and size <= room)

    def _product(self, unit: Unit, module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A linear layer of a block, on the copies that are here."""
        if not self._here_now:  # within a derivative, whose weights carry their tangents
            return forward(x)
        place = self._places(unit, module)
        transposed = isinstance(module, Conv1D)
        return self.arithmetic.product(place["weight"], place.get("bias"), x, self._here_now, transposed=transposed)

    def _vectors(
        self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """A norm of a block: each point's on its part of the rows."""
        if not self._here_now:
            return forward(x, *args, **kwargs)
        points = self._here_now
        outputs = []
        for point, part in zip(points, x.chunk(len(points)), strict=True):
            self._bind_own(unit, module, point)
            outputs.append(forward(part, *args, **kwargs))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _linear(self, units: Sequence[Unit], module: nn.Module, x: Tensor) -> Tensor:
        """A linear layer outside the blocks, or one that is a unit of its own, tile by tile: on all copies."""
        columns: list[Tensor] = []

        def turn(unit: Unit) -> None:
            self.arithmetic.begin(unit)
            place = self._places(unit, module)
            columns.append(
                self.arithmetic.product(
                    place["weight"], place.get("bias"), x, self.points, transposed=isinstance(module, Conv1D)
                )
            )
            self.arithmetic.rest(unit)

        for unit in units:
            self._locate(unit)
            self.run(unit, functools.partial(turn, unit))
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)

    def _embed(self, unit: Unit, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`Forwards._embed`; the table is settled at its first use in a pass."""
        self._locate(unit)
        return super()._embed(unit, *args, **kwargs)

    def _bind_own(self, unit: Unit, module: nn.Module, point: Point) -> None:
        """Makes a module use its own parameters at a point."""
        for attribute, place in self._places(unit, module).items():
            if attribute in module._parameters:
                made = self.arithmetic.made(place, point)
                module._parameters[attribute] = nn.Parameter(made, requires_grad=False)

    def _places(self, unit: Unit, module: nn.Module) -> dict[str, tuple[Unit, int]]:
        """Where the module's own tensors are in the unit, by attribute."""
        known = self._found.get((id(unit), id(module)))
        if known is None:
            known = self._found[id(unit), id(module)] = {
                attribute: (unit, number)
                for number, item in enumerate(unit.fields)
                for home, attribute in item.homes
                if home is module
            }
        return known
