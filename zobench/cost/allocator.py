"""A model of PyTorch's caching allocator on a CUDA device: which bytes a trace of allocations reserves. No torch.

Source: c10/cuda/CUDACachingAllocator.cpp. Sizes are rounded to 512 bytes; small and large requests have pools of their
own on each stream; a pool gives its smallest free piece that is large enough, split where enough is left over, and
freed neighbours are joined. Segments are never given back. Not modelled: what is freed when memory runs out.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

ROUND, SMALL, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
MIDDLE, MIDDLE_SEGMENT, LARGE_ROUND = 10 << 20, 20 << 20, 2 << 20
Pool = tuple[int, bool]
"""(stream, whether small)."""


@dataclass(eq=False, slots=True)
class Piece:
    """``size`` bytes of a segment, free or not, between its neighbours there."""

    size: int
    pool: Pool
    number: int
    free: bool = False
    before: Piece | None = None
    after: Piece | None = None


class Allocator:
    """``reserved``: bytes of all segments that it took from the device."""

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[Pool, list[tuple[int, int, Piece]]] = {}
        self._numbers = itertools.count(1)

    def allocate(self, nbytes: float, stream: int = 0) -> Piece:
        """A piece of at least ``nbytes`` for ``stream``."""
        size = max(ROUND, -(-int(nbytes) // ROUND) * ROUND)
        small = size <= SMALL
        free = self._free.setdefault((stream, small), [])
        first = bisect.bisect_left(free, (size, -1))
        piece = free.pop(first)[2] if first < len(free) else self._segment(size, (stream, small))
        piece.free = False
        rest = piece.size - size
        if rest >= ROUND if small else rest > SMALL:
            self._split(piece, rest)
        return piece

    def release(self, *pieces: Piece) -> None:
        """Gives ``pieces`` back, in this order, each joined with its free neighbours."""
        for piece in pieces:
            if piece.after is not None and piece.after.free:
                self._take(piece.after)
                _join(piece, piece.after)
            if piece.before is not None and piece.before.free:
                self._take(piece.before)
                piece = _join(piece.before, piece)
            self._put(piece)

    def _segment(self, size: int, pool: Pool) -> Piece:
        if size <= SMALL:
            taken = SMALL_SEGMENT
        else:
            taken = MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        self.reserved += taken
        return Piece(taken, pool, next(self._numbers))

    def _split(self, piece: Piece, rest: int) -> None:
        piece.size -= rest
        other = Piece(rest, piece.pool, next(self._numbers), before=piece, after=piece.after)
        if piece.after is not None:
            piece.after.before = other
        piece.after = other
        self._put(other)

    def _put(self, piece: Piece) -> None:
        piece.free = True
        bisect.insort(self._free[piece.pool], (piece.size, piece.number, piece))

    def _take(self, piece: Piece) -> None:
        free = self._free[piece.pool]
        free.pop(bisect.bisect_left(free, (piece.size, piece.number)))


def _join(piece: Piece, after: Piece) -> Piece:
    """``piece``, with ``after`` as a part of it."""
    piece.size += after.size
    piece.after = after.after
    if after.after is not None:
        after.after.before = piece
    return piece
