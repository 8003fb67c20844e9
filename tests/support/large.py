"""What a disk moves and a step takes where a model rests on it (tests/benchmarks/large.py)."""

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch

from zobench import ZOSGD, Batch, Engine, EngineConfig, kernels, models
from zobench.engine.directions.factors import LowRank
from zobench.engine.weights.tiers import DiskTier
from zobench.methods.low_rank import LOZO
from zobench.models.weights import RandomWeights
from zobench.training.assemble import disk_dir


class Counted:
    """Bytes that pass a disk tier, each way, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.written = 0
        upload, offload = DiskTier.upload, DiskTier.offload

        def read(tier: DiskTier, block: int, slot: torch.Tensor, *span: int) -> None:
            self.read += slot.numel()
            upload(tier, block, slot, *span)

        def written(tier: DiskTier, block: int, slot: torch.Tensor, *span: int) -> None:
            self.written += slot.numel()
            offload(tier, block, slot, *span)

        monkeypatch.setattr(DiskTier, "upload", read)
        monkeypatch.setattr(DiskTier, "offload", written)


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@contextmanager
def built(name: str, wire: str, directions: LowRank | None):
    """An engine over random weights, which are written block by block."""
    config = EngineConfig(
        tier="disk", noise="counter", writeback_every="inf" if wire != "none" else 1, wire=wire, disk_dir=disk_dir()
    )
    model = models.build(name, "fp32")
    with Engine(model, config, weights=RandomWeights(model, 0), directions=directions) as engine:
        yield engine


def measure(name: str, tokens: int, steps: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Numbers of ``steps`` steps: bytes and the last loss; then, of as many rounds, medians of the seconds of the
    transfers, of a step's compute and of a step, and of a step over the larger of the two."""
    kernels.prepare("cpu")
    wire, directions = ("int4", None) if kind == "integer" else ("none", LowRank(2))
    method = ZOSGD(lr=1e-7) if kind == "integer" else LOZO(lr=1e-7, interval=4 * steps)
    ids = torch.randint(5, min(1000, models.get(name).vocab), (1, tokens), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, ids)
    filling = time.perf_counter()
    with built(name, wire, directions) as engine:
        filled = time.perf_counter() - filling
        losses = [method.step(engine, batch).loss]
        engine.drain()
        counted = Counted(monkeypatch)
        timed = [seconds(lambda: losses.append(method.step(engine, batch).loss)) for _ in range(steps)]
        engine.drain()
        told = {"read": counted.read / steps, "written": float(counted.written), "at rest": engine.bytes_at_rest}
        told["loss"] = losses[-1]
        assert len(set(losses)) == len(losses), "every step is another one"
        rounds = [_round(engine, lambda: method.step(engine, batch)) for _ in range(steps)]
        assert not counted.written, "nothing is written between two subspaces, or into a read-only base"
    fp32 = 4 * models.blocks_parameter_count(models.get(name))
    moved, computed, whole = (statistics.median(part) for part in zip(*rounds, strict=True))
    ratio = statistics.median(step / max(parts) for *parts, step in rounds)
    return {
        **told, "fp32": fp32, "filled": filled, "first": statistics.median(timed), "transfers": moved,
        "compute": computed, "step": whole, "ratio": ratio,
    }  # fmt: skip


def _round(engine: Engine, step: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of the transfers alone, of a step's compute alone, and of the next step, which replays one entry more:
    one after the other, because a disk is not as fast at one time as at another."""
    moved = seconds(engine.transfer_only)
    with engine.compute_only():
        computed = seconds(step)
    return moved, computed, seconds(step)
