"""The products and tensors of one transformer block, from a model's numbers. No torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from zobench.models import Model

_REST = 0.05
"""Share of a block's parameters beyond which what is left over is another product, as of experts."""


@dataclass(frozen=True, slots=True)
class Block:
    """``linears``: (inputs, outputs) of every weight matrix; ``vectors``: elements of every bias and norm; ``gated``:
    whether its feed-forward multiplies two branches."""

    linears: tuple[tuple[int, int], ...]
    vectors: tuple[int, ...]
    gated: bool

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every parameter tensor."""
        return (*(rows * columns for rows, columns in self.linears), *self.vectors)

    @property
    def parameters(self) -> int:
        """Elements of all of them."""
        return sum(self.tensors)


@functools.cache
def block(model: Model) -> Block:
    """The largest block of ``model``: plain (biases, two products of the feed-forward) or gated (no biases, three), as
    its number of parameters says; what neither explains is one more product, or two more norms."""
    known = min(_plain(model), _gated(model), key=lambda one: abs(one.parameters - model.block))
    rest, linears, vectors = model.block - known.parameters, known.linears, known.vectors
    if rest > _REST * model.block:
        linears = (*linears, (model.hidden, rest // model.hidden))
    elif rest > 0:
        vectors = (*vectors, rest // 2, rest - rest // 2)
    return Block(linears, vectors, known.gated)


def _plain(model: Model) -> Block:
    hidden, inner = model.hidden, model.inner
    linears = (*[(hidden, hidden)] * 4, (hidden, inner), (inner, hidden))
    return Block(linears, (*(outputs for _, outputs in linears), *[hidden] * 4), False)


def _gated(model: Model) -> Block:
    hidden, inner = model.hidden, model.inner
    queries, keys = model.attention_widths
    linears = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden), *[(hidden, inner)] * 2)
    return Block((*linears, (inner, hidden)), (hidden, hidden), True)
