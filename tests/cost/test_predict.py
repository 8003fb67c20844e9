"""Predictions: positive, growing with what they depend on, and corrected only by runs that say something about them."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.support.rates import CALIBRATION, FORWARD, PARAMETERS, RATES, SLOW_DISK, STREAMED, counter, measured, offload
from tests.support.task_data import trained
from zobench import models
from zobench.cost import Rates, budget, estimate, footprint, local, passes, sizes
from zobench.cost.footprint import memory
from zobench.cost.metrics import MOVED
from zobench.cost.seconds import attention_operations, floor_seconds, floor_share, link_rate, operations, step_seconds
from zobench.data.tasks.encode import Encoder
from zobench.data.tasks.prompts import PUBLISHED
from zobench.data.tasks.task import Example
from zobench.models.weights import RandomWeights, materialise
from zobench.result import Facts, Outcome, Result
from zobench.runspec import METHODS, RunSpec

cells = st.builds(
    RunSpec,
    noise=st.sampled_from(["torch", "counter"]),
    queries=st.integers(1, 4),
    model=st.sampled_from(sorted(models.MODELS.names())),
    engine=st.sampled_from(["resident", "offload"]),
    tier=st.sampled_from(["pageable", "disk"]),
    dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
    batch_size=st.integers(1, 64),
    seq_len=st.integers(2, 2048),
    slots=st.integers(1, 8),
    data=st.sampled_from(["random", "ragged"]),
    **dict.fromkeys(("overlap", "fused_update", "reusable_memory"), st.booleans()),
).map(lambda spec: spec.resolve("cpu"))


def test_the_disk_is_never_faster_than_the_way_to_it() -> None:
    rates = Rates.of(CALIBRATION | {"disk_read_bytes_per_second": 1e9, "disk_write_bytes_per_second": 9e9})
    assert (rates.bytes_up["disk"], rates.bytes_down["disk"]) == (1e9, 8e9)
    rates = Rates.of(CALIBRATION | {"link_up_bytes_per_second": 5e10, "link_down_bytes_per_second": 4e10})
    assert (rates.bytes_up["pinned"], rates.bytes_down["pinned"]) == (5e10, 4e10)


@given(cells)
def test_every_prediction_is_positive(spec: RunSpec) -> None:
    guess = estimate(spec, RATES)
    assert guess.device_bytes > 0
    assert guess.host_bytes >= 0
    assert guess.disk_bytes >= 0
    assert (guess.host_bytes + guess.disk_bytes > 0) == (spec.engine == "offload")
    assert guess.seconds > (spec.steps + spec.warmup) * guess.step_seconds > 0
    assert guess.source == "calibration"


@given(cells, st.sampled_from(["batch_size", "seq_len", "slots"]), st.integers(1, 3))
def test_more_of_anything_never_needs_less(spec: RunSpec, name: str, more: int) -> None:
    larger = spec.replace(**{name: getattr(spec, name) + more})
    assert all(a >= b for a, b in zip(memory(larger), memory(spec), strict=True))
    assert step_seconds(larger, RATES) >= step_seconds(spec, RATES)
    if name != "slots":  # the peak need not grow: filling a disk can be it
        assert footprint.activations(larger) > footprint.activations(spec)


def test_shared_host_blocks_need_only_as_many_as_there_are() -> None:
    shared = RunSpec(model="OPT-175B", dtype="fp16", engine="offload", weights="shared").resolve("cuda:0")
    assert memory(shared)[1] == footprint.SHARED_BLOCKS * models.get("OPT-175B").block * 2
    assert memory(shared)[0] == memory(shared.replace(weights="random"))[0]


def compute(spec: RunSpec) -> float:
    """Seconds of a step whose transfers take none."""
    return step_seconds(spec, dataclasses.replace(RATES, bytes_up={"disk": 1e99}, bytes_down={"disk": 1e99}))


def test_counter_noise_is_drawn_once_and_once_per_pending_update_where_mezo_draws_four_times() -> None:
    products = compute(offload()) - 4 * PARAMETERS / 3e8
    for spec, draws in (
        (counter(), 2),
        (counter(queries=1, writeback_every=4, steps=10, warmup=2), 1 + 2.5),
        (counter(writeback_every=100, steps=10, warmup=2), 1 + 7.5),
        (counter(writeback_every="inf", steps=10, warmup=2), 1 + 7.5),
        (RunSpec(model="OPT-1.3B", noise="counter").resolve("cpu"), 2),
        (counter(queries=1, method="adamezo", options={"horizon": 6}), 1 + 6),
    ):
        assert compute(spec) == pytest.approx(products + draws * PARAMETERS / 6e8)


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_every_query_takes_its_own_products_and_noise_and_shares_the_upload(noise: str) -> None:
    assert compute(offload(noise=noise, queries=3)) == pytest.approx(3 * compute(offload(noise=noise)))
    slow = Rates.of(CALIBRATION | {"disk_read_bytes_per_second": 1e6, "disk_write_bytes_per_second": 1e6})
    assert step_seconds(offload(noise=noise, queries=3), slow) == step_seconds(offload(noise=noise), slow)


@pytest.mark.parametrize(
    ("changes", "up", "down"),
    [
        ({}, 4, 4),
        ({"writeback_every": 4}, 4, 1),
        ({"wire": "fp8", "writeback_every": "inf"}, 1, 0),
        ({"resident_blocks": 12}, 2, 2),
    ],
)
def test_a_link_bound_step_and_its_floor_are_the_bytes_that_travel(changes, up, down) -> None:
    slow, spec = Rates.of(SLOW_DISK), counter(**changes)
    assert step_seconds(spec, slow) == pytest.approx(STREAMED * (up / 2e6 + down / 1e6))
    both = (up + down) / 1.5e6 if down else 0
    assert floor_seconds(spec, slow) == pytest.approx(STREAMED * max(up / 2e6, down / 1e6, both))


def test_the_floor_of_a_link_is_its_slower_way_and_pageable_memory_has_the_links() -> None:
    rates = Rates.of(CALIBRATION | {"link_up_bytes_per_second": 2e6, "link_down_bytes_per_second": 1e6})
    for tier in ("pinned", "pageable"):
        spec = RunSpec(model="OPT-1.3B", engine="offload", tier=tier).resolve("cuda:0")
        assert floor_seconds(spec, rates) == pytest.approx(STREAMED * 4 / 1e6)


@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny", "llama-tiny"])
def test_the_operations_of_the_floor_are_those_that_torch_counts(name: str) -> None:
    """Of llama-tiny the table of tokens, which is no head, is looked up and not counted."""
    spec, ids = RunSpec(model=name, seq_len=64).resolve("cpu"), torch.zeros(1, 64, dtype=torch.int64)
    model = models.build(name, "fp32")
    materialise(model, RandomWeights(model, 0), "cpu")
    model.set_attn_implementation("eager")  # whose products torch counts
    with torch.inference_mode(), FlopCounterMode(display=False) as counted:
        model(input_ids=ids, use_cache=False)
    flops = {str(operator): count for operator, count in counted.get_flop_counts()["Global"].items()}
    attention = sum(count for name, count in flops.items() if "attention" in name or "bmm" in name)
    assert operations(spec) == 2 * (sum(flops.values()) - attention)
    assert attention_operations(spec) == attention  # two forwards of which each needs half


def test_every_part_of_the_floor_has_the_rate_that_it_reached_alone() -> None:
    spec = RunSpec(model="OPT-1.3B", dtype="bf16").resolve("cpu")
    products = floor_seconds(spec, RATES) - 2 * 24 * 2 * 2048 * 2048**2 / 2e11
    operators = RATES.operators["bf16"] | {"attention": 1e9, "losses": 1e9}
    slow = dataclasses.replace(RATES, operators={**RATES.operators, "bf16": operators})
    attention, losses = 2 * 24 * 2 * 2048 * 2048**2 / 1e9, 2 * 2048 * 50272 * (4 + 4 + 2 + 4) / 1e9
    assert floor_seconds(spec, slow) == pytest.approx(products + attention + losses)


@given(cells)
def test_no_prediction_is_below_the_floor(spec: RunSpec) -> None:
    assert step_seconds(spec, RATES) >= floor_seconds(spec, RATES)


@pytest.mark.parametrize("calibration", [None, {}, CALIBRATION | {"noise_elements_per_second": 3e8}])
def test_a_result_without_usable_rates_has_no_share(calibration: dict[str, Any] | None) -> None:
    assert floor_share(measured(offload(), 1.0).with_facts(calibration=calibration)) is None
    unknown = measured(offload().replace(model="a model of another version"), 1.0)
    assert floor_share(unknown.with_facts(calibration=CALIBRATION)) is None
    assert floor_share(measured(offload(), None).with_facts(calibration=CALIBRATION)) is None


def test_a_device_memory_is_planned_before_it_is_predicted() -> None:
    spec = counter(device_memory=6 * 10**9)
    planned = footprint.fit(spec)[0]
    assert 0 < planned.resident_blocks < 24
    assert step_seconds(spec, RATES) == step_seconds(planned, RATES)
    assert floor_seconds(spec, RATES) == floor_seconds(planned, RATES)


def test_a_run_that_its_device_memory_no_longer_holds_counts_for_nothing() -> None:
    small = dataclasses.replace(measured(counter(device_memory=1), 1e4), parts={"upload_seconds": [1.0]})
    assert estimate(counter("OPT-2.7B"), RATES, [small]) == estimate(counter("OPT-2.7B"), RATES)
    assert [MOVED.of(small), link_rate(small, "upload_seconds"), floor_share(small)] == [None] * 3


def test_an_earlier_run_of_the_cell_says_how_long_it_takes() -> None:
    spec = offload(steps=10)
    guess = estimate(spec, RATES, [measured(spec.replace(steps=3, seed=7), 2.0, None, 4.0, 3.0)])
    assert (guess.step_seconds, guess.source) == (3.0, "an earlier run of this cell")
    assert guess.seconds > 11 * 3.0


def test_runs_of_similar_cells_correct_the_calibration() -> None:
    spec, plain = offload("OPT-2.7B"), estimate(offload("OPT-2.7B"), RATES).step_seconds
    runs = [measured(other, factor * estimate(other, RATES).step_seconds) for other, factor in (
        (offload("OPT-1.3B"), 2.0), (offload("OPT-6.7B"), 3.0), (offload("OPT-1.3B", overlap=False), 2.5)
    )]  # fmt: skip
    guess = estimate(spec, RATES, runs)
    assert guess.step_seconds == pytest.approx(2.5 * plain)
    assert guess.source == "calibration, corrected by 3 earlier runs"
    assert estimate(spec, RATES, runs[:1]).source == "calibration, corrected by 1 earlier run"
    others = "other processes kept 1.5 cores busy meanwhile; expect slower steps"
    disturbed = [dataclasses.replace(run, warnings=[others]) for run in runs]
    assert estimate(spec, RATES, [*disturbed, runs[0]]).source == "calibration, corrected by 1 earlier run"
    assert estimate(spec, RATES, disturbed).source == "calibration, corrected by 3 earlier runs"  # better than none


@pytest.mark.parametrize(
    "other",
    [
        measured(offload("opt-tiny", seq_len=32), 0.5),
        measured(offload("OPT-1.3B", dtype="fp16"), 1e4),
        measured(RunSpec(model="OPT-1.3B").resolve("cpu"), 1e4),
        measured(offload("OPT-1.3B", method="zo-sgd-cons"), 1e4),
        measured(RunSpec(model="OPT-1.3B", engine="offload").resolve("cuda:0"), 1e-3),
        measured(offload("OPT-1.3B"), 1e4, outcome=Outcome.CONTAMINATED),
        measured(offload("OPT-1.3B"), None),
        measured(offload("OPT-1.3B").replace(model="a model of another version"), 1e4),
    ],
    ids=["tiny", "dtype", "engine", "method", "device", "contaminated", "no sample", "unknown model"],
)
def test_a_run_that_says_nothing_about_a_cell_does_not_correct_it(other: Result) -> None:
    assert estimate(offload("OPT-2.7B"), RATES, [other]) == estimate(offload("OPT-2.7B"), RATES)


@pytest.mark.parametrize(
    ("changes", "forwards"),
    [
        ({"method": "zo-sgd-mmt", "queries": 3}, 6),
        ({"method": "zo-adam", "scheme": "lora"}, 2),
        ({"method": "zo-sgd-cons"}, 5),  # two for g, one for each candidate
        ({"method": "fzoo", "queries": 8}, 9),  # one side of each direction, and one base for all
        ({"method": "eggroll", "queries": 4, "noise": "counter"}, 8),  # and thin products
        ({"method": "hizoo"}, 3),  # a pair, and the weights between
        ({"method": "zo-sgd-block"}, 52),  # OPT-1.3B's 24 blocks and both ends: ZO-Bench counts 26
        ({"method": "forward-grad", "queries": 4, "scheme": "lora"}, 8),
        ({"method": "fo-sgd"}, 3),
        ({"method": "fo-adam", "scheme": "lora"}, 2),
        ({"method": "fo-adam", "checkpointing": True}, 4),
        ({"method": "hybrid", "zo_layers": 12}, 4),
        ({"method": "hybrid", "zo_layers": 24, "queries": 2}, 5),
    ],
)
def test_every_method_takes_its_own_number_of_forwards(changes: dict[str, Any], forwards: float) -> None:
    spec = RunSpec(model="OPT-1.3B", **changes).resolve("cpu")
    assert passes(spec) == forwards
    adapters = 1.01 if "scheme" in changes or METHODS.get(spec.method).structure else 1.0
    products = forwards * FORWARD / 1e11
    assert products * 0.999999 <= floor_seconds(spec, RATES) <= products * adapters * 1.000001
    result = dataclasses.replace(measured(spec, 2 * products), environment=Facts(calibration=CALIBRATION))
    assert floor_share(result) == pytest.approx(0.5, rel=0.01)


def test_a_task_has_no_floor_because_its_tokens_are_not_counted() -> None:
    spec = RunSpec(model="OPT-1.3B", weights="pretrained", task="sst2").resolve("cpu")
    assert floor_share(dataclasses.replace(measured(spec, 1.0), environment=Facts(calibration=CALIBRATION))) is None


def test_tuning_an_adapter_draws_and_writes_back_only_the_adapter() -> None:
    rates = Rates.of(SLOW_DISK)
    whole, lora = offload(), offload(scheme="lora")
    per_block = 24 * 2 * 8 * (2048 + 2048)  # q and v, A and B, of rank 8
    assert sizes.trained(lora)[0] * 24 == per_block
    assert step_seconds(whole, rates) == pytest.approx(STREAMED * 4 * (1 / 2e6 + 1 / 1e6))
    expected = (STREAMED + per_block) * 4 / 2e6 + per_block * 4 / 1e6
    assert step_seconds(lora, rates) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "draws"),
    [
        ({"queries": 3}, 12),
        ({"method": "zo-sgd-cons"}, 7),  # three more moves, to the candidates and to the best of them
        ({"method": "zo-sgd-sparse", "sparsity": 0.5}, 8),  # a mask beside every direction
        ({"method": "fzoo", "queries": 8}, 24),  # there, away and in the update
        ({"method": "adamezo", "options": {"horizon": 40}}, 43),  # three moves, and the last 40 in the update
        ({"method": "forward-grad"}, 2),
        ({"method": "fo-sgd"}, 0),
        ({"method": "zo-sgd-cons", "noise": "counter"}, 3),  # for a pair, for its two candidates, and in the update
        ({"method": "qes", "queries": 4, "noise": "counter"}, 4 * 3),  # opposite points of codes are no mirror images
    ],
)
def test_every_method_draws_its_own_noise(changes: dict[str, Any], draws: int) -> None:
    """Opposite points share a draw of counter noise if they are mirror images."""
    spec = RunSpec(model="OPT-1.3B", **changes).resolve("cpu")
    without = dataclasses.replace(RATES, noise=dict.fromkeys(RATES.noise, 1e99))
    seconds = step_seconds(spec, RATES) - step_seconds(spec, without)
    each = sizes.drawn(spec) / RATES.noise["fused"] if "noise" in changes else PARAMETERS / 3e8
    assert seconds == pytest.approx(draws * each)


def test_the_candidates_of_cons_are_uploaded_once_more() -> None:
    slow = Rates.of(SLOW_DISK | {"disk_write_bytes_per_second": 1e99})
    plain, cons = (step_seconds(offload(method=method), slow) for method in ("zo-sgd", "zo-sgd-cons"))
    assert cons == pytest.approx(2 * plain, rel=1e-3)


def test_a_tasks_run_takes_the_time_of_its_evaluations_too() -> None:
    def taken(**changes: Any) -> float:
        fields = {"model": "OPT-125M", "weights": "pretrained", "task": "sst2", "steps": 100, "warmup": 0, **changes}
        return estimate(RunSpec(**fields).resolve("cpu"), RATES).seconds

    once, often = taken(), taken(eval_every=25)
    more = taken(eval_every=25, dev_size=1000)
    assert often - once == pytest.approx(1.5 * (taken(dev_size=1000) - once))  # 5 looks at dev instead of 2
    assert more - often == pytest.approx(2.5 * (taken(dev_size=1000) - once))
    products = 2 * 500 * 2 * models.parameter_count("OPT-125M") / 1e11  # per token: both candidates in one row, twice
    tokens = sizes.usual(RunSpec(model="OPT-125M", weights="pretrained", task="sst2").resolve("cpu"))
    assert taken(dev_size=1000) - once > 0.5 * products * tokens


def test_an_evaluation_computes_the_rows_in_which_an_example_is_encoded() -> None:
    """One for candidates of one token each, else one for each, in seconds and in a protocol's budget alike."""
    tokenizer = trained(words=(" great", " terrible", "Yes", "No", "Maybe"))
    encoder = Encoder(tokenizer=tokenizer, masked=False, limit=512, limit_text="", truncate=False)
    for task in PUBLISHED:
        spec = RunSpec(model="OPT-125M", weights="pretrained", task=task.name, batch_size=4).resolve("cpu")
        if task.make is None:
            record = {name: f"{name} _ of a text" for name in task.texts} | {"question": "effect"}
            (example,) = encoder.encode([Example(*task.form(record), 0)], ["here"])
            assert sizes.rows_of_example(spec) == len(example.rows), task.name
        evaluation = budget.price("forwards", spec)[1]
        assert evaluation == sizes.dev_examples(spec) * sizes.rows_of_example(spec) / 4


