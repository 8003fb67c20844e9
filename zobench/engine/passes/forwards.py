"""The forwards that replace those of a model's modules, so that one pass computes the losses at all points.

A module that uses a whole unit of weights runs once per point, on that point's copy of the batch with its weights. The
word embedding and the head, which may share a table, are computed differently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from zobench.engine.base import BASE, EngineConfig, Point
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.passes.drive import Driven
from zobench.engine.passes.fold import UNKNOWN, Follows, Marks, fold, keys
from zobench.engine.passes.head import Head, Objective
from zobench.engine.passes.loss import on_cpu
from zobench.engine.weights import linear
from zobench.engine.weights.blocks import Unit

T = TypeVar("T")


class Forwards:
    """The forwards of ``model`` at several points at once, until :meth:`close` gives it its own ones back.

    ``run(unit, turn)`` calls ``turn`` while the unit's weights are on the device, where ``arithmetic`` moves them;
    ``touch(unit)`` comes before its first turn of a pass.
    ``marks``: how the arguments of its modules follow the batch.
    ``uses``: every module with a forward of this kind, and its units; ``head``: the one module that has none.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, blocks: Sequence[nn.Module], units: Sequence[Unit],
        arithmetic: Arithmetic, run: Callable[[Unit, Callable[[], None]], None], touch: Callable[[Unit], None],
        marks: Marks,
    ) -> None:  # fmt: skip
        self.model, self.config, self._units = model, config, units
        self.arithmetic, self.run, self.touch = arithmetic, run, touch
        self.points: Sequence[Point] = (BASE,)
        self._rows = 1
        self._after, self._reached = len(blocks) + 1, 0  # parts of the model: what follows the blocks; the last seen
        self._wrapped: list[nn.Module] = []
        self._wrap(blocks, marks)

    def begin(self, points: Sequence[Point], rows: int) -> None:
        """A pass over the model on ``rows`` rows for each of ``points``."""
        self.points, self._rows, self._reached = points, rows, 0

    def close(self) -> None:
        """The model's forwards are its own again."""
        for module in self._wrapped:
            del module.forward
        self._wrapped.clear()

    def judge(self, driven: Driven, objective: Objective) -> list[Tensor]:
        """Returns, for every copy's way to the head, the numbers from which the objective's loss is made
        (:meth:`Objective.reduced`)."""
        for unit in self.head.units:
            self._locate(unit)
        states = objective.states(driven.states.split(self._rows))
        head = replace(self.head, notes=driven.notes, compared=objective.compared)
        judged = self.arithmetic.judge(head, states, objective.targets, self.points)
        return [objective.reduced(at_point) for at_point in judged]

    @torch.inference_mode()
    def last_logits(self, driven: Driven) -> Tensor:
        """The logits (rows, vocabulary), float32 on the CPU, that follow the last of the head's states (rows, tokens,
        width), at the weights with every update applied. It is the last use of the head's units in a pass."""
        for unit in self.head.units:
            self.touch(unit)
            unit.bind(self.arithmetic.whole(unit))
        logits = driven.logits(self.head.module(driven.states[:, -1])).float()
        for unit in self.head.units:
            self.arithmetic.finish(unit)
            if unit.buffer is not None:
                unit.bind(unit.views(unit.buffer))
        return on_cpu(logits)

    def _wrap(self, blocks: Sequence[nn.Module], marks: Marks) -> None:
        """Replaces ``forward`` of each module that uses parameters of a unit as a whole, but the head's."""
        uses: dict[int, tuple[nn.Module, list[Unit]]] = {}
        of_blocks = set(map(id, blocks))
        head: nn.Module = self.model.get_output_embeddings()  # type: ignore[operator]
        around = {id(module) for module in self.model.modules() if head in module.children()}
        inside = {id(module) for block in blocks for module in block.modules()}
        for unit in self._units:
            users = [unit.module] if id(unit.module) in inside else [m for item in unit.fields for m, _ in item.homes]
            for module in dict.fromkeys(users):
                if id(module) in around:  # as RoBERTa's lm_head, which holds the head's bias and never uses it itself
                    continue
                uses.setdefault(id(module), (module, []))[1].append(unit)
        self.head = Head(head, self.config.logits_bytes, uses.pop(id(head), (head, []))[1])
        tied = {id(unit) for unit in self.head.units}
        word = self.model.get_input_embeddings()  # type: ignore[operator]
        self.uses = list(uses.values())
        names = keys(self.model, blocks)
        for module, units in self.uses:
            forward: Callable[..., Any]
            if any(id(unit) in tied for unit in units) or (module is word and not self.arithmetic.in_place):
                forward = functools.partial(self._embed, units[0], checked_embedding(module, units), module.forward)
            elif type(module) is nn.Linear and id(module) in inside:
                forward = functools.partial(self._linear, units, module)
            elif id(module) in inside and id(module) not in of_blocks:
                forward = functools.partial(self._leaf, units[0], module.forward)
            else:
                follows = marks.get(names.get(id(module), ""), UNKNOWN)
                forward = self._whole(module, units, follows, id(module) in of_blocks)
            self._replace(module, forward)

    def _whole(self, module: nn.Module, units: Sequence[Unit], follows: Follows, is_block: bool) -> Callable[..., Any]:
        """The forward of a block, or of a module outside them."""
        forward = module.forward
        if self.config.compile and is_block:
            forward = torch.compile(forward, dynamic=False)
        return functools.partial(self._folded, units, forward, follows)

    def _replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Gives a module another forward, until :meth:`close`."""
        module.forward = forward
        self._wrapped.append(module)

    def while_on_device(self, unit: Unit, turn: Callable[[], T]) -> T:
        """Returns what ``turn`` returns, which is called while the unit's weights are on the device."""
        output: list[T] = []
        self.run(unit, lambda: output.append(turn()))
        return output[0]

    def _locate(self, unit: Unit, changes: bool = True) -> None:
        """Notes how far the forward has come, and with the first one what comes before the blocks and what after."""
        if changes:
            self.touch(unit)
        if unit.part < 0:
            unit.part = 0 if self._reached == 0 else self._after
        elif 0 < unit.part < self._after:
            self._reached = unit.part

    def _bind(self, unit: Unit, copy: int) -> None:
        unit.bind(self.arithmetic.at(unit, self.points[copy]))

    def _folded(
        self, units: Sequence[Unit], forward: Callable[..., Any], follows: Follows, *args: Any, **kwargs: Any
    ) -> Any:
        """A block, or a module outside them: its own forward, once per copy of the batch."""
        for unit in units:
            self._locate(unit)

        def prepare(copy: int) -> None:
            for unit in units:
                self._bind(unit, copy)

        def turn() -> Any:
            frozen, copies = not any(unit.trained for unit in units), len(self.points)
            output = fold(units[0].name, forward, copies, self._rows, prepare, args, kwargs, follows, frozen)
            for unit in units:
                self.arithmetic.finish(unit)
            if units[0].streamed:
                units[0].release()
            return output

        return self.while_on_device(units[0], turn)

    def _leaf(self, unit: Unit, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A norm inside a block that is cut into linear layers."""
        self._locate(unit)
        outputs = []
        for copy, part in enumerate(x.chunk(len(self.points))):
            self._bind(unit, copy)
            outputs.append(forward(part, *args, **kwargs))
        self.arithmetic.finish(unit)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _linear(self, units: Sequence[Unit], module: nn.Linear, x: Tensor) -> Tensor:
        """A linear layer, tile by tile."""
        rows = linear.TiledOutput(x, len(self.points), module.out_features)

        def turn(unit: Unit) -> None:
            for copy, point in enumerate(self.points):
                weight, *bias = self.arithmetic.at(unit, point)
                rows.add(copy, weight, bias[0] if bias else None, unit.fields[0].first)
            self.arithmetic.finish(unit)

        for unit in units:
            self._locate(unit)
            self.run(unit, functools.partial(turn, unit))
        return rows.output()

    def _embed(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The word embedding: only the rows of the batch are looked at, in a copy."""
        tied = unit in self.head.units
        self._locate(unit, changes=self.arithmetic.in_place or not tied)
        first_copy = ids[: self._rows].long()
        lookup = functools.partial(lookup_rows, module, forward, first_copy, args, kwargs)
        return torch.cat(self.arithmetic.embed(unit, first_copy.reshape(-1), self.points, lookup, tied))


def checked_embedding(module: nn.Module, units: Sequence[Unit]) -> nn.Embedding:
    """``module`` if its rows can be perturbed alone; ``ValueError`` if they cannot."""
    if not isinstance(module, nn.Embedding) or len(units) != 1 or len(units[0].fields) != 1:
        raise ValueError(
            f"a module tied to the head must be an embedding, but got {type(module).__name__}; build the model untied"
        )
    return module


def lookup_rows(
    module: nn.Embedding, forward: Callable[..., Tensor], ids: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any],
    rows: Tensor,
) -> Tensor:  # fmt: skip
    """The embedding's own forward on a table that holds just this batch's rows, in order."""
    whole, padding = module._parameters["weight"], module.padding_idx
    module._parameters["weight"] = nn.Parameter(rows.clone(), requires_grad=False)
    module.padding_idx = None  # it names a row of the whole table, and matters only to gradients
    try:
        return forward(torch.arange(ids.numel(), device=ids.device).view(ids.shape), *args, **kwargs)
    finally:
        module._parameters["weight"], module.padding_idx = whole, padding
