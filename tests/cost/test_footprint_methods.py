"""Memory of the methods and adapters: their order, their state and their points; and measured, the peak of a process of
its own for each method."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import forked
from tests.support.formulas import NEWER
from tests.support.rates import BLOCK, LINEAR, cell
from zobench import models, schemes
from zobench.cost import footprint, sizes
from zobench.cost.footprint import memory
from zobench.engine.base import TILE_BYTES
from zobench.runspec import METHODS, RunSpec

ZO = ("zo-sgd", "zo-sgd-sign", "zo-sgd-cons", "zo-sgd-mmt", "zo-adam", "forward-grad")


@given(
    st.sampled_from([64, 400, 2048]), st.integers(1, 8), st.sampled_from(["fp32", "fp16"]),
    st.sampled_from(["cpu", "cuda:0"]),
)  # fmt: skip
def test_methods_take_memory_in_the_order_of_zo_benchs_table(seq_len: int, batch: int, dtype: str, device: str) -> None:
    """ZO-SGD = Sign = Cons < MMT < Adam, and FO-SGD < FO-Adam (tables 4 and A1)."""
    spec = RunSpec(model="OPT-6.7B", dtype=dtype, batch_size=batch, seq_len=seq_len)
    need = {name: memory(spec.replace(method=name).resolve(device))[0] for name in (*ZO, "fo-sgd", "fo-adam")}
    assert need["zo-sgd-sign"] == pytest.approx(need["zo-sgd"], rel=0.1)
    assert need["zo-sgd-cons"] == pytest.approx(need["zo-sgd"], rel=0.1)
    assert max(need["zo-sgd"], need["zo-sgd-sign"], need["zo-sgd-cons"]) < need["zo-sgd-mmt"] < need["zo-adam"]
    assert need["zo-sgd"] < need["fo-sgd"] < need["fo-adam"]


def test_state_is_float32_as_written_and_as_the_weights_as_shipped() -> None:
    parameters = models.parameter_count("OPT-1.3B")
    plain, mmt, adam = (
        memory(RunSpec(model="OPT-1.3B", dtype="fp16", method=name).resolve("cpu"))[0] for name in
        ("zo-sgd", "zo-sgd-mmt", "zo-adam")
    )  # fmt: skip
    assert (mmt - plain, adam - plain) == (4 * parameters, 8 * parameters)
    shipped = RunSpec(model="OPT-1.3B", dtype="fp16", method="zo-adam", definition="as-shipped").resolve("cpu")
    assert memory(shipped)[0] - plain == 4 * parameters


@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
def test_state_rests_and_travels_with_its_unit(granularity: str) -> None:
    plain, adam = (memory(cell(granularity=granularity, method=name)) for name in ("zo-sgd", "zo-adam"))
    assert adam[1] - plain[1] == 24 * BLOCK * 8
    outside = models.resident_parameter_count("OPT-1.3B") * 8
    pieces = 5 * 4 * footprint._PIECE  # of the rule, on a CUDA device
    unit = BLOCK if granularity == "block" else LINEAR
    slots = 3 * unit * 8 if granularity != "tile" else pytest.approx(0, abs=3 * TILE_BYTES * 4)
    assert adam[0] - plain[0] - outside - pieces == slots


def test_only_an_adapters_weights_have_state_and_noise() -> None:
    spec = RunSpec(model="OPT-1.3B", scheme="lora", method="zo-adam").resolve("cpu")
    lora = 24 * 2 * 8 * (2048 + 2048)
    assert memory(spec)[0] - memory(spec.replace(method="zo-sgd"))[0] == lora * 8
    assert memory(spec.replace(method="zo-sgd"))[0] - memory(RunSpec(model="OPT-1.3B").resolve("cpu"))[0] == lora * 4


@pytest.mark.parametrize("model", ["OPT-125M", "Qwen3-4B"])
@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
def test_an_adapter_is_as_large_as_pefts(model: str, scheme: str) -> None:
    spec = RunSpec(model=model, scheme=scheme, seq_len=64)
    built = models.build(model, "fp32")
    schemes.apply(spec, built)
    inside, outside = sizes.adapter(spec)
    assert inside * models.get(model).layers + outside == sum(p.numel() for p in built.parameters() if p.requires_grad)
    assert {p.dtype for p in built.parameters() if p.requires_grad} == {torch.float32}


def test_the_newer_methods_take_memory_for_their_state_and_their_points() -> None:
    plain = RunSpec(model="OPT-1.3B", noise="counter")
    need = {
        name: memory(plain.replace(method=name, **METHODS.get(name).changes(plain)).resolve("cpu"))[0]
        for name in ("zo-sgd", "zo-sgd-mmt", *NEWER)
    }
    assert need["meazo"] == need["sparse-mezo"] == need["zo-sgd"]
    assert need["conmezo"] == need["zo-sgd-mmt"] < need["hizoo"]  # three copies of the batch, not two
    assert need["zo-sgd"] < need["fzoo"] < need["zo-sgd-mmt"]  # nine
    shipped = [
        memory(plain.replace(method=name, dtype="fp16", definition=definition).resolve("cpu"))[0]
        for name in ("hizoo", "conmezo")
        for definition in ("as-written", "as-shipped")
    ]
    assert shipped[1] < shipped[0]
    assert shipped[3] < shipped[2]


PLAIN = RunSpec(model="OPT-125M", engine="resident", batch_size=2, seq_len=64, steps=1)
MEASURED: dict[str, RunSpec] = {
    **{name: PLAIN.replace(method=name) for name in ("zo-sgd", "zo-adam", "forward-grad", "fo-adam")},
    "hizoo": PLAIN.replace(method="hizoo", **METHODS.get("hizoo").changes(PLAIN)),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak resident memory is read from /proc")
def test_measured_memory_has_the_order_of_the_table_and_is_within_15_percent_of_the_formula() -> None:
    """OPT-125M, each method in a process of its own (measured: 0.98 to 1.07 of the formula)."""
    context, peaks = multiprocessing.get_context("forkserver"), {}
    context.set_forkserver_preload([forked.__name__])
    with context.Pool(1, maxtasksperchild=1) as pool:
        for name, plain in MEASURED.items():
            spec = plain.resolve("cpu")
            wanted = pytest.approx(memory(spec)[0], rel=0.15)
            peaks[name] = pool.apply(forked.peak, (spec.to_dict(),))
            if peaks[name] != wanted:  # where other processes fight for memory, one peak in some tens holds freed pages
                peaks[name] = min(peaks[name], pool.apply(forked.peak, (spec.to_dict(),)))
            assert peaks[name] == wanted, name
    assert peaks["zo-sgd"] < peaks["forward-grad"] < peaks["zo-adam"]
