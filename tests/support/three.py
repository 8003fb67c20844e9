"""An engine over three numbers whose directions are known, so that every method can be checked by its formula."""

import itertools
import math

import numpy as np
import torch

from zobench import EngineConfig
from zobench.engine.directions.shapes import shaping
from zobench.kernels import Update


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