def test_an_operators_rate_lengthens_a_step_of_its_dtype_by_its_own_part() -> None:
    """Each rate of an operator, a hundred times slower, lengthens a step of its dtype by exactly its own part."""
    spec = RunSpec(model="OPT-125M", dtype="bf16", seq_len=512).resolve("cpu")
    plain = {"attention": 2e11, "passes": 1e10, "losses": 1e10, "normals": 3e8, "fused": 6e8}
    rates = {kind: dict(plain) for kind in ("fp32", "fp16", "bf16")}

    def known(**changed: float) -> Any:
        operators = {**rates, "bf16": {**rates["bf16"], **changed}}
        return local.predict(spec, Rates.of(CALIBRATION | {"operators_per_second": operators}))

    whole = known()
    for name, part in {"attention": "attention", "losses": "passes", "normals": "noise"}.items():
        slow = known(**{name: plain[name] / 100})
        assert slow.parts[part] > 5 * whole.parts[part], name
        assert slow.step_seconds - whole.step_seconds == pytest.approx(slow.parts[part] - whole.parts[part])
    assert known(fused=1.0).parts == whole.parts  # no counter noise here
    other = {**rates, "fp32": dict.fromkeys(plain, 1.0)}
    assert local.predict(spec, Rates.of(CALIBRATION | {"operators_per_second": other})).parts == whole.parts


