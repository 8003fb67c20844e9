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
from zobench.engine.transfers.lanes import Lanes, ThreadLanes
from zobench.engine.transfers.schedule import Op
from zobench.engine.weights.tiers import HostTier, Tier
from zobench.methods import ZOSGD, Method
from zobench.models.weights import Weights
from zobench.testing import MethodConformance, failures
from zobench.testing.tier import SIZES


class SwapsSigns(Engine):
    """Looks at -eps where it is asked for +eps."""

    def probe(self, batch: Batch, points: Sequence[Point], looked: Sequence[int] | None = None) -> list[float]:
        return super().probe(batch, [replace(point, scale=-point.scale) for point in points], looked)


class ForgetsDecay(Engine):
    """Updates have no weight decay."""

    def commit(self, entries: Sequence[Entry]) -> None:
        super().commit([replace(entry, weight_decay=0.0) for entry in entries])


class Drifts(Engine):
    """A probe leaves a block's weights a little off."""

    @torch.inference_mode()
    def probe(self, batch: Batch, points: Sequence[Point], looked: Sequence[int] | None = None) -> list[float]:
        losses = super().probe(batch, points, looked)
        unit = self.residents[-1]
        assert unit.buffer is not None
        unit.trainable[0].view(unit.buffer).mul_(1.0 + 1e-5)
        return losses


class MovesEveryPart(Engine):
    """A point or an update of one part moves the whole model."""

    def probe(self, batch: Batch, points: Sequence[Point], looked: Sequence[int] | None = None) -> list[float]:
        return super().probe(batch, [replace(point, part=None) for point in points], looked)


class SavesEarly(Engine):
    """Tensors lack what is still pending, as in a published program."""

    @torch.inference_mode()
    def current(self, unit: Any) -> Tensor:
        return self.store.weights(unit)


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (SwapsSigns, "test_losses_at_points_are_those_of_weights_moved_by_hand"),
        (ForgetsDecay, "test_weight_decay_shrinks_what_it_should_and_spares_biases_and_norms"),
        (Drifts, "test_a_probe_leaves_the_weights_where_they_were"),
        (MovesEveryPart, "test_a_part_of_the_points_moves_that_part_alone"),
        (SavesEarly, "test_updates_are_in_every_weight_that_is_read"),
    ],
)
def test_a_fault_in_an_engine_is_found(faulty: type[Engine], check: str) -> None:
    class Suite(OfEngine):
        streams = False

        def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
            config = EngineConfig(placement="resident", noise="counter")
            return faulty(model, config, weights=weights, start=start)

    with pytest.raises(AssertionError):
        getattr(Suite(), check)()


class Stale(HostTier):
    """The second block gives what it was filled with, for ever."""

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        if block != 1:
            super().offload(block, slot, first)


class Torn(HostTier):
    """A written front takes the rest of its block with it."""

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        super().offload(block, torch.cat([slot, slot.new_zeros(SIZES[block] - slot.numel())]), first)


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (Stale, "test_what_was_offloaded_last_is_what_comes_back"),
        (Torn, "test_an_offloaded_front_leaves_the_rest_of_its_block"),
    ],
)
def test_a_fault_in_a_tier_is_found(faulty: type[HostTier], check: str) -> None:
    class Suite(OfHostTier):
        def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
            return self.filled(faulty(SIZES, pinned=False), blocks)

    _assert_finds(Suite, check)


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


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (Hasty, "test_a_computation_waits_for_its_upload_and_an_offload_for_its_computation"),
        (Silent, "test_an_error_in_a_transfer_is_raised_by_who_waits_and_by_a_drain"),
    ],
)
def test_a_fault_in_lanes_is_found(faulty: type[ThreadLanes], check: str) -> None:
    class Suite(OfThreadLanes):
        def make(self) -> Lanes:
            return faulty()

    _assert_finds(Suite, check)


class Forgetful(ZOSGD):
    """Begins its seeds anew after a break."""

    def restore(self, state: Mapping[str, Any]) -> None:
        own = super().state()["seeds"]
        super().restore({**state, "seeds": own})


class Bold(ZOSGD):
    """Takes what is not finite for zero, and says that all was well."""

    def _probe(self, engine: Any, batch: Batch, directions: Any) -> Any:
        loss, gradients = super()._probe(engine, batch, directions)
        return loss, tuple(g if g == g else 0.0 for g in gradients)


class Moody(ZOSGD):
    """Draws its seeds from the process's own generator."""

    def _draw(self, count: int) -> list[int]:
        return [int(seed) for seed in torch.randint(10**9, (count,))]


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (Forgetful, "test_a_run_that_goes_on_is_one_without_a_break_bit_for_bit"),
        (Bold, "test_a_step_whose_numbers_are_not_finite_is_skipped_and_counted"),
        (Moody, "test_the_same_seed_takes_the_same_steps"),
    ],
)
def test_a_fault_in_a_method_is_found(faulty: type[ZOSGD], check: str) -> None:
    class Suite(MethodConformance):
        def method(self) -> Method:
            return faulty(lr=1e-3, eps=1e-2, seed=5)

    _assert_finds(Suite, check)


def _assert_finds(suite: type, check: str) -> None:
    """The check that is made for the fault fails, by its own assertion or a refusal that did not come."""
    found = failures(suite)
    assert check in found, f"only these fail: {sorted(found)}"
    assert isinstance(found[check], AssertionError), found[check]
