"""One cell: every option of its spec reaches the engine, and what it was planned or asked for is in the result."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer

from tests.support.small_task import data_dir, weights_path  # noqa: F401  fixtures
from zobench import models
from zobench.cost import footprint
from zobench.engine import Engine
from zobench.measure.ledger import Ledger
from zobench.measure.samples import Samples
from zobench.programs.cell import PARTS_REPEATS, SENTENCES, batches, run
from zobench.result import Outcome, Result
from zobench.result.record import DISTURBED
from zobench.runspec import RunSpec, order
from zobench.training.assemble import empty_model, engine_config, tuner
from zobench.training.cautions import cautions, lost

OPTIONS: dict[str, Any] = {
    "noise": "counter", "granularity": "tile", "writeback_every": 4, "wire": "fp16", "autocast": "bf16",
    "resident_blocks": 1, "slots": 2, "overlap": False, "reusable_memory": False,
}  # fmt: skip


def cell(**changes: Any) -> RunSpec:
    return RunSpec(**{"model": "opt-tiny", "engine": "offload", "seq_len": 8, "steps": 2, **changes}).resolve("cpu")


def test_every_option_reaches_the_engine() -> None:
    config = engine_config(cell(**OPTIONS))
    assert {name: getattr(config, name) for name in OPTIONS} == OPTIONS
    assert (config.placement, config.tier, config.device, config.shared_blocks) == ("offload", "disk", "cpu", None)
    assert engine_config(cell(compile=True)).compile
    assert engine_config(cell(weights="shared")).shared_blocks == footprint.SHARED_BLOCKS


def test_a_given_device_memory_runs_as_planned_and_the_result_says_how() -> None:
    spec = cell(noise="counter", device_memory=10**9)
    result = run(spec)
    assert (result.outcome, result.reason, result.spec) == (Outcome.OK, "", spec)
    planned, why = footprint.fit(spec)
    plan = {"granularity": "block", "slots": 3, "resident_blocks": 3, "predicted_bytes": footprint.memory(planned)[0]}
    assert result.environment.memory_plan == {**plan, "reason": why}
    assert result.memory["blocks_at_rest_bytes"] == 0  # all three blocks stay
    assert run(cell(steps=1, warmup=0)).environment.memory_plan is None


def test_pending_updates_are_written_when_the_plan_says_and_the_result_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 each write-back rounds: three steps apart gives other bits than never."""
    spec = cell(noise="counter", dtype="bf16", writeback_every="inf", steps=6, lr=0.1)
    never, asked = run(spec), run(spec.replace(writeback_every=3))
    monkeypatch.setattr(order, "_current", order.Order(spec=spec, consolidation=(3, "a reason")))
    planned = run(spec)
    assert [result.outcome for result in (never, planned, asked)] == [Outcome.OK] * 3
    assert planned.samples["loss"] == asked.samples["loss"]
    assert planned.samples["loss"] != never.samples["loss"]
    assert planned.spec == spec
    assert planned.spec.hash == never.spec.hash
    assert planned.environment.writeback_plan == {"steps": 3, "reason": "a reason"}
    assert never.environment.writeback_plan is None


@pytest.mark.parametrize("changes", [{"noise": "counter", "granularity": "linear", "writeback_every": "inf"}])
def test_the_parts_of_a_step_are_timed_apart(changes: dict[str, Any]) -> None:
    result = run(cell(parts=True, **changes))
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert set(result.parts) == {"transfer_seconds", "compute_seconds", "whole_seconds"}
    assert all(len(seconds) == PARTS_REPEATS and min(seconds) > 0 for seconds in result.parts.values())


def test_a_cell_whose_time_is_up_keeps_the_steps_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(cell(steps=3, warmup=1))
    left = iter([1e6, -1.0])
    monkeypatch.setattr(order, "seconds_left", lambda: next(left))
    result = run(cell(steps=9, warmup=1))
    assert (result.outcome, result.partial, whole.partial) == (Outcome.OK, True, False)
    assert result.warnings[0] == "partial: 2 of 9 steps, because the time it was given was used up"
    assert result.samples["loss"] == whole.samples["loss"][:2]
    assert len(result.measured_seconds) == 2
    stored = Result.from_dict(result.to_dict())
    assert (stored.partial, Result.from_dict(whole.to_dict()).partial) == (True, False)


def test_a_run_beside_others_says_so_in_the_words_that_a_comparison_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Samples, "other_cpu_cores", property(lambda _: 1.5))
    assert any(text.startswith(DISTURBED) for text in run(cell(steps=1, warmup=0)).warnings)


def test_how_much_of_the_updates_survives_is_measured_where_it_is_asked_for() -> None:
    spec = cell(engine="resident", noise="counter", survival=True)
    (share,) = run(spec).parts["update_survival"]
    assert share == pytest.approx(1, abs=0.1)
    assert "update_survival" not in run(spec.replace(survival=False)).parts


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_an_update_that_is_said_to_round_away_does_and_one_a_little_larger_does_not(dtype: str) -> None:
    weight = torch.tensor(0.02, dtype=getattr(torch, models.DTYPES[dtype]))
    bits = {"bf16": 8, "fp16": 11}[dtype]  # of its significand; 0.02 lies between 2^-6 and 2^-5
    gradients = [share * 2.0 ** (-6 - bits) / 1e-7 for share in (0.95, 1.05)]
    assert [bool((weight.float() - 1e-7 * g).to(weight.dtype) == weight) for g in gradients] == [True, False]
    assert [bool(lost(cell(dtype=dtype), g)) for g in gradients] == [True, False]