GPU = {
    **CALIBRATION, "matmul_flops_per_second": {"fp32": 5e13, "fp16": 9e14, "bf16": 9e14},
    "copy_bytes_per_second": 3e12, "operators_per_second": None, "kernel_seconds": 1e-5,
    "noise_elements_per_second": {"torch": 4e11, "counter": 4e11, "fused": 2e11},
    **{f"link_{way}_bytes_per_second": rate for way, rate in (("up", 52.8e9), ("down", 55.1e9), ("both", 89.2e9))},
}  # fmt: skip
"""Of an H100, about."""


def test_a_gpu_works_while_the_host_launches_its_next_kernels() -> None:
    """On an H100 the launches of OPT-6.7B's step, 75 ms, were counted beside its work; it took 263 ms, which is that
    work alone. A step of a small model takes as long as its launches."""

    def known(model: str, kernel: float) -> Any:
        spec = RunSpec(model=model, dtype="fp16", seq_len=2048).resolve("cuda:0")
        return local.predict(spec, Rates.of(GPU | {"kernel_seconds": kernel}))

    large, small = known("OPT-6.7B", 1e-5), known("OPT-125M", 1e-4)
    assert large.step_seconds == known("OPT-6.7B", 0.0).step_seconds
    assert small.step_seconds == pytest.approx(2 * known("OPT-125M", 5e-5).step_seconds)
    assert sum(small.parts.values()) == pytest.approx(small.step_seconds)


def test_transfers_both_ways_take_the_rate_that_a_link_has_with_both_in_use() -> None:
    """An H100's link brings 53 GB/s one way and 45 each way: OPT-6.7B's blocks took 302 ms, which 53 GB/s would have
    brought in 244."""
    spec = RunSpec(model="OPT-6.7B", dtype="fp16", engine="offload", seq_len=64).resolve("cuda:0")
    moved = 2 * models.of(spec).all_blocks / 44.6e9
    assert local.predict(spec, Rates.of(GPU)).step_seconds == pytest.approx(moved, rel=0.05)
