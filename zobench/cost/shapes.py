"""The products and tensors of one transformer block, from a model's numbers. No torch."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from zobench.models import Model
from zobench.models.families import Architecture
from zobench.models.inspected import BlockKind, Inspected


@dataclass(frozen=True, slots=True)
class Experts:
    """A stack of ``count`` matrices of a mixture of experts, of which a token goes through ``chosen``; ``is_last``:
    what they make is the experts' result."""

    count: int
    chosen: float
    inputs: int
    outputs: int
    is_last: bool

    def hit(self, tokens: float) -> float:
        """How many of them any of ``tokens`` goes through, if the router prefers none: E (1 - (1 - k / E)^n)."""
        return self.count * (1 - math.pow(1 - self.chosen / self.count, tokens))


@dataclass(frozen=True, slots=True)
class Block:
    """The work and the memory of one forward in one transformer block.

    ``linears``: (inputs, outputs) of every weight matrix that every token goes through; ``vectors``: elements of every
    other tensor, norms, whole stacks of ``experts`` and ``biases`` of matrices; ``norms``: how many norms it has;
    ``gated``: whether its feed-forward multiplies two branches, as families do that have rotary positions and norms in
    float32. Numbers of one token: ``hidden``; ``normed``, what its norms read; ``inner``, what the last matrices of the
    feed-forward read, of all experts that a token goes through; ``queries`` and ``keys`` in all heads; ``attention``,
    the widths of queries and values as they are multiplied, zeros without attention. ``window``: tokens that a query
    attends to, 0 for all; ``is_causal``: no query attends to the tokens behind it.
    """

    linears: tuple[tuple[int, int], ...]
    vectors: tuple[int, ...]
    biases: int
    norms: int
    gated: bool
    hidden: int
    normed: int
    inner: float
    queries: int
    keys: int
    attention: tuple[int, int]
    window: int
    is_causal: bool
    experts: tuple[Experts, ...] = ()

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every parameter tensor."""
        return (*(rows * columns for rows, columns in self.linears), *self.vectors)

    @property
    def parameters(self) -> int:
        """Elements of all of them."""
        return sum(self.tensors)

    @property
    def active(self) -> float:
        """Elements of the matrices that a token is multiplied by."""
        routed = sum(stack.chosen * stack.inputs * stack.outputs for stack in self.experts)
        return sum(inputs * outputs for inputs, outputs in self.linears) + routed

    @property
    def routed(self) -> float:
        """Experts that a token goes through, 0 without any."""
        return max((stack.chosen for stack in self.experts), default=0.0)

    def through(self, chosen: float) -> Block:
        """It with tokens that go through at most ``chosen`` of its experts."""
        stacks = tuple(dataclasses.replace(stack, chosen=min(stack.chosen, chosen)) for stack in self.experts)
        pairs = zip(self.experts, stacks, strict=True)
        spared = sum((stack.chosen - fewer.chosen) * stack.inputs for stack, fewer in pairs if stack.is_last)
        return dataclasses.replace(self, experts=stacks, inner=self.inner - spared)

    def pairs(self, tokens: float, is_whole: bool = False) -> float:
        """Multiplications of attention over a row of ``tokens``: of half of all pairs, which are causal; of all where
        matrices of all of them are made (``is_whole``), where tokens attend to those behind them, and where a window is
        shorter than the row, because transformers then gives torch a mask of all pairs."""
        is_half = self.is_causal and not is_whole and not 0 < self.window <= tokens
        return tokens**2 * sum(self.attention) / (2 if is_half else 1)

    def elementwise(self, width: int) -> Elementwise:
        """Returns the work of one forward beside products and attention, with activations of ``width`` bytes. A token
        is copied to each of its experts, and what these make is weighted and added up, in some dozen kernels."""
        hidden, inner = self.hidden, self.inner
        residuals = 2 * 3 * hidden * width
        if not self.gated:  # norms, two copies and the scale of the queries, the feed-forward's activation
            norms, others = 2 * 2 * hidden * width, (3 * 2 * hidden + 2 * inner) * width
            return Elementwise(norms + others + residuals, self.norms, 2 + 1 + 1 + 2)
        queries, keys = self.queries, self.keys
        is_cast = width < 4
        norms = self.normed * (8 + 4 + 8 + 2 * width + 2 * (width + 4) * is_cast)
        rotary = 10 * (queries + keys) * width  # two products with a cosine or sine, a negation, a join, a sum
        branches = (5 * inner + 6 * self.routed * hidden) * width
        kernels = self.norms * (6 + 2 * is_cast), 2 * 5 + 2 + 2 + (ROUTING if self.experts else 0)
        return Elementwise(norms + rotary + branches + residuals, *kernels)

    def gathered(self, is_whole: bool) -> int:
        """Numbers per token that each point makes and that are put together with the other points': of a whole block
        its output, else what each product and norm makes, so that all between them takes all points at once."""
        return self.hidden if is_whole else sum(outputs for _, outputs in self.linears) + 2 * self.hidden


ROUTING = 16
"""Kernels of a router: shares, the largest of them, an order by experts, its counts, the tokens in that order."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Operations on activations: bytes read and written ``per_token``; kernels of ``norms`` and of ``others``."""

    per_token: float
    norms: int
    others: int


