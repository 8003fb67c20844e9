"""Noise: the direction z(seed), drawn tensor by tensor; a block's share can be drawn again at any time.

``TorchNoise`` is the papers' RNG state manager (ZO2 section 5.1): one torch generator per seed runs through all
trainable tensors in ``named_parameters()`` order, and its state at the start of every unit is kept: restoring it
redraws that unit's share of the stream. The trajectory equals MeZO's bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from zobench.engine.directions.shapes import Shaped

CHUNK = 1 << 17
"""Elements drawn at once on a CPU: z stays in the cache and is never stored whole."""
MASK = 10**9
"""The difference of a sparse direction's seed and its mask's: above every seed that a method draws."""

Piece = tuple[int, int, Tensor, Tensor]
"""Tensor index, flat offset, that piece of the tensor, and the same piece of z."""


class Noise(Protocol):
    """Directions of torch's stream."""

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor], lane: int = 0) -> Iterator[Piece]:
        """See :meth:`TorchNoise.draw`."""

    def keep(self, seeds: Collection[int]) -> None:
        """See :meth:`TorchNoise.keep`."""


class TorchNoise:
    """z ~ N(0, 1) in each tensor's dtype, from ``torch.Generator(device)``.

    ``units``: per unit, in stream order, the (shape, dtype) of its trainable tensors. On a CUDA device the values
    depend on the GPU model, because the framework spreads one draw over as many threads as the device has.
    """

    def __init__(self, units: Sequence[Sequence[tuple[torch.Size, torch.dtype]]], device: str = "cpu") -> None:
        self._units = units
        self._device = torch.device(device)
        self._generators: dict[int, torch.Generator] = {}
        self._states: dict[int, dict[int, Tensor]] = {}
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor], lane: int = 0) -> Iterator[Piece]:
        """Yields (tensor index, flat offset, chunk of the tensor, chunk of z) over all of the unit's tensors.

        z is scratch: the caller may change it, and must be done with it before asking for the next. Run to the end.
        Draws that run side by side need a ``lane`` each.
        """
        generator = self._seek(seed, unit, lane)
        for index, tensor in enumerate(tensors):
            flat = tensor.view(-1)
            for start, stop in self._spans(tensor.shape):
                yield index, start, flat[start:stop], self._normal(stop - start, tensor.dtype, generator, lane)
        self._states[seed].setdefault(unit + 1, generator.get_state())

    def keep(self, seeds: Collection[int]) -> None:
        """Forgets the states of all other seeds."""
        self._states = {seed: states for seed, states in self._states.items() if seed in seeds}

    def _seek(self, seed: int, unit: int, lane: int) -> torch.Generator:
        """The generator at the start of ``unit``: restored if known, else drawn forward from the last known unit."""
        if lane not in self._generators:
            self._generators[lane] = torch.Generator(self._device if self._device.type != "meta" else "cpu")
        generator = self._generators[lane]
        if seed not in self._states:
            self._states[seed] = {0: generator.manual_seed(seed).get_state()}
        states = self._states[seed]
        latest = max(u for u in states if u <= unit)
        generator.set_state(states[latest])
        for passed in range(latest, unit):
            for shape, dtype in self._units[passed]:
                for start, stop in self._spans(shape):
                    self._normal(stop - start, dtype, generator, lane)
            states[passed + 1] = generator.get_state()
        return generator

    def _spans(self, shape: torch.Size) -> Iterator[tuple[int, int]]:
        """Ranges that give the same stream as one draw of the whole tensor.

        On the CPU torch fills 16 at a time and draws the last 16 again for a ragged end, so ranges must start at
        multiples of 16 and the last must not be shorter than 16. Ranges hold whole rows where rows allow it.
        """
        total, width = shape.numel(), shape[-1] if shape else 1
        step = CHUNK if len(shape) < 2 or width > CHUNK else CHUNK // width * width
        if self._device.type != "cpu" or step % 16:
            step = max(total, 1)
        start = 0
        while start < total:
            stop = min(start + step, total)
            if total - stop < 16:
                stop = total
            yield start, stop
            start = stop

    def _normal(self, count: int, dtype: torch.dtype, generator: torch.Generator, lane: int) -> Tensor:
        if self._device.type != "cpu":
            return torch.empty(count, dtype=dtype, device=self._device).normal_(generator=generator)
        scratch = self._scratch.get((lane, dtype))
        if scratch is None or scratch.numel() < count:
            scratch = self._scratch[lane, dtype] = torch.empty(count, dtype=dtype)
        return scratch[:count].normal_(generator=generator)


