"""The real engine on a virtual clock: its schedule is the simulated one, its seconds those of the formulas."""

import dataclasses
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import RATES
from zobench import models, recipes
from zobench.cost import Rates, gpu, hardware, local
from zobench.cost.clock import Clock
from zobench.engine.transfers import schedule
from zobench.engine.transfers.schedule import Op
from zobench.recipes import campaign
from zobench.runspec import RunSpec
from zobench.training.virtual import VirtualRun, virtual_step

DOCS = Path(__file__).parents[2] / "docs"
CARD = hardware.load("a100-80gb-sxm")
EXACT = dataclasses.replace(
    CARD, sms=1.0, clock=2.0**37, fp32=2.0**44, tf32=2.0**44, fp16=2.0**44, bf16=2.0**44, fp32_products=1.0,
    fp16_products=1.0, fused_attention=1.0, fp32_attention=1.0, idle_tiles=0.0, hbm=2.0**37, passes=1.0, losses=1.0,
    normals=1.0, counter_normals=1.0, narrow_normals=1.0, kernel=2.0**-18, malloc=2.0**-16,
)  # fmt: skip
"""A GPU whose rates are powers of two, so that sums of what its operations take are exact in any order."""


def cell(model: str = "opt-tiny", **fields: Any) -> RunSpec:
    return models.checked(RunSpec.from_dict({"model": model, "dtype": "fp16", "seq_len": 48, **fields}), "cuda:0")


def seconds_by_step(run: VirtualRun, steps: int) -> tuple[list[dict[Any, list[float]]], list[float]]:
    """What each operation of each step took, by its key, in turn, and what the compute lane did besides, by the
    operation before which it came, or the end; and when each step ended."""
    taken, ends = list[dict[Any, list[float]]](), list[float]()
    price, spend, beside = run.lanes._price, run.lanes.spend, [0.0]

    def besides(seconds: float) -> None:
        beside[0] += seconds
        spend(seconds)

    def priced(op: Op, action: Any) -> float:
        seconds = price(op, action)
        if op.kind == "compute":
            taken[-1]["beside", op.key].append(beside[0])
            beside[0] = 0.0
        taken[-1][op.key].append(seconds)
        return seconds

    run.lanes._price, run.lanes.spend = priced, besides  # type: ignore[method-assign]
    for _ in range(steps):
        taken.append(defaultdict(list))
        run.step()
        taken[-1]["end"].append(beside[0])
        beside[0] = 0.0
        ends.append(run.lanes.now)
    return taken, ends


def simulated(run: VirtualRun, taken: list[dict[Any, list[float]]]) -> list[float]:
    """When each step ends by the schedule alone: no engine, no pipeline, no lanes."""
    spec, count = run.spec, len(run._sizes)
    ring = schedule.places(run._sizes if spec.reusable_memory else [1] * count, spec.slots)
    clock, ends = Clock(), []
    ops = schedule.traversal(count, spec.slots, spec.overlap, ring=ring)
    before = schedule.prologue(count, spec.slots, spec.overlap, ring)
    for seconds in taken:
        in_turn: list[tuple[Op, float]] = []
        for op in (*before, *ops):
            if op.kind == "compute":
                in_turn.append((Op("beside", 0, 0, "compute"), seconds["beside", op.key].pop(0)))
            in_turn.append((op, seconds[op.key].pop(0)))
        in_turn.append((Op("beside", 0, 0, "compute"), seconds["end"].pop()))
        for op, length in in_turn:
            halt = run._costs.malloc if op.kind == "upload" else 0.0
            clock.run([op], lambda _, length=length: length, lambda _, halt=halt: halt)  # type: ignore[misc]
        ends.append(clock.lanes["compute"])
        before = ()
    return ends


FORMS: list[dict[str, Any]] = [
    {}, {"slots": 1}, {"overlap": False}, {"noise": "counter"}, {"noise": "counter", "writeback_every": 3},
    {"noise": "counter", "writeback_every": "inf", "queries": 2}, {"tier": "disk"}, {"resident_blocks": 1},
    {"noise": "counter", "granularity": "linear", "slots": 2}, {"noise": "counter", "granularity": "tile"},
    {"reusable_memory": False},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())) or "zo2")
def test_the_real_engine_on_virtual_lanes_takes_the_seconds_of_the_simulated_schedule(form: dict[str, Any]) -> None:
    with VirtualRun(cell(engine="offload", **form), EXACT, 2.0**33) as run:
        taken, ends = seconds_by_step(run, 5)
        assert simulated(run, taken) == ends
        assert ends == sorted(ends)
        assert len({*ends}) == 5


