"""Noise: the direction z(seed), drawn tensor by tensor; a block's share can be drawn again at any time.

``TorchNoise`` is the papers' RNG state manager (ZO2 section 5.1): one torch generator per seed runs through all
trainable tensors in ``named_parameters()`` order, and its state at the start of every unit is kept: restoring it
redraws that unit's share of the stream. The trajectory equals MeZO's bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

CHUNK = 1 << 17
"""Elements drawn at once on a CPU: z stays in the cache and is never stored whole."""


class TorchNoise:
    """z ~ N(0, 1) in each tensor's dtype, from ``torch.Generator(device)``.

    ``units``: per unit, in stream order, the (shape, dtype) of its trainable tensors. On a CUDA device the values
    depend on the GPU model, because the framework spreads one draw over as many threads as the device has.
    """

    def __init__(self, units: Sequence[Sequence[tuple[torch.Size, torch.dtype]]], device: str = "cpu") -> None:
        self._units = units
        self._device = torch.device(device)
        self._generator = torch.Generator(self._device if self._device.type != "meta" else "cpu")
        self._states: dict[int, dict[int, Tensor]] = {}
        self._scratch: dict[torch.dtype, Tensor] = {}

    def draw(self, seed: int, unit: int, tensors: Sequence[Tensor]) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yields (tensor index, flat offset, chunk of the tensor, chunk of z) over all of the unit's tensors.

        z is scratch: the caller may change it, and must be done with it before asking for the next. Run to the end.
        """
        generator = self._seek(seed, unit)
        for index, tensor in enumerate(tensors):
            flat = tensor.view(-1)
            for start, stop in self._spans(tensor.shape):
                yield index, start, flat[start:stop], self._normal(stop - start, tensor.dtype, generator)
        self._states[seed].setdefault(unit + 1, generator.get_state())

    def keep(self, seeds: Collection[int]) -> None:
        """Forgets the states of all other seeds."""
        self._states = {seed: states for seed, states in self._states.items() if seed in seeds}

    def _seek(self, seed: int, unit: int) -> torch.Generator:
        """The generator at the start of ``unit``: restored if known, else drawn forward from the last known unit."""
        if seed not in self._states:
            self._states[seed] = {0: self._generator.manual_seed(seed).get_state()}
        states = self._states[seed]
        known = max(u for u in states if u <= unit)
        self._generator.set_state(states[known])
        for passed in range(known, unit):
            for shape, dtype in self._units[passed]:
                for start, stop in self._spans(shape):
                    self._normal(stop - start, dtype, self._generator)
            states[passed + 1] = self._generator.get_state()
        return self._generator

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

    def _normal(self, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        if self._device.type != "cpu":
            return torch.empty(count, dtype=dtype, device=self._device).normal_(generator=generator)
        if dtype not in self._scratch or self._scratch[dtype].numel() < count:
            self._scratch[dtype] = torch.empty(count, dtype=dtype)
        return self._scratch[dtype][:count].normal_(generator=generator)
