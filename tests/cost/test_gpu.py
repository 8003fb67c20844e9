"""zobench's own engine on GPUs that are not here: the schedule, physics, and which settings are chosen."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tests.support.rates import CALIBRATION
from tests.support.tables import published
from tools import fits as written_fits
from tools.virtual import VirtualLanes
from zobench import models
from zobench.cost import choices, footprint, gpu, hardware, interval, local, seconds, simulation, sizes
from zobench.cost.choices import TargetMachine
from zobench.cost.seconds import Rates
from zobench.engine.transfers.pipeline import Pipeline
from zobench.engine.weights.tiers import NoTier
from zobench.report import fits
from zobench.runspec import RunSpec

LANES = {"compute": 3.0, "update": 0.5, "upload": 2.0, "offload": 2.5, "head": 4.0}


def cell(model="OPT-13B", **fields):
    return models.checked(RunSpec.from_dict({"model": model, "dtype": "fp16", **fields}), "cuda:0")


def engine_step(spec, count, lanes, halt=0.0):
    """(seconds, timeline) of a settled step of the engine's own pipeline, unchanged, on virtual lanes."""
    units = [SimpleNamespace(dirty=False, buffer=None) for _ in range(count)]

    def price(op, action):
        action()
        if op.kind == "upload" and halt:
            clock.halt(halt)
        return lanes[op.kind]

    clock, ends = VirtualLanes(price), []
    pipeline = Pipeline(
        units, [8] * count, [8] * count, NoTier(), clock, lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
        slots=spec.slots, overlap=spec.overlap,
    )  # fmt: skip
    for _ in range(simulation.STEPS):
        clock.record()
        for work in ("compute",) if spec.fused_update else ("compute", "update"):
            for block, unit in enumerate(units):
                pipeline.compute(block, lambda unit=unit: setattr(unit, "dirty", True), work)
            if work == "compute":
                clock.spend(lanes["head"])
        ends.append(clock.now)
    return ends[-1] - ends[-2], clock.timeline()


