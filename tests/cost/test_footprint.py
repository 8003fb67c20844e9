"""Predicted bytes: what each option adds or saves, and the planner that fits a cell into a given device memory."""

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rates import BLOCK, FILLERS, LINEAR, cell
from zobench import models
from zobench.cost import footprint
from zobench.cost.footprint import fit, memory
from zobench.engine.base import HEAD_BYTES
from zobench.engine.weights import tiers
from zobench.models.weights import RandomWeights, materialise
from zobench.programs import cell as measuring
from zobench.result import Outcome
from zobench.runspec.kinds import WIDTHS
from zobench.training import assemble

GB = 10**9


@pytest.mark.parametrize(("granularity", "unit"), [("block", BLOCK * 2), ("linear", LINEAR * 2), ("tile", LINEAR * 2)])
def test_slots_and_scratch_hold_one_unit_of_the_granularity(granularity: str, unit: int) -> None:
    few, more = (memory(cell(granularity=granularity, slots=slots)) for slots in (2, 5))
    assert more[0] - few[0] == 3 * unit
    assert more[1] == few[1] == 24 * BLOCK * 2
    spec = cell(granularity=granularity, slots=1)
    resident = models.resident_parameter_count("OPT-1.3B") * 2 + footprint.activations(spec)
    assert memory(spec)[0] == resident + 2 * unit


def test_slots_never_hold_more_than_what_is_streamed() -> None:
    assert memory(cell(slots=99, resident_blocks=23)) == memory(cell(slots=1, resident_blocks=23))


def test_a_resident_block_moves_from_its_tier_to_the_device() -> None:
    none, four = memory(cell()), memory(cell(resident_blocks=4))
    assert four[0] - none[0] == none[1] - four[1] == 4 * BLOCK * 2
    assert memory(cell(resident_blocks=99))[1] == 0


@pytest.mark.parametrize(("dtype", "wire", "width"), [("fp32", "fp16", 2), ("fp32", "bf16", 2), ("fp16", "fp8", 1)])
def test_a_wire_format_is_the_width_at_rest_and_in_the_slots(dtype: str, wire: str, width: int) -> None:
    plain_width = WIDTHS[dtype]
    plain, packed = memory(cell(dtype=dtype)), memory(cell(dtype=dtype, wire=wire))
    assert packed[1] == 24 * BLOCK * width + FILLERS * BLOCK * plain_width  # each filler packs from a whole block
    assert (
        plain[0] - packed[0] == 3 * BLOCK * (plain_width - width) - BLOCK * plain_width
    )  # narrower slots, one unpacked block


def test_a_checkpoint_takes_no_room_of_its_own() -> None:
    spec = cell(tier="checkpoint", weights="pretrained", writeback_every="inf")
    assert memory(spec.replace(device="cpu"))[1:] == (0, 0)
    assert memory(spec)[0] == memory(cell(writeback_every="inf"))[0]


@pytest.mark.parametrize(
    ("more", "copied"), [({"steps": 7}, False), ({"steps": 8}, True), ({"steps": 3, "parts": True}, True)]
)
def test_the_copy_is_made_when_the_prediction_says_so(tmp_path, monkeypatch, more, copied) -> None:
    """With a journal of 8 steps instead of 256, on a real checkpoint."""
    monkeypatch.setattr(footprint, "CONSOLIDATE_AFTER", 8)
    plain = assemble.engine_config
    monkeypatch.setattr(
        assemble, "engine_config", lambda *given: dataclasses.replace(plain(*given), consolidate_after=8)
    )
    made: list[int] = []

    class Watched(tiers.DiskTier):
        def __init__(self, sizes: list[int], folder: Path) -> None:
            super().__init__(sizes, folder)
            made.append(sum(sizes))

    monkeypatch.setattr(tiers, "DiskTier", Watched)
    model = models.build("opt-tiny", "fp32")
    materialise(model, RandomWeights(model, 0), "cpu")
    model.save_pretrained(tmp_path)
    spec = cell(
        "opt-tiny", "cpu", dtype="fp32", tier="checkpoint", weights="pretrained", weights_path=str(tmp_path),
        writeback_every="inf", seq_len=8, warmup=1, **more,
    )  # fmt: skip
    result = measuring.run(spec)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert bool(made) == bool(memory(spec)[2]) == copied
    assert made == [] or made == [pytest.approx(memory(spec)[2], rel=0.1)]


def test_threads_that_pack_blocks_into_a_tier_hold_them_whole() -> None:
    """On a CPU that is the peak of a large model: measured 937 and 962 MB for OPT-1.3B, with two cores."""
    spec = cell(device="cpu", dtype="fp32", wire="fp8", tier="disk", noise="torch", seq_len=64)
    outside = models.resident_parameter_count("OPT-1.3B") * 4
    assert memory(spec.replace(slots=2))[0] == outside + min(2, os.cpu_count() or 1) * BLOCK * (4 + 1)
    plain = spec.replace(wire="none")
    assert memory(plain)[0] == outside + 3 * BLOCK * 4 + footprint.activations(plain)


