"""The real engine on a virtual clock: its seconds are those of the formulas, and stored timelines are its own."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import RATES
from tools import timelines as written
from tools.virtual import VirtualRun, virtual_step
from zobench import models, recipes
from zobench.cost import Rates, gpu, hardware, local
from zobench.engine.transfers.schedule import Event
from zobench.recipes import campaign
from zobench.report import recorded
from zobench.runspec import RunSpec

DOCS = Path(__file__).parents[2] / "docs"
CARD = hardware.load("a100-80gb-sxm")


def cell(model: str = "opt-tiny", **fields: Any) -> RunSpec:
    return models.checked(RunSpec.from_dict({"model": model, "dtype": "fp16", "seq_len": 48, **fields}), "cuda:0")


def operations(timeline: list[Event]) -> list[tuple[str, str, int]]:
    """(lane, kind, block) of each; the step in which a block is uploaded first depends on the sizes of the others."""
    return sorted(event[:3] for event in timeline)


LARGER: list[dict[str, Any]] = [
    {"engine": "offload", "fused_update": False}, {"batch_size": 2, "accumulate": 2, "seq_len": 512},
    {"engine": "offload", "noise": "counter", "granularity": "linear", "writeback_every": 4, "seq_len": 512},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", LARGER, ids=lambda form: "-".join(map(str, form.values())))
def test_the_formulas_say_what_the_engine_takes(form: dict[str, Any]) -> None:
    """Within 4 %: what formulas leave out is around the blocks, as kernels of the embedding and the loss."""
    spec = cell("OPT-125M", **{"seq_len": 2048, **form})
    known, virtual = gpu.predict(spec, CARD), virtual_step(spec, CARD)
    assert virtual.prediction.step_seconds == pytest.approx(known.step_seconds, rel=0.04)
    assert virtual.prediction.bound == known.bound
    for part in ("products", "attention", "passes", "noise", "kernels"):
        off = virtual.prediction.parts[part] - known.parts[part]
        assert abs(off) <= 0.04 * known.step_seconds, part
    assert operations(gpu.Costs(spec, CARD, 0.0).timeline()) == operations(virtual.timeline)
    assert 0 <= virtual.prediction.stall <= virtual.prediction.step_seconds


def test_the_timeline_is_that_of_one_step() -> None:
    virtual = virtual_step(cell(engine="offload", noise="counter"), CARD)
    layers = models.get("opt-tiny").layers
    kinds = [kind for _, kind, *_ in virtual.timeline]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(("upload", "compute", "offload"), layers)
    computed = [(block, start, end) for _, kind, block, start, end in virtual.timeline if kind == "compute"]
    assert [block for block, *_ in computed] == list(range(layers))
    assert all(end <= after for (_, _, end), (_, after, _) in itertools.pairwise(computed))
    assert computed[-1][2] <= virtual.prediction.step_seconds


@pytest.mark.slow
def test_the_stored_timelines_are_made_by_the_engine_as_it_is() -> None:
    """One of them anew: the others come out of the same program."""
    assert len(recorded.stored()) == len(recorded.FORMS)
    number = next(k for k, form in enumerate(recorded.FORMS) if form.get("checkpoint") == "async")
    made = written.made(recorded.FORMS[number])
    assert [list(event[:3]) for event in made] == [event[:3] for event in recorded.stored()[number].timeline]
    pairs = zip(made, recorded.stored()[number].timeline, strict=True)
    assert all(pair[3:] == pytest.approx(other[3:], abs=2e-6) for pair, other in pairs)


def test_the_page_shows_seconds_of_several_gpus_as_they_are_predicted() -> None:
    rows = json.loads((DOCS / "ranks.json").read_text(encoding="utf-8"))
    page = (DOCS / "distzo2.md").read_text(encoding="utf-8")
    for row, (gpus, way) in zip(rows, ((1, "none"), (2, "pertp"), (4, "2d"), (8, "2d")), strict=True):
        fields = {"engine": "offload", "dtype": "fp16", "batch_size": 8, "gpus": gpus, "parallel": way}
        spec = models.checked(RunSpec(model="OPT-1.3B", **fields), "cuda")
        assert row["seconds"] == pytest.approx(gpu.predict(spec, hardware.load("h20")).step_seconds, rel=0.01)
        assert f"| {row['seconds']:.3f} | {rows[0]['seconds'] / row['seconds']:.2f} |" in page


FACTORED: list[dict[str, Any]] = [
    {"dtype": "fp32", "method": "lozo", "seq_len": 2048}, {"method": "zo-muon", "queries": 2, "seq_len": 256},
]  # fmt: skip


@pytest.mark.parametrize("form", FACTORED, ids=lambda form: form["method"])
@pytest.mark.slow
def test_what_directions_of_low_rank_take_is_priced_as_the_engine_issues_it(form: dict[str, Any]) -> None:
    """Thin products, the kernels of factors, and those that orthogonalise, which are most of ZO-Muon's step here."""
    spec = cell("OPT-125M", noise="counter", engine="resident", **form)
    known, virtual = gpu.predict(spec, CARD), virtual_step(spec, CARD).prediction
    assert virtual.step_seconds == pytest.approx(known.step_seconds, rel=0.08)
    for part in ("products", "attention", "passes", "noise", "kernels"):
        assert abs(virtual.parts[part] - known.parts[part]) <= 0.08 * known.step_seconds, part
    if spec.method == "lozo":
        assert known.parts["products"] == pytest.approx(virtual.parts["products"], rel=0.02)


@pytest.mark.slow
def test_in_the_short_ablation_a_step_without_overlap_is_longer_by_what_the_engines_own_schedule_says() -> None:
    """With a disk of 3 GB/s, as on two measured cores: on the virtual clock all transfers then lie between products."""
    rates = dataclasses.replace(RATES, disk_both=3e9)
    parts = campaign.load(recipes.find("campaigns", "small-cpu")).parts
    cells = next(part for part in parts if part.name == "ablation-short").load("cpu").cells
    ratios = []
    for seconds in (lambda spec: local.predict(spec, rates).step_seconds, lambda spec: virtual(spec, rates)):
        plain, serial = map(seconds, (cells[1], next(cell for cell in cells if not cell.overlap)))
        ratios.append(serial / plain)
    moved = sum(local.predict(cells[1], rates).parts[way] for way in ("upload", "offload"))
    assert serial - plain == pytest.approx(moved, rel=0.01)
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)
    assert ratios[0] > 1.2, "transfers weigh"


def virtual(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a settled step of the engine on this machine's rates."""
    with VirtualRun(spec, local.device(spec, rates), rates.disk_both) as run:
        return run.settled().prediction.step_seconds
