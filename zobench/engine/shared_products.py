"""Products with weights that differ from point to point by factors of low rank: all points share the one with W."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.nn import functional

from zobench.engine.base import Point
from zobench.engine.basis import ALL
from zobench.engine.thin import add_thin
from zobench.engine.turn import Turn

Held = tuple[Turn, int]
"""A tensor on the device: the number of a field of its unit."""


def product(
    weight: Held, bias: Held | None, x: Tensor, points: Sequence[Point], *, transposed: bool, rows: slice = ALL
) -> Tensor:
    """``x W^T + b`` of a linear layer, each of ``points`` on its part of ``x`` (points * n, ..., inputs).

    ``transposed``: W is (inputs, outputs), as GPT-2 has it. ``rows``: only these outputs.
    """
    turn, number = weight
    own = turn.tensors[number] if transposed else turn.tensors[number][rows]
    if not any(held.is_moved(place, points) for held, place in (weight, bias or weight)):
        return functional.linear(
            x, own.T if transposed else own, None if bias is None else bias[0].tensors[bias[1]][rows]
        )
    flat = x.reshape(-1, x.shape[-1])
    y = flat @ own if transposed else functional.linear(flat, own)
    size = len(flat) // len(points)
    for first, last in _runs([tuple(seed for seed, _ in turn.terms(number, point)) for point in points]):
        inside = slice(first * size, last * size)
        _correct(weight, bias, flat[inside], y[inside], points[first:last], transposed, rows)
    return y.view(*x.shape[:-1], y.shape[-1])


def _correct(
    weight: Held, bias: Held | None, x: Tensor, y: Tensor, points: Sequence[Point], transposed: bool, rows: slice
) -> None:
    """Makes ``x W^T`` in ``y`` what it is at points of the same subspaces, where W is W + L R: one thin product of all
    their rows with R, if that is the same at all of them, then each point's own with its L."""
    (turn, number), x, count = weight, x.to(y.dtype), len(points)
    terms, kept, shared = turn.terms(number, points[0]), turn.kept_of(number), None
    if terms and not transposed and all(turn.basis(number, term).right is not None for term in terms):
        shared = (x @ turn.inner(number, points[0]).to(y.dtype).T).chunk(count)
    for place, (point, own, part) in enumerate(zip(points, x.chunk(count), y.chunk(count), strict=True)):
        shift = None if bias is None else bias[0].vector(bias[1], point)[rows].to(y.dtype)
        if not terms:
            add_thin(part, None, None, shift)
        elif transposed:
            inner = turn.inner(number, point).to(y.dtype)
            add_thin(part, own @ turn.outer(number, point).to(y.dtype), inner.T, shift, kept)
        else:
            thin = own @ turn.inner(number, point).to(y.dtype).T if shared is None else shared[place]
            add_thin(part, thin, turn.outer(number, point, rows).to(y.dtype), shift, kept)


def _runs(keys: Sequence[object]) -> Iterator[tuple[int, int]]:
    """The ranges [first, last) of equal neighbours."""
    first = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[first]:
            yield first, place
            first = place
