"""What stands in for the forwards of a model's modules during a pass over all points.

Each module that uses a unit of weights as a whole runs once for every copy of the batch, on its point's weights; the
word embedding and the head, which may share a table, have ways of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zobench.engine import embedding, linear
from zobench.engine.arithmetic import Arithmetic, InPlace, Pristine
from zobench.engine.base import BASE, EngineConfig, Point
from zobench.engine.blocks import Unit
from zobench.engine.fold import fold
from zobench.engine.loss import RunningLoss, head_states, log_probabilities, mean_loss, rows_per_chunk
from zobench.models import is_masked

HEAD_BYTES = 16 << 20
"""Bytes of the vocabulary rows of the head that are perturbed at once (counter noise)."""
BIAS_BYTES = 64 << 10
"""Of these, bytes for the same rows of its bias."""


class Forwards:
    """The forwards of ``model`` at several points at once, until :meth:`close` gives it its own ones back.

    ``run(unit, turn)`` calls ``turn`` while the unit's weights are on the device, where ``arithmetic`` moves them;
    ``touch(unit)`` comes before its first turn of a pass.
    ``uses``: every module with a forward of this kind, and its units; ``head_units``: those that the head uses.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, blocks: Sequence[nn.Module], units: Sequence[Unit],
        arithmetic: Arithmetic, run: Callable[[Unit, Callable[[], None]], None], touch: Callable[[Unit], None],
    ) -> None:  # fmt: skip
        self._model, self._config, self._units = model, config, units
        self._arithmetic, self._run, self._touch = arithmetic, run, touch
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self.points: Sequence[Point] = (BASE,)
        self._rows = 1
        self._after, self._here = len(blocks) + 1, 0
        self._wrapped: list[nn.Module] = []
        self._wrap(blocks)

    def begin(self, points: Sequence[Point], rows: int) -> None:
        """A pass over the model on ``rows`` rows for each of ``points``."""
        self.points, self._rows, self._here = points, rows, 0

    def close(self) -> None:
        """The model's forwards are its own again."""
        for module in self._wrapped:
            del module.forward
        self._wrapped.clear()

    def judge(self, hidden: Tensor, places: Tensor | None, targets: Tensor) -> list[Tensor]:
        """Of every copy: the mean loss over all tokens, or the log-probabilities (n,) of ``targets`` at ``places``
        (n, 2), each a row and a position; then the head sees no other tokens."""
        for unit in self.head_units:
            self._locate(unit)
        copies = hidden.split(self._rows)
        if places is None:
            states = [own.reshape(-1, own.shape[-1]) for own in copies]
        else:
            states = [own[places[:, 0], places[:, 1]] for own in copies]
        if is_masked(self._model):
            self._rows = len(targets)  # of each copy, from here on
            states = list(head_states(self._model, torch.cat(states)).split(self._rows))
        if isinstance(self._arithmetic, Pristine):
            tiled = self._tiled(self._arithmetic, states, targets)
            return [own.mean() if places is None else own.log_probabilities() for own in tiled]
        picked = self._chunked(states, targets)
        return [mean_loss(own, targets) for own in picked] if places is None else picked

    def _wrap(self, blocks: Sequence[nn.Module]) -> None:
        """Replaces ``forward`` of each module that uses parameters of a unit as a whole, but the head's."""
        uses: dict[int, tuple[nn.Module, list[Unit]]] = {}
        own = set(map(id, blocks))
        around = {id(module) for module in self._model.modules() if self.head in module.children()}
        inside = {id(module) for block in blocks for module in block.modules()}
        for unit in self._units:
            users = [unit.module] if id(unit.module) in inside else [m for item in unit.fields for m, _ in item.homes]
            for module in dict.fromkeys(users):
                if id(module) in around:  # as RoBERTa's lm_head, which holds the head's bias and never uses it itself
                    continue
                uses.setdefault(id(module), (module, []))[1].append(unit)
        self.head_units = uses.pop(id(self.head), (self.head, []))[1]
        tied = {id(unit) for unit in self.head_units}
        word = self._model.get_input_embeddings()  # type: ignore[operator]
        self.uses = list(uses.values())
        for module, units in self.uses:
            forward: Callable[..., Any]
            if any(id(unit) in tied for unit in units) or (module is word and isinstance(self._arithmetic, Pristine)):
                forward = functools.partial(self._embed, units[0], embedding.check(module, units), module.forward)
            elif type(module) is nn.Linear and id(module) in inside:
                forward = functools.partial(self._linear, units, module)
            elif id(module) in inside and id(module) not in own:
                forward = functools.partial(self._leaf, units[0], module.forward)
            else:
                own_forward = module.forward
                if self._config.compile and id(module) in own:
                    own_forward = torch.compile(own_forward, dynamic=False)
                forward = functools.partial(self._folded, units, own_forward)
            module.forward = forward
            self._wrapped.append(module)

    def _locate(self, unit: Unit, changes: bool = True) -> None:
        """Notes how far the forward has come, and with the first one what comes before the blocks and what after."""
        if changes:
            self._touch(unit)
        if unit.part < 0:
            unit.part = 0 if self._here == 0 else self._after
        elif 0 < unit.part < self._after:
            self._here = unit.part

    def _bind(self, unit: Unit, copy: int) -> None:
        unit.bind(self._arithmetic.at(unit, self.points[copy]))

    def _folded(self, units: Sequence[Unit], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A block, or a module outside them: its own forward, once per copy of the batch."""
        output: list[Any] = []
        for unit in units:
            self._locate(unit)

        def turn() -> None:
            def prepare(copy: int) -> None:
                for unit in units:
                    self._bind(unit, copy)

            output.append(fold(units[0].name, forward, len(self.points), self._rows, prepare, args, kwargs))
            for unit in units:
                self._arithmetic.rest(unit)
            if units[0].streamed:
                units[0].release()

        self._run(units[0], turn)
        return output[0]

    def _leaf(self, unit: Unit, forward: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A norm inside a block that is cut into linear layers."""
        self._locate(unit)
        prepare = functools.partial(self._bind, unit)
        output = linear.forward_leaf(forward, len(self.points), prepare, x, *args, **kwargs)
        self._arithmetic.rest(unit)
        return output

    def _linear(self, units: Sequence[Unit], module: nn.Linear, x: Tensor) -> Tensor:
        """A linear layer, tile by tile."""
        rows = linear.Rows(x, len(self.points), module.out_features)

        def turn(unit: Unit) -> None:
            for copy, point in enumerate(self.points):
                weight, *bias = self._arithmetic.at(unit, point)
                rows.add(copy, weight, bias[0] if bias else None, unit.fields[0].first)
            self._arithmetic.rest(unit)

        for unit in units:
            self._locate(unit)
            self._run(unit, functools.partial(turn, unit))
        return rows.output()

    def _embed(
        self, unit: Unit, module: nn.Embedding, forward: Callable[..., Any], ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The word embedding; a table tied to the head is settled there, and with counter noise only read here."""
        self._locate(unit, changes=isinstance(self._arithmetic, InPlace) or unit not in self.head_units)
        own = ids[: self._rows]
        if isinstance(self._arithmetic, Pristine):
            output = embedding.forward_rows(unit, module, forward, self._arithmetic, self.points, own, args, kwargs)
            if unit not in self.head_units and self._arithmetic.is_due(unit):
                self._arithmetic.settle(unit)
            return output
        assert isinstance(self._arithmetic, InPlace)
        return embedding.forward_tied(unit, module, forward, self._arithmetic, self.points, own, args, kwargs)

    def _chunked(self, states: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
        """The head on a few tokens at a time, for every copy; it is the last use of its units."""
        rows = rows_per_chunk(self.head.out_features, self._config.logits_bytes)  # type: ignore[arg-type]
        found = []
        for copy, own in enumerate(states):
            for unit in self.head_units:
                self._bind(unit, copy)
            found.append(log_probabilities(self.head, own, targets, rows))
        for unit in self.head_units:
            self._arithmetic.rest(unit)
        return found

    def _tiled(self, pristine: Pristine, states: Sequence[Tensor], targets: Tensor) -> list[RunningLoss]:
        """The head a few vocabulary rows at a time: neither its perturbed weights nor the logits ever exist whole."""
        where = {
            key: (unit, item)
            for unit in self.head_units
            for item in unit.fields
            for module, key in item.homes
            if module is self.head
        }
        found = [RunningLoss(targets) for _ in states]
        vocabulary, step = where["weight"][1].shape[0], self._head_rows(len(targets))
        for first in range(0, vocabulary, step):
            last = min(first + step, vocabulary)
            weights = pristine.part(*where["weight"], first, last, self.points)
            place = HEAD_BYTES - BIAS_BYTES
            biases = pristine.part(*where["bias"], first, last, self.points, place) if "bias" in where else None
            for own, running, weight in zip(states, found, weights, strict=True):
                bias = None if biases is None else next(biases)
                running.add(functional.linear(own, weight, bias).float(), first)
        for unit in self.head_units:
            pristine.keep_parts(unit)
        return found

    def _head_rows(self, tokens: int = 1) -> int:
        """Vocabulary rows of the head that are perturbed at once, so that they and their logits stay small."""
        weight = self.head.get_parameter("weight")
        row = weight.shape[1] * weight.dtype.itemsize
        room = min((HEAD_BYTES - BIAS_BYTES) // row, BIAS_BYTES // weight.dtype.itemsize)
        return max(1, min(room, self._config.logits_bytes // (4 * tokens)))
