"""The tests of every tier: blocks of whole pages go in and come out as they were last written."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from zobench.engine.weights.blocks import PAGE
from zobench.engine.weights.tiers import Tier, allocate

SIZES = [PAGE * pages for pages in (3, 1, 7, 2)]
"""Bytes of the blocks: different, and no powers of two among them."""


def contents(seed: int, size: int) -> Tensor:
    """Random bytes, page-aligned."""
    out = allocate(size)
    return out.copy_(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)))


class TierConformance:
    """Any tier (:class:`~zobench.engine.weights.tiers.Tier`) on the CPU. Give :meth:`make`."""

    def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
        """A tier that holds these blocks, uint8; :meth:`filled` calls its ``fill``. ``folder`` is for its files."""
        raise NotImplementedError

    def filled(self, tier: Tier, blocks: Sequence[Tensor]) -> Tier:
        """The tier, filled by ``fill``, the last block first."""
        for number in reversed(range(len(blocks))):
            block = blocks[number]

            def write(buffer: Tensor, block: Tensor = block) -> None:
                assert (buffer.dtype, buffer.device.type, buffer.numel()) == (torch.uint8, "cpu", block.numel())
                assert buffer.data_ptr() % PAGE == 0, "a buffer must be page-aligned"
                buffer.copy_(block)

            tier.fill(number, write)
        return tier

    @contextmanager
    def tier(self) -> Iterator[tuple[Tier, list[Tensor]]]:
        """A filled tier, closed at the end, and what is in it."""
        blocks = [contents(seed, size) for seed, size in enumerate(SIZES)]
        with tempfile.TemporaryDirectory() as folder:
            tier = self.make([block.clone() for block in blocks], Path(folder))
            try:
                yield tier, blocks
            finally:
                tier.close()

    def test_what_was_filled_is_uploaded_and_read_whole(self) -> None:
        with self.tier() as (tier, blocks):
            for _ in range(2):
                for number, block in enumerate(blocks):
                    for move in (tier.upload, tier.read):
                        slot = allocate(block.numel())
                        move(number, slot)
                        assert torch.equal(slot, block), f"block {number}"

    def test_what_was_offloaded_last_is_what_comes_back(self) -> None:
        with self.tier() as (tier, blocks):
            for turn in range(3):
                for number in (2, 0, 3, 1):
                    blocks[number] = contents(100 * turn + number, SIZES[number])
                    tier.offload(number, _slot(blocks[number]))
                    self._assert_holds(tier, blocks)

    def test_an_offloaded_front_leaves_the_rest_of_its_block(self) -> None:
        with self.tier() as (tier, blocks):
            for number in (0, 2):
                tier.offload(number, _slot(blocks[number]))  # some tiers keep a changed block elsewhere
                front = contents(7 + number, PAGE)
                tier.offload(number, _slot(front))
                blocks[number][:PAGE] = front
                self._assert_holds(tier, blocks)

    def test_a_slot_that_changes_after_its_offload_changes_nothing_at_rest(self) -> None:
        with self.tier() as (tier, blocks):
            slot = contents(5, SIZES[1])
            blocks[1] = slot.clone()
            tier.offload(1, slot)
            slot.zero_()
            self._assert_holds(tier, blocks)

    def test_a_written_block_can_be_looked_at_from_any_page_on(self) -> None:
        with self.tier() as (tier, blocks):
            for number, size in enumerate(SIZES):
                blocks[number] = contents(50 + number, size)
                tier.offload(number, _slot(blocks[number]))
                for first in range(0, size, PAGE):
                    out = allocate(min(2 * PAGE, size - first))
                    tier.peek(number, out, first)
                    assert torch.equal(out, blocks[number][first : first + out.numel()]), f"block {number} at {first}"

    def test_uploads_and_offloads_of_different_blocks_run_beside_each_other(self) -> None:
        with self.tier() as (tier, blocks):
            wrong: list[str] = []

            def read_again() -> None:
                slot = allocate(SIZES[2])
                for _ in range(50):
                    tier.upload(2, slot)
                    if not torch.equal(slot, blocks[2]):
                        wrong.append("block 2 was torn by another one's offload")

            reader = threading.Thread(target=read_again)
            reader.start()
            try:
                for turn in range(50):
                    blocks[3] = contents(turn, SIZES[3])
                    tier.offload(3, _slot(blocks[3]))
            finally:
                reader.join()
            assert not wrong, wrong[0]
            self._assert_holds(tier, blocks)

    def test_a_closed_tier_holds_nothing(self) -> None:
        with self.tier() as (tier, blocks):
            pass
        slot = allocate(SIZES[0])
        try:
            tier.upload(0, slot)
        except Exception:
            return
        assert not torch.equal(slot, blocks[0]), "what is closed must give its memory or file back"

    def test_its_note_is_one_line(self) -> None:
        with self.tier() as (tier, _):
            assert "\n" not in tier.note

    def _assert_holds(self, tier: Tier, blocks: Sequence[Tensor]) -> None:
        for number, block in enumerate(blocks):
            slot = allocate(block.numel())
            tier.upload(number, slot)
            assert torch.equal(slot, block), f"block {number} is not what was written last"


def _slot(block: Tensor) -> Tensor:
    """A slot on the device that holds these bytes: page-aligned, as an engine's are."""
    return allocate(block.numel()).copy_(block)