@pytest.mark.parametrize(("overlap", "fused"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("count", "slots"), [(7, 3), (8, 1), (2, 3)])
@pytest.mark.parametrize("slowest", ["compute", "upload", "offload"])
def test_a_simulated_step_is_that_of_the_engines_own_pipeline_on_virtual_lanes(overlap, fused, count, slots, slowest):
    spec = cell(engine="offload", overlap=overlap, fused_update=fused, slots=slots)
    lanes = {**LANES, slowest: 7.0}
    seconds, events = engine_step(spec, count, lanes)
    assert simulation.timeline(spec, count, lanes) == (seconds, events)
    assert {kind for _, kind, *_ in events} == {"upload", "compute", "offload", *([] if fused else ["update"])}


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("slowest", ["compute", "upload", "offload"])
def test_where_each_upload_allocates_the_device_is_idle_meanwhile(slots, slowest):
    """A cudaFree waits for the device: per block one upload beside compute and offload, then the host alone."""
    spec, lanes, halt = cell(engine="offload", slots=slots), {**LANES, "head": 0.0, slowest: 7.0}, 2.0
    known, events = simulation.timeline(spec, 12, lanes, halt=halt)
    assert (known, events) == engine_step(spec, 12, lanes, halt)
    assert simulation.timeline(spec, 12, lanes, halt=halt)[0] == known
    block, upload = lanes["compute"] + lanes["offload"], lanes["upload"]
    assert known == pytest.approx(12 * (halt + (max(block, upload) if slots > 1 else block + upload)))


def test_new_pages_of_a_cpu_take_their_first_touch_and_leave_the_lanes_overlapped():
    """At a million bytes a second, beside which nothing else counts."""
    fields = {"model": "OPT-1.3B", "engine": "offload", "dtype": "fp32", "reusable_memory": False}
    spec = models.checked(RunSpec.from_dict(fields), "cpu")
    rates = dataclasses.replace(Rates.of(CALIBRATION), touch=1e6)
    blocks = 4 * models.of(spec).all_blocks
    assert local.predict(spec, rates).step_seconds == pytest.approx(blocks / 1e6, rel=0.1)
    kept = dataclasses.replace(spec, reusable_memory=True)
    assert local.predict(kept, rates).step_seconds < 0.1 * blocks / 1e6


@pytest.mark.parametrize("lanes", [{**LANES, "upload": 3.5}, {**LANES, "compute": 0.1, "head": 60.0}])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_long_model_goes_on_like_its_last_rounds(lanes, slots):
    spec = cell(engine="offload", slots=slots)
    for units in (47, 96):
        known = simulation.timeline(spec, units, lanes)[0]
        assert simulation.simulate(spec, units, lanes) == pytest.approx(known, rel=1e-9)


STREAMED = (
    {}, {"noise": "counter", "granularity": "tile", "writeback_every": "inf"}, {"overlap": False},
    {"fused_update": False}, {"batch_size": 2, "accumulate": 2}, {"method": "zo-sgd-cons"},
    {"tier": "disk"}, {"wire": "fp8"},
    {"batch_size": 8, "gpus": 2, "parallel": "pertp"},
)  # fmt: skip


@pytest.mark.parametrize("form", STREAMED, ids=lambda form: "-".join(map(str, form.values())) or "mezo")
def test_a_timeline_ends_when_the_predicted_step_does(form):
    """With the head, which is no operation, at the end of each way through the model; an update comes after it."""
    spec, card = cell(engine="offload", **form), hardware.load("a100-80gb-sxm")
    known, costs = gpu.predict(spec, card, disk=3e9), gpu.Costs(spec, card, 3e9)
    events = costs.timeline()
    last = max(end for lane, _, _, _, end in events if lane == "compute")
    head = sum(costs.outside().values()) / sizes.uploads(spec) if spec.fused_update else 0.0
    assert last + head == pytest.approx(known.step_seconds, rel=1e-9)
    units = footprint.streamed_layers(spec) * costs.pieces
    assert sum(kind == "compute" for _, kind, *_ in events) == units * sizes.uploads(spec)
    assert any(kind == "offload" for _, kind, *_ in events) == (costs.kept == 1 and spec.tier != "disk")


FORMS = (
    {}, {"engine": "offload", "noise": "counter", "granularity": "tile", "writeback_every": "inf"},
    {"engine": "offload", "batch_size": 8, "gpus": 2, "parallel": "pertp"}, {"engine": "offload", "overlap": False},
    {"engine": "offload", "dtype": "fp32", "autocast": "bf16", "wire": "fp8"}, {"method": "fo-adam"},
    {"queries": 4, "noise": "counter"},
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())) or "mezo")
@pytest.mark.parametrize("name", ["a100-80gb-sxm", "t4"])
def test_nothing_is_predicted_faster_than_the_data_sheet(form, name):
    """Independently of the predictor: two operations per weight and token at the peak, and every byte over the link."""
    spec, card = cell(**form), hardware.load(name)
    known = gpu.predict(spec, card)
    model = models.of(spec)
    peak = getattr(card, spec.dtype if spec.autocast == "none" else spec.autocast)
    tokens = spec.batch_size * spec.seq_len / (spec.gpus if spec.parallel == "ddp" else 1)
    assert known.step_seconds >= 2 * seconds.passes(spec) * tokens * model.all_blocks / peak
    moved = footprint.streamed_layers(spec) * model.block * footprint.wire_width(spec)
    assert known.step_seconds >= moved / spec.gpus / card.pcie
    assert known.range[0] < known.tokens_per_second < known.range[1]
    device = footprint.memory(spec)[0]
    assert device + card.driver <= known.device_bytes <= 1.05 * device + card.driver + (64 << 20)


@pytest.mark.parametrize(
    ("form", "bound"),
    [
        ({"noise": "counter", "batch_size": 8}, "products"),
        ({"noise": "torch", "seq_len": 64}, "noise"),
        ({"engine": "offload", "noise": "counter", "seq_len": 64}, "link (upload)"),
        ({"engine": "offload", "tier": "disk", "noise": "counter"}, "disk"),
        ({"model": "OPT-125M", "seq_len": 16, "noise": "counter"}, "kernels"),
    ],
)
def test_what_bounds_a_step_is_named(form, bound):
    assert gpu.predict(cell(**form), hardware.load("a100-80gb-sxm"), disk=3e9).bound == bound


def test_a_switch_that_is_off_never_makes_a_step_shorter():
    card = hardware.load("a100-80gb-sxm")
    whole = gpu.predict(cell(engine="offload"), card).step_seconds
    for switch in ("overlap", "reusable_memory", "fused_update"):
        assert gpu.predict(cell(engine="offload", **{switch: False}), card).step_seconds > whole, switch


