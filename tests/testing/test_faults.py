"""Faults planted in engines, tiers, lanes and methods: the suites find each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.suites import OfEngine, OfHostTier, OfThreadLanes
from zobench.data.batch import Batch
from zobench.engine import Engine, EngineConfig, Entry, Point
from zobench.engine.interface import Start, TunedEngine
from zobench.engine.transfers.lanes import ThreadLanes
from zobench.engine.transfers.schedule import Op
from zobench.engine.weights.tiers import HostTier, Tier
from zobench.methods import ZOSGD
from zobench.models.weights import Weights
from zobench.testing import MethodConformance, failures
from zobench.testing.tier import SIZES


class SwapsSigns(Engine):
    """Looks at -eps where it is asked for +eps."""

    def probe(self, batch: Batch, points: Sequence[Point], counted: Sequence[int] | None = None) -> list[float]:
        return super().probe(batch, [replace(point, scale=-point.scale) for point in points], counted)


class ForgetsDecay(Engine):
    """Updates have no weight decay."""

    def commit(self, entries: Sequence[Entry]) -> None:
        super().commit([replace(entry, weight_decay=0.0) for entry in entries])


class Drifts(Engine):
    """A probe leaves a block's weights a little off."""

    @torch.inference_mode()
    def probe(self, batch: Batch, points: Sequence[Point], counted: Sequence[int] | None = None) -> list[float]:
        losses = super().probe(batch, points, counted)
        unit = self.residents[-1]
        assert unit.buffer is not None
        unit.trainable[0].view(unit.buffer).mul_(1.0 + 1e-5)
        return losses


class MovesEveryPart(Engine):
    """A point or an update of one part moves the whole model."""

    def probe(self, batch: Batch, points: Sequence[Point], counted: Sequence[int] | None = None) -> list[float]:
        return super().probe(batch, [replace(point, part=None) for point in points], counted)


class SavesEarly(Engine):
    """Tensors lack what is still pending, as in a published program."""

    @torch.inference_mode()
    def current(self, unit: Any) -> Tensor:
        return self.store.weights(unit)


class Stale(HostTier):
    """The second block gives what it was filled with, for ever."""

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        if block != 1:
            super().offload(block, slot, first)


class Torn(HostTier):
    """A written front takes the rest of its block with it."""

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        super().offload(block, torch.cat([slot, slot.new_zeros(SIZES[block] - slot.numel())]), first)


class Hasty(ThreadLanes):
    """A computation starts before its upload ended."""

    def submit(self, op: Op, action: Callable[[], None], after: Sequence[Any]) -> Any:
        return super().submit(op, action, () if op.lane == "compute" else after)


class Silent(ThreadLanes):
    """What fails on a transfer's lane is told to nobody."""

    def submit(self, op: Op, action: Callable[[], None], after: Sequence[Any]) -> Any:
        def quiet() -> None:
            try:
                action()
            except OSError:
                if op.lane == "compute":
                    raise

        return super().submit(op, quiet, after)


class Forgetful(ZOSGD):
    """Begins its seeds anew after a break."""

    def restore(self, state: Mapping[str, Any]) -> None:
        seeds = super().state()["seeds"]
        super().restore({**state, "seeds": seeds})


class Bold(ZOSGD):
    """Takes what is not finite for zero, and says that all was well."""

    def _probe(self, engine: Any, batch: Batch, directions: Any) -> Any:
        loss, gradients = super()._probe(engine, batch, directions)
        return loss, tuple(g if g == g else 0.0 for g in gradients)


class Moody(ZOSGD):
    """Draws its seeds from the process's own generator."""

    def _draw(self, count: int) -> list[int]:
        return [int(seed) for seed in torch.randint(10**9, (count,))]


def suite(faulty: type) -> type:
    """The suite of what is faulty, run on it."""
    if issubclass(faulty, Engine):

        class OfFaultyEngine(OfEngine):
            streams = False

            def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
                return faulty(model, EngineConfig(placement="resident", noise="counter"), weights=weights, start=start)

        return OfFaultyEngine
    if issubclass(faulty, HostTier):

        class OfFaultyTier(OfHostTier):
            def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
                return self.filled(faulty(SIZES, pinned=False), blocks)

        return OfFaultyTier
    lanes = issubclass(faulty, ThreadLanes)
    settings = {} if lanes else {"lr": 1e-3, "eps": 1e-2, "seed": 5}
    base = OfThreadLanes if lanes else MethodConformance
    return type("OfFaulty", (base,), {"make" if lanes else "method": lambda self: faulty(**settings)})


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (SwapsSigns, "test_losses_at_points_are_those_of_weights_moved_by_hand"),
        (ForgetsDecay, "test_weight_decay_shrinks_what_it_should_and_spares_biases_and_norms"),
        (Drifts, "test_a_probe_leaves_the_weights_where_they_were"),
        (MovesEveryPart, "test_a_part_of_the_points_moves_that_part_alone"),
        (SavesEarly, "test_updates_are_in_every_weight_that_is_read"),
        (Stale, "test_what_was_offloaded_last_is_what_comes_back"),
        (Torn, "test_an_offloaded_front_leaves_the_rest_of_its_block"),
        (Hasty, "test_a_computation_waits_for_its_upload_and_an_offload_for_its_computation"),
        (Silent, "test_an_error_in_a_transfer_is_raised_by_who_waits_and_by_a_drain"),
        (Forgetful, "test_a_run_that_goes_on_is_one_without_a_break_bit_for_bit"),
        (Bold, "test_a_step_whose_numbers_are_not_finite_is_skipped_and_counted"),
        (Moody, "test_the_same_seed_takes_the_same_steps"),
    ],
)
def test_a_planted_fault_is_found(faulty: type, check: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(faulty)(), check)()


def test_failures_of_a_suite_are_told_by_name() -> None:
    failed = failures(suite(Silent))
    assert isinstance(failed["test_an_error_in_a_transfer_is_raised_by_who_waits_and_by_a_drain"], AssertionError)