class StoredNoise:
    """The numbers of ``noise``, drawn at their first use and then kept in memory for as long as their seed is wanted.

    It is what ZO-Bench calls the vanilla implementation (appendix C.1): beside the weights lies z, as large as they.
    Only seeds of the last :meth:`keep` are stored; those of any other are drawn each time, as when a run is repeated.
    """

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._wanted: frozenset[int] = frozenset()
        self._stored: dict[tuple[int, int], tuple[list[Tensor], list[tuple[int, int, int]]]] = {}

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor], lane: int = 0) -> Iterator[Piece]:
        """See :meth:`TorchNoise.draw`. A caller changes a copy of the piece."""
        if seed not in self._wanted:
            yield from self._noise.draw(seed, unit, tensors, lane)
            return
        if (seed, unit) not in self._stored:
            whole, spans = [torch.empty_like(tensor) for tensor in tensors], []
            for index, start, _, z in self._noise.draw(seed, unit, tensors, lane):
                whole[index].view(-1)[start : start + len(z)] = z
                spans.append((index, start, start + len(z)))
            self._stored[seed, unit] = whole, spans
        whole, spans = self._stored[seed, unit]
        for index, start, stop in spans:
            yield index, start, tensors[index].view(-1)[start:stop], whole[index].view(-1)[start:stop].clone()

    def keep(self, seeds: Collection[int]) -> None:
        """Stores what is drawn for ``seeds`` from now on, and frees the directions of all others."""
        self._noise.keep(seeds)
        self._wanted = frozenset(seeds)
        self._stored = {key: z for key, z in self._stored.items() if key[0] in self._wanted}


class ShapedNoise:
    """Directions that a rule shapes of the numbers that ``noise`` draws, and of a unit's ``states`` of each tensor."""

    def __init__(self, noise: Noise, rule: Shaped, states: Sequence[Sequence[Tensor]]) -> None:
        self._noise, self._rule, self._states = noise, rule, states

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor], lane: int = 0) -> Iterator[Piece]:
        for index, start, piece, u in self._noise.draw(seed, unit, tensors, lane):
            piece_states = [state.view(-1)[start : start + len(piece)] for state in self._states[index]]
            yield index, start, piece, self._rule.shape(u, piece, piece_states, math.inf)

    def keep(self, seeds: Collection[int]) -> None:
        self._noise.keep(seeds)


class SparseNoise:
    """z(seed) where z(seed + MASK) reaches its tensor's threshold, else 0: a mask drawn anew for each direction.

    ``thresholds``: per unit, those of its trainable tensors, in stream order. A threshold t leaves out a share Phi(t).
    """

    def __init__(self, noise: Noise, thresholds: Sequence[Sequence[float]]) -> None:
        self._noise, self._thresholds = noise, thresholds

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor], lane: int = 0) -> Iterator[Piece]:
        normals = self._noise.draw(seed, unit, tensors, 2 * lane)
        masks = self._noise.draw(seed + MASK, unit, tensors, 2 * lane + 1)
        for (index, start, piece, z), (_, _, _, mask) in zip(normals, masks, strict=True):
            yield index, start, piece, z.masked_fill_(mask < self._thresholds[unit][index], 0.0)

    def keep(self, seeds: Collection[int]) -> None:
        self._noise.keep({*seeds, *(seed + MASK for seed in seeds)})