@functools.cache
def block(model: Model) -> Block:
    """The largest block of ``model``."""
    return _counted(model, model.largest) if isinstance(model, Inspected) else _registered(model)


@functools.cache
def blocks(model: Model) -> tuple[tuple[Block, int], ...]:
    """Every kind of block of ``model``, and how many there are."""
    if isinstance(model, Inspected):
        return tuple((_counted(model, kind), kind.count) for kind in model.kinds)
    return ((block(model), model.layers),)


def active(model: Model) -> float:
    """Elements of all blocks' matrices that a token is multiplied by."""
    return sum(kind.active * count for kind, count in blocks(model))


@functools.cache
def feed_forward(model: Model) -> float:
    """Numbers of one token that a block's feed-forward holds at once: twice its inner width; of a mixture, all experts'
    inputs with what the two branches make of them, or at its end the inputs, the outputs and these weighted."""
    most = [2.0 * model.inner]
    for kind, _ in blocks(model):
        up = sum(stack.chosen * stack.outputs for stack in kind.experts if not stack.is_last)
        down = sum(stack.chosen * stack.inputs for stack in kind.experts if stack.is_last)
        copies = kind.routed * kind.hidden
        most.append(max(copies + up + 2 * down, 3 * copies + down) if kind.experts else 0.0)
    return max(most)


def _registered(model: Architecture) -> Block:
    """Plain (biases, two products of the feed-forward) or gated (no biases, three), as its number of parameters says;
    what neither explains is two more norms."""
    nearest = min(_of(model, gated=False), _of(model, gated=True), key=lambda kind: abs(kind.parameters - model.block))
    rest, vectors = model.block - nearest.parameters, nearest.vectors
    if rest > 0:
        vectors = (*vectors, rest // 2, rest - rest // 2)
    norms = max(nearest.norms, len(vectors) if nearest.gated else 0)
    heads = nearest.queries + nearest.keys if norms > 2 else 0
    return dataclasses.replace(nearest, vectors=vectors, norms=norms, normed=nearest.normed + heads)


def _counted(model: Inspected, kind: BlockKind) -> Block:
    """As its modules were counted. Gated is a mixture, and what has two matrices to a last one's inputs, or one that is
    twice as wide."""
    queries, keys = model.attention_widths
    stacks = tuple(Experts(*stack) for stack in kind.experts)
    ends = [inputs for inputs, outputs in kind.matrices if outputs == model.hidden != inputs]
    if kind.attention[1] in ends:
        ends.remove(kind.attention[1])
    branches = [kind.matrices.count((model.hidden, end)) + 2 * kind.matrices.count((model.hidden, 2 * end))
                for end in ends]  # fmt: skip
    return Block(
        linears=kind.matrices, vectors=(*(s.count * s.inputs * s.outputs for s in stacks), *kind.others),
        biases=kind.biases, norms=len(kind.norms), gated=bool(stacks) or max(branches, default=0) >= 2,
        hidden=model.hidden, normed=sum(kind.norms),
        inner=sum(ends) + sum(stack.chosen * stack.inputs for stack in stacks if stack.is_last),
        queries=queries, keys=keys, attention=kind.attention, window=kind.window, is_causal=not model.masked,
        experts=stacks,
    )  # fmt: skip


def _of(model: Architecture, *, gated: bool) -> Block:
    """The block of a family that is gated, or plain."""
    hidden, inner = model.hidden, model.inner
    queries, keys = model.attention_widths
    if gated:
        linears = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden), *[(hidden, inner)] * 2]
        vectors = [hidden, hidden]
    else:
        linears = [*[(hidden, hidden)] * 4, (hidden, inner)]
        vectors = [*[hidden] * 4, inner, hidden, *[hidden] * 4]  # biases, then two norms
    return Block(
        linears=(*linears, (inner, hidden)), vectors=tuple(vectors), biases=0 if gated else 6, norms=2, gated=gated,
        hidden=hidden, normed=2 * hidden, inner=inner, queries=queries, keys=keys, attention=(queries, queries),
        window=model.window, is_causal=not model.masked,
    )  # fmt: skip
