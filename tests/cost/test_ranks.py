"""Predictions for several GPUs: what ranks share, what each does for itself, and what of it is in a result."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rates import CALIBRATION, PARAMETERS, RATES, SLOW_DISK, STREAMED
from zobench.cost import Rates, estimate, passes, transfer_seconds
from zobench.cost.seconds import compute_seconds, floor_seconds, is_sliced, step_seconds
from zobench.runspec import RunSpec

GPUS = CALIBRATION | {"link_up_bytes_per_second": 2e6, "link_down_bytes_per_second": 1e6}
BYTES = STREAMED * 4
NO_FORWARDS = dataclasses.replace(
    RATES, flops=dict.fromkeys(RATES.flops, 1e99),
    operators={kind: {**operators, "attention": 1e99} for kind, operators in RATES.operators.items()},
)  # fmt: skip
"""With which nothing but noise takes time."""


def ranks(parallel: str = "none", gpus: int = 1, device: str = "cuda:0", **changes: Any) -> RunSpec:
    fields = {"engine": "offload", "batch_size": 4, "parallel": parallel, "gpus": gpus, **changes}
    if parallel in ("pertp", "2d", "2d-outer"):
        fields["exact"] = True  # as one device: without it a rank with one sign draws torch's z twice, not four times
    return RunSpec(**{"model": "OPT-1.3B", **fields}).resolve(device)


STRATEGIES = [("pertp", 2, 1, 2), ("ddp", 4, 4, 1), ("2d", 4, 2, 2), ("2d-outer", 4, 2, 2)]


@pytest.mark.parametrize(("parallel", "gpus", "shards", "signs"), STRATEGIES)
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_gpus_share_out_products_but_each_draws_all_noise(parallel, gpus, shards, signs, noise) -> None:
    alone, shared = ranks(noise=noise), ranks(parallel, gpus, noise=noise)
    drawn = compute_seconds(alone, NO_FORWARDS)
    products = compute_seconds(alone, RATES) - drawn
    assert compute_seconds(shared, RATES) == pytest.approx(products / shards / signs + drawn)
    assert passes(shared) == passes(alone) / signs


def test_the_candidates_of_cons_are_no_pair_that_could_be_shared_out() -> None:
    assert passes(ranks("pertp", 2, method="zo-sgd-cons")) == 1 + 3
    assert passes(ranks("ddp", 2, method="zo-sgd-cons")) == 2 + 3


def test_processes_share_the_cores_of_a_cpu_but_each_draws_torchs_noise_on_a_core_of_its_own() -> None:
    alone, shared = (ranks(*how, device="cpu", tier="pageable") for how in ((), ("2d", 4)))
    assert compute_seconds(shared, RATES) == pytest.approx(compute_seconds(alone, RATES))
    alone, shared = (ranks(*how, device="cpu", tier="pageable", noise="counter") for how in ((), ("2d", 4)))
    drawn = compute_seconds(alone, NO_FORWARDS)
    assert compute_seconds(shared, RATES) == pytest.approx(compute_seconds(alone, RATES) + 3 * drawn)


@pytest.mark.parametrize(("parallel", "gpus"), [("pertp", 2), ("2d", 4)])
def test_whole_transfers_bring_the_block_to_every_gpu_and_slices_of_it_back(parallel: str, gpus: int) -> None:
    rates = Rates.of(GPUS)
    assert rates.host is None
    spec = ranks(parallel, gpus, transfers="whole")
    assert transfer_seconds(spec, rates) == pytest.approx(max(BYTES / 2e6, BYTES / gpus / 1e6))
    assert step_seconds(spec, rates) == transfer_seconds(spec, rates)
    shared = dataclasses.replace(rates, host=2e6)
    assert transfer_seconds(spec, shared) == pytest.approx(BYTES * gpus / 2e6)


def test_slices_follow_equation_3_and_are_taken_where_a_way_between_gpus_is_known() -> None:
    slow, fast = Rates.of(GPUS), Rates.of(GPUS | {"between_ranks_bytes_per_second": 1e9})
    expected = BYTES * (1 / (4 * 2e6) + 3 / (4 * 1e9))
    assert transfer_seconds(ranks("2d", 4, transfers="sliced"), fast) == pytest.approx(max(expected, BYTES / 4 / 1e6))
    for rates, sliced in ((slow, False), (fast, True)):
        assert is_sliced(ranks("2d", 4), rates) == sliced
        assert not is_sliced(ranks("2d", 4, transfers="whole"), rates)
        assert is_sliced(ranks("2d", 4, transfers="sliced"), rates)
        assert not is_sliced(ranks("2d", 4, device="cpu"), rates)
    assert transfer_seconds(ranks("2d", 4), fast) < transfer_seconds(ranks("2d", 4), slow)
    assert not is_sliced(ranks("2d", 4), dataclasses.replace(fast, between=2e6))  # through the host's link, no faster
    assert not is_sliced(ranks(), fast)
    assert not is_sliced(ranks("2d", 4, nodes=2, engine="resident"), fast)


def test_ranks_of_different_nodes_do_not_share_links_nor_cores() -> None:
    rates = dataclasses.replace(Rates.of(GPUS), host=2e6)
    together, there = ranks("2d", 4, transfers="whole"), ranks("2d", 4, transfers="whole", nodes=2)
    assert transfer_seconds(together, rates) == pytest.approx(2 * transfer_seconds(there, rates))
    counter: dict[str, Any] = {"noise": "counter", "tier": "pageable", "device": "cpu"}
    assert compute_seconds(ranks("2d", 4, nodes=2, **counter), RATES) == pytest.approx(
        compute_seconds(ranks("2d", 4, **counter), RATES) / 2
    )


def test_each_rank_has_a_file_of_its_own_on_the_one_disk() -> None:
    rates = Rates.of(SLOW_DISK)
    alone, two = (ranks(*how, device="cpu", tier="disk") for how in ((), ("pertp", 2)))
    assert transfer_seconds(two, rates) == pytest.approx(2 * transfer_seconds(alone, rates))
    slow = dataclasses.replace(rates, disk_both=1e5)  # both ways at once are what bounds a step
    assert floor_seconds(two, slow) == pytest.approx(2 * floor_seconds(alone, slow))


@given(
    st.sampled_from([("none", 1), *((name, gpus) for name, gpus, _, _ in STRATEGIES)]),
    st.sampled_from(["pinned", "disk"]), st.sampled_from(["torch", "counter"]), st.sampled_from([None, 5e9]),
    st.sampled_from(["auto", "whole"]),
)  # fmt: skip
def test_no_prediction_of_several_gpus_is_below_the_floor(how, tier, noise, host, transfers) -> None:
    spec, rates = ranks(*how, tier=tier, noise=noise, transfers=transfers), dataclasses.replace(RATES, host=host)
    assert step_seconds(spec, rates) >= floor_seconds(spec, rates) > 0
    for ways in ({"between": 1e12}, {"host": None}):
        assert step_seconds(spec, dataclasses.replace(rates, **ways)) <= step_seconds(spec, rates) * 1.001  # type: ignore[arg-type]


def test_a_synchronous_checkpoint_adds_its_write_every_time_and_any_other_the_last_ones() -> None:
    whole = PARAMETERS * 4 / 8e9
    plain = ranks(steps=9, warmup=1)
    for kind, count in (("sync", 3), ("async", 1), ("journal", 1)):
        saved = plain.replace(checkpoint=kind, checkpoint_every=3)
        added = estimate(saved, RATES).seconds - estimate(plain, RATES).seconds
        assert added == pytest.approx(count * whole), kind
    late = plain.replace(checkpoint="journal", checkpoint_every=100)
    assert estimate(late, RATES).seconds == estimate(plain, RATES).seconds