@pytest.mark.parametrize(
    ("method", "size"),
    [("zo-sgd-sparse", "lr * g"), ("forward-grad", "lr * g"), ("zo-sgd-sign", "lr"), ("zo-adam", "")],
)
def test_methods_whose_updates_round_away(method: str, size: str) -> None:
    """With sign, g has no part in it."""
    share = {"sparsity": 0.5} if method == "zo-sgd-sparse" else {}
    notes = cautions(cell(method=method, dtype="bf16", **share), [1.0, 2.0, 3.0], 0)
    value = {"lr": "1.0e-07", "lr * g": "2.0e-07"}.get(size)
    assert [text.split(" is below")[0] for text in notes] == (
        [f"bf16 updates are lost: {size} = {value}"] if size else []
    )
    assert cautions(cell(method=method, dtype="bf16", scheme="lora", **share), [1.0], 0) == []


def test_runs_that_learn_nothing_and_methods_without_their_constant_are_told() -> None:
    assert cautions(cell(), [0.0, None, -0.0], 1) == [
        "1 updates were skipped, because their projected gradient was not finite",
        "every projected gradient was 0: nothing was learnt",
    ]
    assert cautions(cell(), [0.0, 1.0], 0) == []
    assert cautions(cell(method="zo-sgd-sparse"), [1.0], 0) == ["sparsity=0 masks nothing: this is zo-sgd"]
    assert cautions(cell(method="zo-sgd-sparse", definition="as-shipped"), [1.0], 0) == []  # it masks half
    hybrid = RunSpec(model="opt-tiny", method="hybrid")
    assert cautions(hybrid, [1.0], 0) == ["zo_layers=0 leaves nothing to directions: this is fo-sgd"]
    assert cautions(hybrid.replace(zo_layers=1), [1.0], 0) == []
    before = cautions(hybrid.replace(zo_layers=1, scheme="prefix"), [1.0], 0)
    assert before == ["scheme=prefix tunes what comes before the layers, nothing by gradients"]


def test_the_schedule_reaches_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up's steps are the first of it."""
    rates: list[float] = []
    commit = Engine.commit
    monkeypatch.setattr(
        Engine, "commit", lambda self, entries: (rates.extend(e.lr for e in entries), commit(self, entries))[1]
    )
    assert run(cell(lr=0.5, lr_schedule="cosine", warmup=1, steps=3)).outcome is Outcome.OK
    assert rates == pytest.approx([0.5 * share for share in (1, 0.8535534, 0.5, 0.1464466)])


@pytest.fixture
def spec(weights_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:  # noqa: F811
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))
    return RunSpec(
        model="opt-tiny", weights="pretrained", weights_path=str(weights_path), engine="offload", tier="pageable",
        seq_len=24, batch_size=3, steps=2, warmup=1,
    ).resolve("cpu")  # fmt: skip


def test_rows_are_the_sentences_end_to_end(spec: RunSpec, data_dir: Path) -> None:  # noqa: F811
    """Each row is a window of what the tokenizer makes of the training set, written again and again."""
    sentences = spec.replace(data="sst2")
    lines = (data_dir / "SST-2" / "train.tsv").read_text().splitlines()[1:]
    words = AutoTokenizer.from_pretrained(spec.weights_path)
    ids = [number for line in lines for number in words(line.split("\t")[0])["input_ids"]]
    endless = " ".join(map(str, ids + ids))
    first, second = itertools.islice(batches(sentences, empty_model(sentences)), 2)
    for row in first.input_ids.tolist():
        assert f" {' '.join(map(str, row))} " in f" {endless} "
    assert not torch.equal(first.input_ids, second.input_ids)
    assert len(lines) <= SENTENCES


def test_a_step_makes_the_same_bytes_and_takes_the_same_products(spec: RunSpec) -> None:
    """The peak of a step of the resident model, and its products by torch's own counter of them."""
    counted = {}
    for data in ("random", "sst2"):
        asked = spec.replace(data=data, engine="resident", tier="auto")
        with tuner(asked) as built:
            fed = batches(asked, empty_model(asked))
            first = next(fed)
            built.method.step(built.engine, first)
            with Ledger("cpu") as ledger, FlopCounterMode(display=False) as products:
                built.method.step(built.engine, next(fed))
            shapes = [(ids.shape, ids.dtype) for ids in (first.input_ids, first.labels)]
            counted[data] = ledger.peak, products.get_total_flops(), shapes
            assert first.attention_mask is None
    assert counted["random"] == counted["sst2"]
    assert all(counted["sst2"])
    assert footprint.memory(spec.replace(data="sst2")) == footprint.memory(spec)


def test_what_is_missing_is_the_cells_reason_in_one_line(spec, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(tmp_path))
    result = run(spec.replace(data="sst2"))
    assert result.outcome is Outcome.FAILED
    assert "must hold the training set of sst2, but has no train.tsv" in result.reason
    assert "\n" not in result.reason
