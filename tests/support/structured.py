"""LOZO-M, SubZero and ZO-Muon by their formulas, in NumPy and float64, on matrices that are made whole: of the package
only the stream of normal numbers has a share in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from zobench import Batch, RunSpec, kernels
from zobench.testing.plain import PlainModel

Arrays = dict[str, np.ndarray]


def normals(number: int, seed: int, start: int, *shape: int) -> np.ndarray:
    made = torch.empty(shape)
    kernels.normals(seed, kernels.Span(number, start), made)
    return made.numpy().astype(np.float64)


def columns(normal: np.ndarray) -> np.ndarray:
    """Orthonormal columns: those of the one QR decomposition whose R has a positive diagonal."""
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diag(r))


def core(number: int, seed: int, subspace: int, m: int, n: int, rank: int) -> np.ndarray:
    """U Z V^T (m, n)."""
    a, b = min(rank, m), min(rank, n)
    u = columns(normals(number, subspace, a * b, m, a))
    v = columns(normals(number, subspace, a * b + m * a, n, b))
    return u @ normals(number, seed, 0, a, b) @ v.T


def projection(number: int, subspace: int, m: int, n: int, rank: int) -> np.ndarray:
    """P (m, k), of P Psi (m, n)."""
    k = min(rank, m)
    return columns(normals(number, subspace, k * n, m, k))


def msign(x: np.ndarray) -> np.ndarray:
    """Five iterations of degree five on the singular values, which is what Newton and Schulz's products come to."""
    u, s, vt = np.linalg.svd(x / (np.linalg.norm(x) + 1e-7), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ vt


class Formula:
    """The iterates of a method by its paper, or as shipped. ``x``: the weights by name; a vector goes along z."""

    def __init__(self, spec: RunSpec) -> None:
        self.model, self.spec, self.shipped = PlainModel("counter"), spec, spec.definition == "as-shipped"
        self.draws, self.t = np.random.default_rng(spec.seed), 0
        self.x: Arrays = {name: tensor.numpy().astype(np.float64) for name, tensor in self.model.tensors.items()}
        self.numbers = {name: number for number, name in enumerate(self.x)}
        self.rank, self.interval = spec.option("rank"), spec.option("interval")

    @property
    def begins(self) -> bool:
        return self.t % self.interval == 0

    def loss(self, batch: Batch, z: Arrays | None = None, scale: float = 0.0) -> float:
        moved = self.x if z is None else {name: x + scale * z[name] for name, x in self.x.items()}
        self.model.set({name: torch.from_numpy(x.astype(np.float32)) for name, x in moved.items()})
        return self.model.loss(batch)

    def z(self, seed: int, subspace: int) -> Arrays:
        return {
            name: self.matrix(number, seed, subspace, *self.x[name].shape)
            if self.x[name].ndim == 2
            else normals(number, seed, 0, *self.x[name].shape)
            for name, number in self.numbers.items()
        }

    def losses(self, batch: Batch, seeds: list[int]) -> list[float]:
        """At W +- eps z."""
        zs = [self.z(seed, self.subspace) for seed in seeds]
        return [self.loss(batch, z, sign * self.spec.eps) for z in zs for sign in (1, -1)]

    def look(self, batch: Batch) -> list[float]:
        """The losses of the next step's points."""
        self.seeds = [int(self.draws.integers(10**9)) for _ in range(self.spec.queries)]
        if self.begins:
            self.enter()
        return self.losses(batch, self.seeds)

    def enter(self) -> None:
        self.subspace = self.seeds[0]

    def step(self, slopes: list[float]) -> None:
        """The update from g of each direction."""
        for name, change in self.changes(slopes).items():
            decayed = "bias" not in name and "layer_norm" not in name
            self.x[name] = self.x[name] - self.spec.lr * (change + decayed * self.spec.weight_decay * self.x[name])
        self.t += 1

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        raise NotImplementedError

    def changes(self, slopes: list[float]) -> Arrays:
        raise NotImplementedError


class LOZOM(Formula):
    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.m: Arrays = {}

    def v(self, number: int, subspace: int, m: int, n: int) -> np.ndarray:
        return normals(number, subspace, m * self.rank, self.rank, n).T

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        return normals(number, seed, 0, m, self.rank) @ self.v(number, subspace, m, n).T

    def enter(self) -> None:
        old = getattr(self, "subspace", None)
        self.subspace = self.seeds[0]
        for name, number in self.numbers.items() if old is not None else ():
            if (shape := self.x[name].shape)[1:]:
                across = self.v(number, old, *shape).T @ self.v(number, self.subspace, *shape)
                self.m[name] = self.m[name] @ across / shape[1]

    def changes(self, slopes: list[float]) -> Arrays:
        beta, made = self.spec.option("beta"), {}
        seeds = [seed + 10**9 for seed in self.seeds] if self.shipped and self.begins else self.seeds
        for name, number in self.numbers.items():
            shape = self.x[name].shape
            own = (shape[0], self.rank) if len(shape) == 2 else shape
            draws = [normals(number, seed, 0, *own) for seed in seeds]
            ghat: Any = sum(g * u for g, u in zip(slopes, draws, strict=True)) / len(seeds)
            if not self.shipped:
                ghat = ghat / self.rank
            alone = self.shipped and (self.t == 0 or (self.interval == 1 and len(shape) == 2))
            self.m[name] = ghat if alone else beta * self.m.get(name, 0 * ghat) + (1 - beta) * ghat
            made[name] = self.m[name] @ self.v(number, self.subspace, *shape).T if len(shape) == 2 else self.m[name]
        return made


class SubZero(Formula):
    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        z = core(number, seed, subspace, m, n, self.rank)
        return z * math.sqrt(m * n / (min(self.rank, m) * min(self.rank, n))) if self.shipped else z

    def changes(self, slopes: list[float]) -> Arrays:
        zs = [self.z(seed, self.subspace) for seed in self.seeds]
        return {name: sum(g * z[name] for g, z in zip(slopes, zs, strict=True)) / len(zs) for name in self.x}


class ZOMuon(Formula):
    def p(self, number: int, subspace: int, m: int, n: int) -> np.ndarray:
        return projection(number, subspace, m, n, self.rank)

    def psi(self, number: int, seed: int, m: int, n: int) -> np.ndarray:
        return normals(number, seed, 0, min(self.rank, m), n)

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        return self.p(number, subspace, m, n) @ self.psi(number, seed, m, n)

    def enter(self) -> None:
        self.subspace = self.seeds[-1 if self.shipped else 0]

    def losses(self, batch: Batch, seeds: list[int]) -> list[float]:
        """At W, and at W + eps z."""
        apart = self.shipped and self.begins
        zs = [self.z(seed, seed if apart else self.subspace) for seed in seeds]
        return [self.loss(batch), *(self.loss(batch, z, self.spec.eps) for z in zs)]

    def changes(self, slopes: list[float]) -> Arrays:
        made, share = {}, 1e-7 / self.spec.lr if self.shipped else self.spec.option("vectors")
        for name, number in self.numbers.items():
            shape, pairs = self.x[name].shape, list(zip(slopes, self.seeds, strict=True))
            if len(shape) == 2:
                low = sum(g * self.psi(number, seed, *shape) for g, seed in pairs) / len(pairs)
                made[name] = self.p(number, self.subspace, *shape) @ msign(low)
            else:
                total: Any = sum(g * normals(number, seed, 0, *shape) for g, seed in pairs)
                made[name] = share * total / len(pairs)
        return made


FORMULAS: dict[str, type[Formula]] = {"lozo-m": LOZOM, "subzero": SubZero, "zo-muon": ZOMuon}
