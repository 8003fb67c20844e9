"""Where each unit's weights are between two turns: on the device for good, or in a tier, read through a pipeline.

Nothing here knows of points or updates: a unit is read as it was last written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from zobench.engine.transfers.lanes import Event
from zobench.engine.transfers.pipeline import Pipeline
from zobench.engine.weights.blocks import Unit
from zobench.engine.weights.tiers import allocate
from zobench.engine.weights.wire import Wire


class WeightStore:
    """A model's weights at rest. ``blocks``: the streamed units, in call order; ``residents``: all others; ``units``:
    both. ``pipeline`` moves the streamed units, None where there are none; they lie in their tier in the format of
    ``wire``, ``nbytes`` in all."""

    def __init__(
        self, blocks: Sequence[Unit], residents: Sequence[Unit], device: str, pipeline: Pipeline | None,
        wire: Wire | None, nbytes: int,
    ) -> None:  # fmt: skip
        self.blocks, self.residents, self.units = blocks, residents, [*blocks, *residents]
        self.pipeline, self.nbytes, self._device, self._wire = pipeline, nbytes, device, wire
        self.note = "" if pipeline is None else pipeline.tier.note
        """What a reader of a measurement should know about the tier, or ""."""
        self._number = {id(unit): number for number, unit in enumerate(blocks)}

    @property
    def streamed(self) -> Pipeline:
        """What moves the streamed units, where there are any."""
        assert self.pipeline is not None, "a resident model has no transfers"
        return self.pipeline

    def number(self, unit: Unit) -> int:
        """A streamed unit's place in the pipeline and in its tier."""
        return self._number[id(unit)]

    def kept_bytes(self, unit: Unit) -> int:
        """Bytes at the front of the unit's weights that steps change."""
        return self.streamed.written[self.number(unit)] if unit.streamed else unit.kept

    def rest_bytes(self, unit: Unit) -> int:
        """Bytes of the unit's weights, those that pad it for several ranks included."""
        return self.streamed.sizes[self.number(unit)] if unit.streamed else unit.nbytes

    def run(self, unit: Unit, turn: Callable[[], None], work: str = "compute") -> None:
        """Runs a unit's turn while its weights are on the device; those of the streamed ones in their order."""
        if unit.streamed:
            self.streamed.compute(self.number(unit), turn, work)
        else:
            turn()

    def weights(self, unit: Unit) -> Tensor:
        """A unit's weights on the device in the model's dtype, between two passes: its own buffer or a copy."""
        if unit.buffer is not None:
            assert isinstance(unit.buffer, Tensor), "between two passes only resident units have memory"
            return unit.buffer
        at_rest = allocate(self.rest_bytes(unit), self._device)
        self.streamed.read(self.number(unit), at_rest)
        if self._wire is None:
            return at_rest
        master = allocate(unit.nbytes, self._device)
        self._wire.decode(unit, at_rest, master)
        return master

    def read(self, unit: Unit, out: Tensor, first: int = 0) -> None:
        """Copies bytes of a unit, from byte ``first`` on, into ``out`` (uint8, on the CPU, page-aligned)."""
        if not unit.streamed:
            assert unit.buffer is not None
            out.copy_(unit.buffer[first : first + out.numel()])
        else:
            self.streamed.peek(self.number(unit), out, first)

    def drain(self) -> None:
        """Returns when all transfers are done."""
        if self.pipeline is not None:
            self.pipeline.drain()

    def transfer_only(self, written: bool) -> None:
        """One traversal's transfers without any compute; with ``written`` the trained units are written back."""
        for unit in self.blocks:
            self.run(unit, functools.partial(setattr, unit, "dirty", written and unit.trained > 0))
        self.streamed.drain()

    def compute_only(self) -> AbstractContextManager[None]:
        """Inside, steps run without any transfer, on whatever the slots hold: only their duration means something.
        Updates committed inside are lost, so close the engine afterwards."""
        return self.streamed.without_transfers()

    def record(self) -> None:
        """Starts an empty timeline of the lanes."""
        if self.pipeline is not None:
            self.pipeline.lanes.record()

    def timeline(self) -> list[Event]:
        """What the lanes did since :meth:`record`; a resident model has none."""
        return [] if self.pipeline is None else self.pipeline.lanes.timeline()

    def close(self) -> None:
        """Ends the lanes and gives slots and tier back."""
        if self.pipeline is not None:
            self.pipeline.close()