def test_a_cuda_device_reads_its_disk_through_host_memory() -> None:
    assert memory(cell(tier="disk"))[1] == max(2, FILLERS) * BLOCK * 2
    checkpoint = cell(tier="checkpoint", weights="pretrained", writeback_every="inf")
    assert memory(checkpoint)[1] == 1 * BLOCK * 2
    assert memory(checkpoint.replace(steps=300))[1] == 3 * BLOCK * 2
    assert memory(cell(tier="disk", resident_blocks=24))[1:] == (0, 0)


def test_of_a_large_block_two_pieces_are_in_host_memory() -> None:
    large = cell("OPT-175B", tier="checkpoint", weights="pretrained", writeback_every="inf")
    assert memory(large)[1] == footprint.STAGING_BYTES == 2 * tiers.PIECE


@pytest.mark.parametrize("engine", ["resident", "offload"])
def test_weights_that_are_not_written_back_need_room_for_a_replay(engine: str) -> None:
    once, never = (memory(cell(engine=engine, writeback_every=every)) for every in (1, "inf"))
    replayed = BLOCK * 2 if engine == "resident" else HEAD_BYTES  # what is streamed: in its slot
    assert never[0] - once[0] == replayed


def test_queries_keep_more_hidden_states_and_small_units_all_activations() -> None:
    assert memory(cell(queries=3))[0] - memory(cell())[0] == 2 * 4 * 2048 * 2048 * 2
    linear = {n: footprint.activations(cell(granularity="linear", queries=n)) for n in (1, 3)}
    assert linear[3] - linear[1] == 2 * 2 * 2048 * (4 * 2048 + 2 * 8192) * 2


def test_counter_noise_makes_the_logits_of_a_tile_of_the_vocabulary_at_a_time() -> None:
    long = {noise: footprint.activations(cell("Qwen3-8B", noise=noise, seq_len=2048)) for noise in ("torch", "counter")}
    rows = HEAD_BYTES // (4096 * 2)
    whole = 2 * 4 * 151936 * 55  # as many whole rows of logits as fit 32 MiB, and their softmax
    assert long["torch"] - long["counter"] == whole - 3 * 2048 * rows * 4


@given(st.sampled_from(["OPT-125M", "OPT-13B", "Qwen3-8B"]), st.integers(1, 200), st.sampled_from(["none", "fp8"]))
def test_a_plan_fits_what_it_was_given_and_says_so(model: str, gigabytes: int, wire: str) -> None:
    spec = cell(model, device_memory=gigabytes * GB, wire=wire)
    try:
        planned, reason = fit(spec)
    except ValueError as error:
        assert str(error).startswith("`device_memory >= ")  # noqa: PT017
        return
    assert planned.device_memory == 0
    assert memory(planned) == memory(spec)
    assert memory(planned)[0] <= gigabytes * GB
    layers = models.get(model).layers
    assert reason.startswith(f"device_memory={gigabytes}GB: {planned.granularity}s in {planned.slots} slots need ")
    assert reason.endswith(f"and {planned.resident_blocks} of {layers} blocks stay")
    fuller = planned.replace(resident_blocks=planned.resident_blocks + 1)
    assert planned.resident_blocks == layers or memory(fuller)[0] > footprint.MARGIN * gigabytes * GB


def test_less_memory_means_smaller_units_then_fewer_slots_then_an_error() -> None:
    chosen = []
    for size in (30 * GB, 10 * GB, int(3.1 * GB), int(3.05 * GB)):
        planned, _ = fit(cell("OPT-175B", weights="shared", device_memory=size))
        chosen.append((planned.granularity, planned.slots, planned.resident_blocks))
    assert chosen == [("block", 3, 2), ("linear", 3, 0), ("tile", 3, 0), ("tile", 2, 0)]
    with pytest.raises(ValueError, match=r".") as caught:
        fit(cell("OPT-175B", weights="shared", device_memory=2 * GB))
    assert str(caught.value).startswith("`device_memory >= ")
    assert str(caught.value).endswith(
        "MB` must hold for OPT-175B in 2 slots of tiles, but got device_memory=2GB; "
        "give it more memory or shorter batches (need predicted)"
    )


def test_a_task_takes_the_memory_of_its_longest_text_not_of_the_bound() -> None:
    plain = cell(task="sst2", seq_len=2048)
    assert memory(plain) == memory(plain.replace(seq_len=80))
    assert memory(plain.replace(seq_len=40))[0] < memory(plain)[0]
