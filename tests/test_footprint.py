"""Predicted bytes: what each option adds or saves, and the planner that fits a cell into a given device memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench import footprint, models
from zobench.footprint import fit, memory
from zobench.spec import RunSpec

GB = 10**9
BLOCK = models.block_parameter_count("OPT-1.3B")
LINEAR = 2048 * 8192


def cell(model: str = "OPT-1.3B", device: str = "cuda:0", **changes: Any) -> RunSpec:
    return RunSpec(**{"model": model, "engine": "offload", "noise": "counter", "dtype": "fp16", **changes}).resolve(
        device
    )


@pytest.mark.parametrize(("granularity", "unit"), [("block", BLOCK * 2), ("linear", LINEAR * 2), ("tile", LINEAR * 2)])
def test_slots_and_scratch_hold_one_unit_of_the_granularity(granularity: str, unit: int) -> None:
    few, more = (memory(cell(granularity=granularity, slots=slots)) for slots in (2, 5))
    assert more[0] - few[0] == 3 * unit
    assert more[1] == few[1] == 24 * BLOCK * 2
    spec = cell(granularity=granularity, slots=1)
    resident = models.resident_parameter_count("OPT-1.3B") * 2 + footprint.activations(spec)
    assert memory(spec)[0] == resident + 2 * unit


def test_a_tile_is_no_larger_than_its_size() -> None:
    shared: dict[str, Any] = {"model": "OPT-175B", "weights": "shared"}
    tile, linear = (memory(cell(granularity=name, **shared))[0] for name in ("tile", "linear"))
    assert linear - tile == 4 * (12288 * 4 * 12288 * 2 - footprint.TILE_BYTES)


def test_slots_never_hold_more_than_what_is_streamed() -> None:
    assert memory(cell(slots=99, resident_blocks=23)) == memory(cell(slots=1, resident_blocks=23))


def test_a_resident_block_moves_from_its_tier_to_the_device() -> None:
    none, four = memory(cell()), memory(cell(resident_blocks=4))
    assert four[0] - none[0] == none[1] - four[1] == 4 * BLOCK * 2
    assert memory(cell(resident_blocks=99))[1] == 0


@pytest.mark.parametrize(("dtype", "wire", "width"), [("fp32", "fp16", 2), ("fp32", "bf16", 2), ("fp16", "fp8", 1)])
def test_a_wire_format_is_the_width_at_rest_and_in_the_slots(dtype: str, wire: str, width: int) -> None:
    own = footprint.BYTES[dtype]
    plain, packed = memory(cell(dtype=dtype)), memory(cell(dtype=dtype, wire=wire))
    assert packed[1] == 24 * BLOCK * width
    assert plain[0] - packed[0] == 3 * BLOCK * (own - width) - BLOCK * own  # narrower slots, and one unpacked block


def test_a_checkpoint_takes_no_room_of_its_own() -> None:
    spec = cell(tier="checkpoint", weights="pretrained", writeback_every="inf")
    assert memory(spec)[1:] == (0, 0)
    assert memory(spec)[0] == memory(cell(writeback_every="inf"))[0]


@pytest.mark.parametrize("engine", ["resident", "offload"])
def test_weights_that_are_not_written_back_need_room_for_a_replay(engine: str) -> None:
    once, never = (memory(cell(engine=engine, writeback_every=every)) for every in (1, "inf"))
    replayed = BLOCK * 2 if engine == "resident" else footprint.HEAD_TILE_BYTES  # what is streamed: in its slot
    assert never[0] - once[0] == replayed


def test_queries_keep_more_hidden_states_and_small_units_all_activations() -> None:
    assert memory(cell(queries=3))[0] - memory(cell())[0] == 2 * 4 * 2048 * 2048 * 2
    linear = {n: footprint.activations(cell(granularity="linear", queries=n)) for n in (1, 3)}
    assert linear[3] - linear[1] == 2 * 2 * 2048 * (4 * 2048 + 2 * 8192) * 2


def test_counter_noise_makes_the_logits_of_a_tile_of_the_vocabulary_at_a_time() -> None:
    long = {noise: footprint.activations(cell("Qwen3-8B", noise=noise, seq_len=2048)) for noise in ("torch", "counter")}
    rows = footprint.HEAD_TILE_BYTES // (4096 * 2)
    assert long["torch"] - long["counter"] == 3 * ((32 << 20) - 2048 * rows * 4)


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


def test_a_cell_without_a_limit_is_left_alone() -> None:
    assert fit(cell(slots=7)) == (cell(slots=7), "")
