"""The estimate approaches the gradient as theory says, on three numbers and on a tiny model.

With v the gradient's direction and u_i normal, ghat's part along v is the mean of (v.u_i)^2, a chi-square of q degrees
over q, and given that, its part across v is normal in d - 1 dimensions with the same factor. So cos^2 of the angle
between them is X / (X + Y), X a chi-square of q degrees and Y of d - 1: Beta(q / 2, (d - 1) / 2), of mean
q / (q + d - 1). The mean of ghat itself is the gradient.
"""

import math

import numpy as np
import pytest
import torch

from tests.support.three import Three, quadratic, quadratic_gradient, z_of
from zobench import ZOSGD
from zobench.methods import ZOSGDBlock

COS_MEANS = {q: q / (q + 2) for q in (1, 4, 32)}


def beta(q, d):
    """(mean, standard deviation) of cos^2."""
    a, b = q / 2, (d - 1) / 2
    return a / (a + b), math.sqrt(a * b / (a + b + 1)) / (a + b)


def cos2(ghat, gradient):
    return float((ghat @ gradient) ** 2 / ((ghat @ ghat) * (gradient @ gradient)))


@pytest.mark.parametrize("queries", COS_MEANS)
def test_the_cosine_rises_with_the_queries_on_three_numbers(queries):
    repeats, engine = 600, Three(quadratic, dtype=torch.float64)
    method, gradient = ZOSGD(lr=0.0, eps=1e-3, seed=3, queries=queries), quadratic_gradient(engine.x)
    found = []
    for _ in range(repeats):
        result = method.step(engine, None)
        found.append(np.mean([g * z_of(s) for s, g in zip(result.seeds, result.gradients, strict=True)], axis=0))
    mean, deviation = beta(queries, 3)
    cosines = [cos2(ghat, gradient) for ghat in found]
    assert mean == pytest.approx(COS_MEANS[queries])
    assert np.mean(cosines) == pytest.approx(mean, abs=4 * deviation / math.sqrt(repeats))
    assert np.std(cosines) == pytest.approx(deviation, rel=0.15)
    error = np.linalg.norm(gradient) * math.sqrt(4 / (queries * repeats))  # E|ghat - grad|^2 = (d + 1) |grad|^2 / q
    assert np.linalg.norm(np.mean(found, axis=0) - gradient) < 3 * error


def test_block_estimates_have_less_variance():
    """Each part's estimate has only its own noise: E|ghat - grad|^2 is 2 |grad|^2 for parts of one number, not 4."""
    repeats, errors = 4000, {}
    for kind in (ZOSGD, ZOSGDBlock):
        engine = Three(quadratic, dtype=torch.float64)
        method, gradient = kind(lr=0.0, eps=1e-3, seed=3), quadratic_gradient(engine.x)
        squares = []
        for _ in range(repeats):
            result = method.step(engine, None)
            ghat = np.zeros(3)
            for n, (seed, g) in enumerate(zip(result.seeds, result.gradients, strict=True)):
                ghat += g * z_of(seed) * (np.arange(3) == n if kind is ZOSGDBlock else 1)
            squares.append((ghat - gradient) @ (ghat - gradient) / (gradient @ gradient))
        errors[kind] = np.mean(squares)
    assert errors[ZOSGD] == pytest.approx(4, rel=0.15)
    assert errors[ZOSGDBlock] == pytest.approx(2, rel=0.15)
