"""The order of uploads, computes and offloads of one step as data: ZO2's algorithm 2, without running anything.

Every dependency is written as the (kind, block) of an earlier operation and means its most recent run. So the schedule
of a step is the same list each time and steps follow each other without a gap: the last operations of one traversal
already upload the first blocks of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Key = tuple[str, int]
"""(kind, block): the name of an operation."""
Event = tuple[str, str, int, float, float]
"""(lane, kind, block, start, end) of an operation that ran, in seconds since the recording began."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of ``kind`` upload, compute, update or offload; waits for the latest of each key in ``after``."""

    kind: str
    block: int
    slot: int
    lane: str
    after: tuple[Key, ...] = ()

    @property
    def key(self) -> Key:
        """The name other operations wait for."""
        return (self.kind, self.block)


SlotBytes = tuple[int, int]
"""Where a block lies on the device: its first byte, and the one after its last."""


def places(sizes: Sequence[int], slots: int) -> tuple[SlotBytes, ...]:
    """Where blocks of ``sizes`` bytes lie in a ring of ``slots`` times the largest: one after another, and from its
    front again where the next does not fit. Of small blocks more are there at once than of large ones."""
    ring, first, placed = slots * max(sizes, default=0), 0, []
    for size in sizes:
        first = first if first + size <= ring else 0
        placed.append((first, first + size))
        first += size
    return tuple(placed)


def prologue(n_blocks: int, n_slots: int, overlap: bool = True, ring: Sequence[SlotBytes] = ()) -> tuple[Op, ...]:
    """The uploads that fill the slots before the first traversal."""
    ring = ring or places([1] * n_blocks, n_slots)
    lane, numbers, before = "upload" if overlap else "compute", numbered(ring), _before(ring)
    return tuple(Op("upload", block, numbers[block], lane) for block in range(n_blocks) if before[block] < 0)


def traversal(
    n_blocks: int, n_slots: int, overlap: bool = True, work: str = "compute", ring: Sequence[SlotBytes] = ()
) -> tuple[Op, ...]:
    """One pass over all blocks, in issue order: ``work`` on block i, its offload, then the uploads that take its place.

    ``ring``: the blocks' places, by default ``n_slots`` slots of one size, of which block i has i mod n_slots; an
    operation's ``slot`` is the number of its place. An upload comes as soon as nothing that it overwrites is to come,
    in the next traversal where this one has no more; it waits for the offload that empties its place and for the last
    write of the block it reads.
    ``overlap=False`` puts everything on one lane (ZO2 table 3, "no scheduler overlap").
    """
    ring = ring or places([1] * n_blocks, n_slots)
    upload, offload = ("upload", "offload") if overlap else ("compute", "compute")
    numbers, followers = numbered(ring), [list[int]() for _ in range(n_blocks)]
    before = _before(ring)
    for position in sorted((at if before[at] >= 0 else at + n_blocks) for at in range(n_blocks)):
        followers[before[position % n_blocks] % n_blocks].append(position % n_blocks)
    ops = []
    for block in range(n_blocks):
        ops.append(Op(work, block, numbers[block], "compute", (("upload", block),)))
        ops.append(Op("offload", block, numbers[block], offload, ((work, block),)))
        for following in followers[block]:
            after = tuple({("offload", block): 0, ("offload", following): 0})
            ops.append(Op("upload", following, numbers[following], upload, after))
    return tuple(ops)


def numbered(ring: Sequence[SlotBytes]) -> list[int]:
    """The number of each block's place, in the order of their first use."""
    numbers = {slot: number for number, slot in enumerate(dict.fromkeys(ring))}
    return [numbers[slot] for slot in ring]


def _before(ring: Sequence[SlotBytes]) -> list[int]:
    """The last block before each that uses some of its bytes, itself in the traversal before at the latest; those of
    that traversal count from -n_blocks on."""
    n_blocks, before = len(ring), []
    for block, (first, last) in enumerate(ring):
        at = block - 1
        while not (ring[at][0] < last and first < ring[at][1]):  # from the end again, below 0
            at -= 1
        before.append(at)
    assert all(block - at <= n_blocks for block, at in enumerate(before))
    return before


def step(n_blocks: int, n_slots: int, overlap: bool = True, fused_update: bool = True) -> tuple[Op, ...]:
    """One training step: the dual forward, and without ``fused_update`` a second round of transfers for the update
    (ZO2 section D.3, figure 6)."""
    probe = traversal(n_blocks, n_slots, overlap)
    return probe if fused_update else probe + traversal(n_blocks, n_slots, overlap, work="update")
