"""The wire of a checkpoint that is quantised already: its own bytes rest and travel, and are decoded beside compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zobench.engine.blocks import PAGE, Field, Unit
from zobench.engine.tiers import Extent
from zobench.engine.wire import aligned
from zobench.models.stored import Stored
from zobench.models.weights import Weights


class StoredWire:
    """A :class:`~zobench.engine.wire.Wire` that decodes units whose tensors rest as files have them; they are never
    written (writeback_every=inf)."""

    read_only = True

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._layouts: dict[int, tuple[list[tuple[Field, Stored, list[int]]], int]] = {}

    def prepare(self, device: str, dtype: torch.dtype) -> None:
        """Nothing: torch's own operations do it."""

    def nbytes(self, unit: Unit) -> int:
        return self._layout(unit)[1]

    def extents(self, unit: Unit) -> list[Extent]:
        """Where the unit's bytes are in the files, and in a slot."""
        return [
            Extent(piece.file, piece.offset, piece.nbytes, target)
            for _, stored, targets in self._layout(unit)[0]
            for piece, target in zip(stored.pieces, targets, strict=True)
        ]

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        for item, stored, targets in self._layout(unit)[0]:
            pieces = zip(stored.pieces, targets, strict=True)
            stored.write([slot[target : target + piece.nbytes] for piece, target in pieces], item.view(master))

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        """Never asked for: what rests is only read."""
        raise AssertionError(f"{unit.name} rests in a checkpoint, which is only read")

    def _layout(self, unit: Unit) -> tuple[Sequence[tuple[Field, Stored, list[int]]], int]:
        if id(unit) not in self._layouts:
            placed, offset = [], 0
            for item in unit.fields:
                stored = self._stored(item)
                targets = []
                for piece in stored.pieces:
                    targets.append(offset)
                    offset += aligned(piece.nbytes)
                placed.append((item, stored, targets))
            self._layouts[id(unit)] = placed, -(-offset // PAGE) * PAGE
        return self._layouts[id(unit)]

    def _stored(self, item: Field) -> Stored:
        if not item.is_parameter:
            raise ValueError(f"`tier=checkpoint` needs blocks without buffers, but {item.name} is one; use tier=disk")
        stored = self._weights.stored(item.name)
        assert stored is not None, f"{item.name} is in no file"
        if item.is_part:
            raise ValueError(
                f"`tier=checkpoint` of quantised weights needs whole tensors, but {item.name} is cut into tiles; use "
                "granularity=block or linear"
            )
        return stored