LARGER: list[dict[str, Any]] = [
    {"dtype": "fp32"}, {"engine": "offload", "fused_update": False},
    {"engine": "offload", "noise": "counter", "granularity": "linear", "writeback_every": 4, "seq_len": 512},
]  # fmt: skip


@pytest.mark.parametrize("form", LARGER, ids=lambda form: "-".join(map(str, form.values())))
def test_the_formulas_say_what_the_engine_takes(form: dict[str, Any]) -> None:
    """Within 4 %: what formulas leave out is around the blocks, as kernels of the embedding and the loss."""
    spec = cell("OPT-125M", **{"seq_len": 2048, **form})
    known, found = gpu.predict(spec, CARD), virtual_step(spec, CARD)
    assert found.prediction.step_seconds == pytest.approx(known.step_seconds, rel=0.04)
    assert found.prediction.bound == known.bound
    for part in ("products", "attention", "passes", "noise", "kernels"):
        off = found.prediction.parts[part] - known.parts[part]
        assert abs(off) <= 0.04 * known.step_seconds, part
    streams = spec.engine == "offload"
    assert bool(found.timeline) == streams
    assert 0 <= found.stall <= found.prediction.step_seconds


def test_the_timeline_is_that_of_one_step() -> None:
    found = virtual_step(cell(engine="offload", noise="counter"), CARD)
    layers = models.get("opt-tiny").layers
    kinds = [kind for _, kind, *_ in found.timeline]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(("upload", "compute", "offload"), layers)
    computed = [(block, start, end) for _, kind, block, start, end in found.timeline if kind == "compute"]
    assert [block for block, *_ in computed] == list(range(layers))
    assert all(end <= after for (_, _, end), (_, after, _) in itertools.pairwise(computed))
    assert computed[-1][2] <= found.prediction.step_seconds


def test_a_rank_with_one_sign_that_is_exact_is_predicted_to_draw_twice_as_much() -> None:
    """Three moves and the update, not W + eps z and the update: OPT-1.3B on two H20s."""
    fields = {"engine": "offload", "dtype": "fp16", "batch_size": 2, "gpus": 2, "parallel": "pertp"}
    spec, card = models.checked(RunSpec(model="OPT-1.3B", **fields), "cuda"), hardware.load("h20")
    half, whole = (gpu.predict(own, card).parts["noise"] for own in (spec, spec.replace(exact=True)))
    assert 1.7 < whole / half < 2.1


def test_the_page_shows_seconds_of_several_gpus_as_they_are_predicted() -> None:
    rows = json.loads((DOCS / "ranks.json").read_text(encoding="utf-8"))
    page = (DOCS / "distzo2.md").read_text(encoding="utf-8")
    for row, (gpus, way) in zip(rows, ((1, "none"), (2, "pertp"), (4, "2d"), (8, "2d")), strict=True):
        fields = {"engine": "offload", "dtype": "fp16", "batch_size": 8, "gpus": gpus, "parallel": way}
        spec = models.checked(RunSpec(model="OPT-1.3B", **fields), "cuda")
        assert row["seconds"] == pytest.approx(gpu.predict(spec, hardware.load("h20")).step_seconds, rel=0.01)
        assert f"| {row['seconds']:.3f} | {rows[0]['seconds'] / row['seconds']:.2f} |" in page


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"method": "fo-adam"}, "a predicted timeline needs a method without a backward pass, but got"),
        ({"engine": "offload", "wire": "fp8"}, "a predicted timeline needs wire=none, but got"),
    ],
)
def test_what_has_no_timeline_says_why(form: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        virtual_step(cell(**form), CARD)


FACTORED: list[dict[str, Any]] = [
    {"dtype": "fp32", "method": "lozo", "seq_len": 2048}, {"method": "subzero", "seq_len": 256},
    {"method": "zo-muon", "queries": 2, "seq_len": 256},
]  # fmt: skip


@pytest.mark.parametrize("form", FACTORED, ids=lambda form: form["method"])
@pytest.mark.slow
def test_what_directions_of_low_rank_take_is_priced_as_the_engine_issues_it(form: dict[str, Any]) -> None:
    """Thin products, the kernels of factors, and those that orthogonalise, which are most of ZO-Muon's step here."""
    spec = cell("OPT-125M", noise="counter", engine="resident", **form)
    known, found = gpu.predict(spec, CARD), virtual_step(spec, CARD).prediction
    assert found.step_seconds == pytest.approx(known.step_seconds, rel=0.08)
    for part in ("products", "attention", "passes", "noise", "kernels"):
        assert abs(found.parts[part] - known.parts[part]) <= 0.08 * known.step_seconds, part
    if spec.method == "lozo":
        assert known.parts["products"] == pytest.approx(found.parts["products"], rel=0.02)


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
