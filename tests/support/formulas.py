"""The methods by their formulas, and an engine over three numbers whose directions are known, to check them with."""

import itertools
import math

import numpy as np
import torch

from zobench import EngineConfig
from zobench.engine.directions.shapes import shaping
from zobench.kernels import Update
from zobench.runspec import METHODS

ZEROTH_ORDER = (
    "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
)  # fmt: skip
"""Those of ZO-Bench."""
NEWER = ("fzoo", "hizoo", "sparse-mezo", "conmezo", "meazo", "es", "r-adazo", "adamezo")
"""Of 2024 and later."""
SHIPPED = tuple(kind.name for kind in METHODS.builtin() if kind.as_shipped is not None and kind.name in ZEROTH_ORDER)
DEFINITIONS = [(name, "as-written") for name in ZEROTH_ORDER] + [(name, "as-shipped") for name in SHIPPED]


class Formula:
    """The updates of ZO-Bench's methods by their formulas, float64: no part of the package has a share in them."""

    def __init__(self, spec):
        self.spec, self.shipped, self.t, self.m, self.v = spec, spec.definition == "as-shipped", 0, {}, {}

    def update(self, directions, gradients):
        """name -> what is subtracted, but for the learning rate, given what each g belongs to: name -> tensor."""
        slopes = np.sign(gradients) if (self.spec.method, self.shipped) == ("zo-sgd-sign", True) else gradients
        self.t += 1
        return {
            name: self._rule(name, sum(g * u[name].double() for g, u in zip(slopes, directions, strict=True)))
            for name in directions[0]
        }

    def _rule(self, name, ghat):
        ghat = ghat / self.spec.queries
        if self.spec.method == "zo-sgd-sign" and not self.shipped:
            return ghat.sign()
        if self.spec.method == "zo-sgd-mmt":
            self.m[name] = 0.9 * self.m.get(name, 0.0) + ghat
            return self.m[name]
        if self.spec.method == "zo-adam":
            self.m[name] = 0.9 * self.m.get(name, 0.0) + 0.1 * ghat
            older = self.v.get(name, 0.0 * ghat)
            self.v[name] = 0.999 * older + 0.001 * ghat**2
            if self.shipped:
                unbiased = (self.v[name] / (1 - 0.999**self.t)).sqrt() + 1e-8
                return self.m[name] / (1 - 0.9**self.t) / unbiased
            return self.m[name] / (self.v[name].maximum(older) + 1e-8).sqrt()
        return ghat


def rosenbrock(x):
    return float(sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2 for i in range(2)))


def z_of(seed):
    return np.random.default_rng(seed).standard_normal(3)


class Three:
    """What methods use of an engine: ``probe``, ``commit``, ``parts`` (one for each number), ``shared``; losses in
    float64. ``limit``: the threshold of a rule that shapes directions."""

    parts, config = 3, EngineConfig(placement="resident")

    def __init__(self, function=rosenbrock, rule=None, start=(-0.5, 0.8, 0.3), dtype=torch.float32, limit=math.inf):
        self.function, self.rule, self.shaping, self.limit = function, rule, shaping(rule), limit
        self.w = torch.tensor(start, dtype=dtype)
        names = rule.states if rule else ()
        self.states = [torch.full((3,), rule.begins.get(name, 0.0), dtype=rule.state_dtype(dtype)) for name in names]
        self.probed, self.committed = [], []

    @property
    def x(self):
        return self.w.double().numpy().copy()

    def probe(self, batch, points):
        self.probed.append(list(points))
        moves = [0 if p.seed is None else p.scale * self._direction(p.seed, p.part) for p in points]
        return [self.function(self.x + move) for move in moves]

    def shared(self, values):
        return list(values)

    def commit(self, entries):
        self.committed += entries
        for step, group in itertools.groupby(entries, key=lambda entry: entry.step):
            members = list(group)
            if self.shaping:
                draws = (
                    (Update(e.seed, e.g, e.lr, e.weight_decay, e.step, e.extra), self._normals(e.seed)) for e in members
                )
                self.shaping.update(self.w, draws, self.states, self.limit)
                continue
            estimates = [torch.from_numpy(e.g * self._direction(e.seed, e.part)).float() for e in members]
            if self.rule:
                decay = sum(e.weight_decay for e in members)
                self.rule.apply(self.w, sum(estimates), self.states, lr=members[0].lr, weight_decay=decay, step=step)
            else:
                for e, estimate in zip(members, estimates, strict=True):
                    mask = torch.tensor([e.part in (None, k) for k in range(3)])
                    self.w -= e.lr * (estimate + e.weight_decay * self.w * mask)

    def _normals(self, seed):
        return torch.from_numpy(z_of(seed)).float()

    def _direction(self, seed, part):
        if self.shaping:
            return self.shaping.shape(self._normals(seed), self.w, self.states, self.limit).double().numpy()
        return z_of(seed) * np.array([part in (None, k) for k in range(3)])
