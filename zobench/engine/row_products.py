"""The forwards of a population: one point per row, or per few rows, of the batch, in one call of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zobench.engine import embedding
from zobench.engine.blocks import Unit
from zobench.engine.fold import Follows
from zobench.engine.logits import Driven
from zobench.engine.objective import Objective
from zobench.engine.products import ProductForwards
from zobench.engine.row_factored import RowFactored


class RowForwards(ProductForwards):
    """As :class:`ProductForwards`, where nothing is done point by point that many points would wait for: norms and
    tables outside the head serve all of them at once. Their rows may be of different batches."""

    arithmetic: RowFactored

    def judge(self, driven: Driven, objective: Objective) -> list[Tensor]:
        """See :meth:`Forwards.judge`."""
        return self.judge_each(driven, [objective] * len(self.points))

    def judge_each(self, driven: Driven, objectives: Sequence[Objective]) -> list[Tensor]:
        """The same where each point has an objective of its own."""
        head, copies = self._head(driven), driven.states.split(self._rows)
        states = [own.states([copy])[0] for own, copy in zip(objectives, copies, strict=True)]
        judged = self.arithmetic.judge_each(head, states, [own.targets for own in objectives], self.points)
        return [own.reduced(one) for own, one in zip(objectives, judged, strict=True)]

    def next_logits(self, driven: Driven) -> Tensor:
        """The logits after each row's last token, float32 (points * rows, vocabulary)."""
        return self.arithmetic.logits(self._head(driven), driven.states[:, -1], self.points)

    def _head(self, driven: Driven) -> Any:
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
        lookup = functools.partial(embedding.lookup, module, forward, ids, args, kwargs)
        return self.arithmetic.embed(unit, ids.reshape(-1), self.points, lookup, unit in self.head.units)[0]

    def _table(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Another embedding outside the blocks, of positions perhaps."""
        output: list[Tensor] = []

        def lookup(table: Tensor) -> Tensor:
            module._parameters["weight"] = nn.Parameter(table, requires_grad=False)
            looked: Tensor = forward(*args, **kwargs)
            return looked

        def turn() -> None:
            self.arithmetic.begin(unit)
            output.append(self.arithmetic.looked_up((unit, 0), lookup, self.points, self._rows))
            self.arithmetic.rest(unit)

        self._locate(unit)
        self.run(unit, turn)
        return output[0]

    def _norm(self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> Tensor:
        """A norm outside the blocks."""
        output: list[Tensor] = []

        def turn() -> None:
            self.arithmetic.begin(unit)
            self._here_now = self.points
            output.append(self._vectors(unit, module, forward, x, **kwargs))
            self._here_now = ()
            self.arithmetic.rest(unit)

        self._locate(unit)
        self.run(unit, turn)
        return output[0]

    def _vectors(
        self, unit: Unit, module: nn.Module, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """A norm's numbers differ from row to row: those of torch's own are applied after it, an RMS norm's given to it
        in the shape of the rows. Any other module of vectors runs point by point."""
        if not self._here_now or not _is_norm(module):
            return super()._vectors(unit, module, forward, x, *args, **kwargs)
        own = {
            name: self.arithmetic.vectors(place, self._here_now) for name, place in self._places(unit, module).items()
        }
        if type(module) is nn.LayerNorm:
            return _scaled(functional.layer_norm(x, module.normalized_shape, None, None, module.eps), **own)
        if type(module) is nn.RMSNorm:
            return _scaled(functional.rms_norm(x, module.normalized_shape, None, module.eps), **own)
        rows = own["weight"].repeat_interleave(len(x) // len(self._here_now), 0)
        module._parameters["weight"] = nn.Parameter(
            rows.view(len(x), *[1] * (x.ndim - 2), rows.shape[1]), requires_grad=False
        )
        return forward(x, *args, **kwargs)


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of torch's, or has an RMS norm's form: one vector of weights, and nothing else."""
    names = [name for name, own in module._parameters.items() if own is not None]
    if any(own is not None and own.ndim != 1 for own in module._parameters.values()) or any(
        True for _ in module.children()
    ):
        return False
    return bool(names) and (type(module) in (nn.LayerNorm, nn.RMSNorm) or names == ["weight"])


def _scaled(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """``x * weight + bias``, of each point on its part of the rows: ``x`` (points * n, ..., width), the others
    (points, width)."""
    assert weight is not None
    each = x.view(len(weight), -1, x.shape[-1])
    if bias is None:
        return each.mul(weight.unsqueeze(1)).view_as(x)
    return torch.addcmul(bias.unsqueeze(1), each, weight.unsqueeze(1)).view_as(x)
