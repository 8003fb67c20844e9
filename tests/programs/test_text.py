"""Cells that read SST-2's sentences: the shapes, counts and bytes of random tokens, and what is missing in one line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer

from tests.support.small_task import data_dir, weights_path  # noqa: F401  fixtures
from zobench import models
from zobench.data.tokens import stream
from zobench.finetune.assemble import empty_model, tuner
from zobench.measure.ledger import Ledger
from zobench.predict import footprint
from zobench.programs.cell import SENTENCES, batches, run
from zobench.result import Outcome
from zobench.runspec import RunSpec


@pytest.fixture
def spec(weights_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:  # noqa: F811
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))
    return RunSpec(
        model="opt-tiny", weights="pretrained", weights_path=str(weights_path), engine="offload", tier="pageable",
        seq_len=24, batch_size=3, steps=2, warmup=1,
    ).resolve("cpu")  # fmt: skip


def test_rows_are_the_sentences_end_to_end(spec: RunSpec, data_dir: Path) -> None:  # noqa: F811
    """Each row is a window of what the tokenizer makes of the training set, written again and again."""
    told = spec.replace(data="sst2")
    lines = (data_dir / "SST-2" / "train.tsv").read_text().splitlines()[1:]
    words = AutoTokenizer.from_pretrained(spec.weights_path)
    ids = [number for line in lines for number in words(line.split("\t")[0])["input_ids"]]
    endless = " ".join(map(str, ids + ids))
    first, second = itertools.islice(batches(told, empty_model(told)), 2)
    for row in first.input_ids.tolist():
        assert f" {' '.join(map(str, row))} " in f" {endless} "
    assert not torch.equal(first.input_ids, second.input_ids)
    assert len(lines) <= SENTENCES


def test_shapes_and_dtypes_are_those_of_random_tokens(spec: RunSpec) -> None:
    told = spec.replace(data="sst2")
    text, random = (next(batches(run_spec, empty_model(run_spec))) for run_spec in (told, spec))
    for name in ("input_ids", "labels"):
        left, right = getattr(text, name), getattr(random, name)
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        assert not torch.equal(left, right)
    assert text.attention_mask is None is random.attention_mask
    assert text.tokens == random.tokens


def test_a_step_makes_the_same_bytes_and_takes_the_same_products(spec: RunSpec) -> None:
    """Every storage that a step of the resident model makes, and its products by torch's own counter of them."""
    counted = {}
    for data in ("random", "sst2"):
        told = spec.replace(data=data, engine="resident", tier="auto")
        with tuner(told) as built:
            fed = batches(told, empty_model(told))
            built.method.step(built.engine, next(fed))
            with Ledger("cpu") as ledger, FlopCounterMode(display=False) as products:
                built.method.step(built.engine, next(fed))
            counted[data] = ledger.peak.nbytes, dict(ledger.peak.parts), products.get_total_flops()
    assert counted["random"] == counted["sst2"]
    assert all(counted["sst2"])


def test_a_cell_runs_and_predictions_and_bytes_at_rest_are_equal(spec: RunSpec) -> None:
    told = spec.replace(data="sst2")
    text, random = run(told), run(spec)
    assert (text.outcome, random.outcome) == (Outcome.OK, Outcome.OK), text.reason
    assert text.memory["blocks_at_rest_bytes"] == random.memory["blocks_at_rest_bytes"]
    assert text.samples["loss"] != random.samples["loss"]
    assert footprint.memory(told) == footprint.memory(spec)
    assert told.hash != spec.hash


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"weights": "random", "weights_path": ""},
            "`data=sst2` needs the tokenizer of opt-tiny, but it is on no hub;",
        ),
        ({}, "must hold the training set of sst2, but has no train.tsv"),
    ],
)
def test_what_is_missing_is_the_cells_reason_in_one_line(
    spec: RunSpec, changes: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(tmp_path))
    result = run(spec.replace(data="sst2", **changes))
    assert result.outcome is Outcome.FAILED
    assert text in result.reason
    assert "\n" not in result.reason


def test_rows_without_sentences_are_refused(spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\na fine film\t1\n")
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(tmp_path))
    told = spec.replace(data="sst2")
    with pytest.raises(ValueError, match="must hold sentences in a column `sentence`, but has none"):
        batches(told, empty_model(told))
    with pytest.raises(ValueError, match="`data=sst2` needs token ids, but got none"):
        next(stream(told, models.of(told).vocab, None))