PLACES = [("OPT-175B", "rtx-4090", 512e9, 0.0), ("OPT-66B", "rtx-4090", 64e9, 5e9), ("OPT-1.3B", "t4", 32e9, 0.0)]


@pytest.mark.parametrize(("model", "name", "host", "disk"), PLACES)
def test_the_best_settings_fit_and_none_that_fit_are_faster(model, name, host, disk):
    place = TargetMachine(gpu=hardware.load(name), host=host, disk=disk)
    best, *others = choices.choices({"model": model, "dtype": "fp16"}, place)
    assert not best.lacks
    assert best.prediction.device_bytes <= place.gpu.memory * footprint.MARGIN
    assert best.prediction.host_bytes < host
    fitting = [choice.prediction.step_seconds for choice in others if not choice.lacks]
    assert best.prediction.step_seconds <= interval.SAME * min(fitting)
    alternatives = choices.alternatives(best, place)
    lossless = [choice for choice in alternatives if choice.spec.wire == best.spec.wire and not choice.lacks]
    assert all(choice.prediction.step_seconds * interval.SAME >= best.prediction.step_seconds for choice in lossless)
    assert len({choice.spec.hash for choice in (best, *alternatives)}) == len(alternatives) + 1


def test_a_model_that_fits_nowhere_says_what_lacks():
    place = TargetMachine(gpu=hardware.load("rtx-4090"), host=64e9)
    ways = choices.choices({"model": "OPT-66B", "dtype": "fp16"}, place)
    assert [choice.shortage for choice in ways] == sorted(choice.shortage for choice in ways)
    assert (ways[0].spec.engine, ways[0].lacks) == ("offload", "host memory")
    assert {choice.lacks for choice in ways if choice.spec.engine == "resident"} == {"device memory"}


def test_what_the_user_names_is_not_chosen_otherwise():
    place = TargetMachine(gpu=hardware.load("a100-80gb-sxm"), host=256e9)
    ways = choices.choices({"model": "OPT-30B", "dtype": "bf16", "engine": "offload", "writeback_every": 16}, place)
    assert {(choice.spec.dtype, choice.spec.engine, choice.spec.writeback_every) for choice in ways} == {
        ("bf16", "offload", 16)
    }
    with pytest.raises(ValueError, match="`writeback_every=16` needs noise=counter, but got noise=torch"):
        choices.choices({"model": "OPT-30B", "noise": "torch", "writeback_every": 16}, place)


def test_the_page_of_what_fits_where_holds_what_is_predicted():
    """One column whole: the other columns and hosts are other files of the same kind."""
    host = fits.HOSTS[0]
    whole = written_fits.PAGE.read_text(encoding="utf-8")
    page = whole.partition(f"### {host} GB of host memory")[2].partition("###")[0]
    rows = [
        [text.strip() for text in line.strip("| ").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    column = fits.GPUS.index("rtx-4090") + 1
    assert whole.endswith(written_fits.BEGIN + written_fits.page(fits.stored()))
    written = {row[0]: row[column] for row in rows[2:]}
    assert written == {model: written_fits.fit(model, "rtx-4090", host).text for model in fits.MODELS}
    shares = {fit.gpu: fit.share for fit in fits.stored() if fit.host == host}
    assert shares == {name: gpu.errors(hardware.load(name).errors)["throughput"] for name in fits.GPUS}
    least, most = (f"{100 * end(shares.values()):.1f} %" for end in (min, max))
    assert f"{least} for\nthe A100 80 GB, {most} for the others" in whole


def test_the_page_says_how_predictions_did_against_an_h100():
    """Fifteen of sixteen within the range, memory at most 6 % too small; the data sheet alone did worse."""
    runs = [run for run in published() if run.environment.machine == "h100-80gb-hbm3-16c-61a2a7"]
    card = hardware.load("h100-sxm")
    predictions = [gpu.predict(run.spec, card) for run in runs]
    rates = [run.tokens_per_step / run.step_seconds for run in runs]
    within = [low <= rate <= high for rate, (low, high) in zip(rates, (p.range for p in predictions), strict=True)]
    assert (len(runs), sum(within), predictions[0].share) == (16, 15, pytest.approx(0.251))
    memory = [p.device_bytes / run.memory["device_wide_peak_bytes"] for p, run in zip(predictions, runs, strict=True)]
    assert 0.94 <= min(memory) <= max(memory) <= 1
