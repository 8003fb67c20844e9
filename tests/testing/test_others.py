"""The conformance suites of tiers, lanes and programs on those of zobench's."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import zobench
from tests.support.suites import OfHostTier, OfThreadLanes
from zobench.engine.weights.tiers import CheckpointTier, DiskTier, Extent, Tier, allocate
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.testing import ProgramConformance, TierConformance
from zobench.testing.tier import SIZES


class TestHostTier(OfHostTier):
    pass


class TestDiskTier(TierConformance):
    def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
        return self.filled(DiskTier(SIZES, folder), blocks)


class TestCheckpointTier(TierConformance):
    """Each block in two tensors of a file, at an odd place."""

    def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
        extents, data = [], b"x" * 77
        for block in blocks:
            half = block.numel() // 2 + 1
            suites = []
            for part, target in ((block[:half], 0), (block[half:], half)):
                suites.append(Extent(folder / "model.safetensors", len(data), part.numel(), target))
                data += part.numpy().tobytes() + b"y" * 5
            extents.append(suites)
        (folder / "model.safetensors").write_bytes(data)
        return CheckpointTier(SIZES, extents, folder)

    def test_the_checkpoint_is_never_written(self, tmp_path: Path) -> None:
        tier = self.make([torch.full((size,), 7, dtype=torch.uint8) for size in SIZES], tmp_path)
        before = (tmp_path / "model.safetensors").read_bytes()
        for number, size in enumerate(SIZES):
            tier.offload(number, allocate(size))
        tier.close()
        assert (tmp_path / "model.safetensors").read_bytes() == before


class TestThreadLanes(OfThreadLanes):
    pass


class TestZobench(ProgramConformance):
    def run(self, spec: RunSpec) -> Result:
        return zobench.run(spec)

    def impossible_specs(self) -> list[RunSpec]:
        return []
