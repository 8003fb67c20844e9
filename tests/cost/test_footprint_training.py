"""Memory of backpropagation: where the formula peaks, on the meta device, and what ZO-Bench reports."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from zobench import models, schemes
from zobench.cost import backward
from zobench.cost.footprint import memory
from zobench.data.batch import Batch
from zobench.engine import EngineConfig
from zobench.engine.backprop import Backprop
from zobench.engine.passes.drive import drive_to_head
from zobench.measure.ledger import Ledger
from zobench.models.weights import RandomWeights
from zobench.runspec import RunSpec


class Nothing:
    """Weights that are never looked at."""

    def fill(self, name: str, out: torch.Tensor, first: int = 0) -> None: ...


def trained(spec: RunSpec) -> tuple[int, int]:
    """(bytes that a forward's body keeps beside the weights, peak of the second of two steps), by the ledger."""
    model = models.build(spec.model, spec.dtype, spec.tie_embeddings, models.position_count(spec))
    scheme = schemes.apply(spec, model)
    ids = torch.empty(spec.batch_size, spec.seq_len, dtype=torch.long, device="meta")
    batch, config = Batch(ids, ids), EngineConfig(device="meta", placement="resident")
    with Ledger("meta") as ledger:  # attention is that of CUDA's kernels
        engine = Backprop(model, config, weights=Nothing(), drive=scheme.drive, zo_layers=spec.zo_layers)
        before = ledger.live
        with torch.enable_grad():
            driven = drive_to_head(scheme.drive, model, ids, None)
            kept = ledger.live - before
        del driven
        for _ in range(2):
            ledger.reset()
            engine.backward(batch)
            engine.update("adam" if spec.method == "fo-adam" else "sgd", lr=1e-3, foreach=spec.foreach)
    return kept, ledger.peak


FO: dict[str, Any] = {"method": "fo-sgd"}
ADAM: dict[str, Any] = {"method": "fo-adam"}


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(model="OPT-125M", **FO),  # the peak is where backward begins
        RunSpec(model="OPT-125M", seq_len=64, dtype="fp16", **FO),  # where it ends
        RunSpec(model="OPT-125M", seq_len=64, dtype="fp16", **ADAM),  # in the optimizer's step
        RunSpec(model="OPT-125M", seq_len=64, tie_embeddings=False, foreach=False, **ADAM),
        RunSpec(model="OPT-125M", batch_size=4, seq_len=256, scheme="lora", dtype="fp16", **ADAM),
        RunSpec(model="OPT-125M", batch_size=2, seq_len=256, scheme="prefix", **ADAM),
        RunSpec(model="OPT-125M", batch_size=2, seq_len=512, method="hybrid", zo_layers=4),
        RunSpec(model="Qwen3-1.7B", dtype="fp16", seq_len=512, scheme="lora", **FO),
    ],
    ids=lambda spec: spec.label,
)
def test_backpropagation_peaks_where_the_formula_says(spec: RunSpec) -> None:
    kept, peak = trained(spec)
    assert backward.kept(spec) == pytest.approx(kept, rel=0.05)  # virtual tokens are not counted
    assert memory(spec.resolve("cuda"))[0] == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    ("model", "batch_size", "changes"),
    [
        ("opt-mini", 4, {}),
        ("opt-mini", 4, {"autocast": "bf16"}),
        ("opt-mini", 4, {"checkpointing": True}),  # logits are the most: the peak is before any layer runs again
        ("opt-tiny", 32, {"checkpointing": True}),  # a layer's activations are: it is after the last one did
        ("qwen3-tiny", 8, {"checkpointing": True}),
    ],
)
def test_checkpointing_and_autocast_keep_what_the_formula_says(
    model: str, batch_size: int, changes: dict[str, Any]
) -> None:
    """On the CPU, because neither runs on the meta device; there attention keeps the same tensors. Models so small that
    activations are most of the peak."""
    spec = RunSpec(model=model, batch_size=batch_size, seq_len=models.get(model).max_positions, **FO, **changes)
    built = models.build(spec.model, spec.dtype)
    config = EngineConfig(device="cpu", placement="resident", autocast=spec.autocast)
    ids = torch.zeros(spec.batch_size, spec.seq_len, dtype=torch.long)
    with Ledger("cpu") as ledger:
        engine = Backprop(built, config, weights=RandomWeights(built, 0), checkpointing=spec.checkpointing)
        ledger.reset()
        engine.backward(Batch(ids, ids))
    assert backward.peak(spec) == pytest.approx(ledger.peak, rel=0.03)


@pytest.mark.parametrize(
    ("method", "changes"), [("fo-sgd", {}), ("fo-adam", {}), ("fo-adam-noforeach", {"foreach": False})]
)
def test_first_order_training_of_opt_13b_takes_what_zo_bench_reports(method: str, changes: dict[str, Any]) -> None:
    """Its table A1: 97, 239 and 195 GB at 400 tokens."""
    with (Path(__file__).parents[2] / "results" / "paper" / "reference.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["paper"], row["artifact"]) == ("zo-bench", "tableA1")]
    (reported,) = (float(row["value"]) for row in rows if (row["method"], row["dtype"]) == (method, "fp32"))
    spec = RunSpec(model="OPT-13B", batch_size=4, seq_len=400, method=method.removesuffix("-noforeach"), **changes)
    assert memory(spec.resolve("cuda"))[0] / 2**30 == pytest.approx(reported, rel=0.01)
