"""The products and tensors of one transformer block, from a model's numbers. No torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from zobench.models import Model

_REST = 0.05
"""Share of a block's parameters beyond which what is left over is another product, as of experts."""


@dataclass(frozen=True, slots=True)
class Block:
    """``linears``: (inputs, outputs) of every weight matrix; ``vectors``: elements of every bias and norm; ``norms``:
    how many norms those are of; ``gated``: whether its feed-forward multiplies two branches, as families do that have
    rotary positions and norms in float32."""

    linears: tuple[tuple[int, int], ...]
    vectors: tuple[int, ...]
    norms: int
    gated: bool

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every parameter tensor."""
        return (*(rows * columns for rows, columns in self.linears), *self.vectors)

    @property
    def parameters(self) -> int:
        """Elements of all of them."""
        return sum(self.tensors)

    def elementwise(self, width: int) -> Elementwise:
        """What one forward does beside products and attention, with activations of ``width`` bytes."""
        hidden, inner = self.linears[0][0], self.linears[4][1]
        residuals = 2 * 3 * hidden * width
        if not self.gated:  # norms, two copies and the scale of the queries, the feed-forward's activation
            norms, others = 2 * 2 * hidden * width, (3 * 2 * hidden + 2 * inner) * width
            return Elementwise(norms + others + residuals, self.norms, 2 + 1 + 1 + 2)
        queries, keys = self.linears[0][1], self.linears[1][1]
        is_cast = width < 4
        normed = 2 * hidden + (queries + keys if self.norms > 2 else 0)
        norms = normed * (8 + 4 + 8 + 2 * width + 2 * (width + 4) * is_cast)
        rotary = 10 * (queries + keys) * width  # two products with a cosine or sine, a negation, a join, a sum
        branches = 5 * inner * width
        kernels = self.norms * (6 + 2 * is_cast), 2 * 5 + 2 + 2
        return Elementwise(norms + rotary + branches + residuals, *kernels)

    def gathered(self, is_whole: bool) -> int:
        """Numbers per token that each point makes and that are put together with the other points': of a whole block
        its output, else what each product and norm makes, so that all between them takes all points at once."""
        hidden = self.linears[0][0]
        return hidden if is_whole else sum(outputs for _, outputs in self.linears) + 2 * hidden


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Operations on activations: bytes read and written ``per_token``; kernels of ``norms`` and of ``others``."""

    per_token: float
    norms: int
    others: int


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
    return Block(linears, vectors, max(known.norms, len(vectors) if known.gated else 0), known.gated)


def _plain(model: Model) -> Block:
    hidden, inner = model.hidden, model.inner
    linears = (*[(hidden, hidden)] * 4, (hidden, inner), (inner, hidden))
    return Block(linears, (*(outputs for _, outputs in linears), *[hidden] * 4), 2, False)


def _gated(model: Model) -> Block:
    hidden, inner = model.hidden, model.inner
    queries, keys = model.attention_widths
    linears = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden), *[(hidden, inner)] * 2)
    return Block((*linears, (inner, hidden)), (hidden, hidden), 2, True)
