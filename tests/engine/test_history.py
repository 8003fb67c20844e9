"""Looking at some points only, and going over a run again without forwards, leave the very bits of the run itself."""

import threading
import time

import pytest
import torch

from tests.support.devices import CUDA, on_devices
from tests.support.parity import batches_of, engine_of
from tests.support.reference import g_of
from tests.support.watched import before
from zobench import Entry, Point, RunSpec
from zobench.engine.base import PassRecord
from zobench.engine.updates import replay
from zobench.engine.updates.rules import Momentum
from zobench.engine.weights.tiers import allocate
from zobench.testing.local import Kept

STEPS, EPS = 6, 1e-3
ENGINES = {
    "resident": {"placement": "resident"},
    "resident counter": {"placement": "resident", "noise": "counter"},
    "pageable": {},
    "disk": {"tier": "disk"},
    "no fused update": {"fused_update": False},
    "out of place": {"out_of_place": True},
    "fp8 wire out of place": {"wire": "fp8", "out_of_place": True},
    "fp8 wire": {"wire": "fp8"},
    "counter fp8 wire": {"wire": "fp8", "noise": "counter"},
    "counter": {"noise": "counter"},
    "every 4": {"noise": "counter", "writeback_every": 4},
    "resident every 4": {"placement": "resident", "noise": "counter", "writeback_every": 4},
    "never": {"noise": "counter", "writeback_every": "inf"},
    "tile": {"noise": "counter", "granularity": "tile"},
    "one resident block": {"noise": "counter", "resident_blocks": 1},
}


ENGINES_ON_CUDA = {
    "resident": {"placement": "resident"},
    "resident counter": {"placement": "resident", "noise": "counter"},
    "pinned": {"tier": "pinned"},
    "pinned counter": {"tier": "pinned", "noise": "counter"},
    "pageable": {"tier": "pageable"},
    "disk counter every 4": {"tier": "disk", "noise": "counter", "writeback_every": 4},
    "tile": {"tier": "pinned", "noise": "counter", "granularity": "tile"},
}
ENGINES_ON = {"cpu": ENGINES, CUDA: ENGINES_ON_CUDA}


def batches(name, count=STEPS):
    return batches_of(RunSpec(model=name, batch_size=2, seq_len=17, seed=1), count)


def pairs(seeds):
    return tuple(Point(seed, scale) for seed in seeds for scale in (EPS, -EPS))


def entries_of(step, points, losses):
    gs = [g_of(plus, minus, EPS) for plus, minus in zip(losses[::2], losses[1::2], strict=True)]
    return tuple(
        Entry(step=step, seed=point.seed, g=g / len(gs), lr=1e-3, weight_decay=0.1 if n == 0 else 0.0)
        for n, (point, g) in enumerate(zip(points[::2], gs, strict=True))
    )


def run(engine, name, queries, evaluated=3):
    """The moments of a run of STEPS steps with one evaluation among them, and the losses."""
    moments, losses = [], []
    for step, batch in enumerate(batches(name)):
        points = pairs([100 * step + query for query in range(queries)])
        losses.append(engine.probe(batch, points))
        entries = entries_of(step, points, losses[-1]) if step != 2 else ()  # a step whose g was not finite
        engine.commit(entries)
        moments.append(PassRecord(points=points, entries=entries))
        if step == evaluated:
            engine.evaluate(batch)
            moments.append(PassRecord())
    return moments, losses


def assert_equal_from_here(first, other, name):
    """Also what is pending, and the position in every stream, as the next steps show."""
    for step, batch in enumerate(batches(name, 2), start=STEPS):
        points = pairs([9_000 + step])
        losses = first.probe(batch, points)
        assert other.probe(batch, points) == losses
        for engine in (first, other):
            engine.commit(entries_of(step, points, losses))
    mine, its = dict(first.named_tensors()), dict(other.named_tensors())
    assert all(torch.equal(mine[key], its[key]) for key in mine)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_a_look_at_some_points_gives_the_numbers_of_a_look_at_all(name, tied, config, queries):
    with (
        engine_of(name, tied=tied, **config) as whole,
        engine_of(name, tied=tied, **config) as plus,
        engine_of(name, tied=tied, **config) as minus,
    ):
        for step, batch in enumerate(batches(name)):
            points = pairs([100 * step + query for query in range(queries)])
            losses = whole.probe(batch, points)
            assert plus.probe(batch, points, wanted_indices=range(0, 2 * queries, 2)) == losses[::2]
            assert minus.probe(batch, points, wanted_indices=range(1, 2 * queries, 2)) == losses[1::2]
            for engine in (whole, plus, minus):
                engine.commit(entries_of(step, points, losses))
        for engine in (plus, minus):
            mine, its = dict(whole.named_tensors()), dict(engine.named_tensors())
            assert all(torch.equal(mine[key], its[key]) for key in mine)


@pytest.mark.parametrize("width", [32, 16])
@pytest.mark.parametrize(("device", "engine"), on_devices(ENGINES_ON))
@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_a_run_is_retraced_bit_for_bit(name, device, engine, width):
    config = {"device": device, **ENGINES_ON[device][engine]}
    dtype = {32: "fp32", 16: {"cpu": "bf16", CUDA: "fp16"}[device]}[width]
    with engine_of(name, dtype, **config) as ran, engine_of(name, dtype, **config) as again:
        moments, _ = run(ran, name, queries=2)
        again.retrace(moments)
        assert again.journal == ran.journal
        assert_equal_from_here(ran, again, name)


def test_a_run_of_several_windows_is_retraced_bit_for_bit(monkeypatch):
    monkeypatch.setattr(replay, "RETRACED", 2)
    with engine_of() as ran, engine_of() as again:
        moments, _ = run(ran, "opt-tiny", queries=1)
        assert len(moments) > 2
        again.retrace(moments)
        assert_equal_from_here(ran, again, "opt-tiny")


@pytest.mark.parametrize("rule", [None, Momentum(0.9)], ids=["sgd", "momentum"])
@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_a_run_goes_on_from_units_read_at_different_steps(config, rule):
    """Half of the units as they were after two moments, half after five: each is retraced from its own position."""
    if rule is not None and (config.get("wire", "none") != "none" or config.get("writeback_every", 1) != 1):
        pytest.skip("a rule's state travels as it is, at every step")
    name, cuts = "opt-tiny", (2, 5)
    with engine_of(name, options={"rule": rule}, **config) as ran:
        moments, kept = [], None
        for step, batch in enumerate(batches(name)):
            points = pairs([100 * step])
            entries = entries_of(step, points, ran.probe(batch, points))
            ran.commit(entries)
            moments.append(PassRecord(points=points, entries=entries))
            if len(moments) == cuts[0]:
                ran.drain()
                kept = Kept(ran)
            elif len(moments) == cuts[1]:
                ran.drain()
                later = Kept(ran)
                for unit in ran.units[::2]:
                    kept.positions[unit.name] = later.positions[unit.name]
                    kept.bytes |= {unit.name: later.bytes[unit.name]} if unit.name in later.bytes else {}
        assert len({position.passes for position in kept.positions.values()}) == 2
        with engine_of(name, options={"rule": rule, "start": kept}, **config) as again:
            again.retrace(moments, kept)
            assert_equal_from_here(ran, again, name)


def test_units_read_between_a_pass_and_its_updates_get_these_before_the_next_pass():
    """A wire of 16 bits rounds what was written, so when it is written shows in the weights."""
    config = {"placement": "offload", "tier": "pageable", "wire": "fp16", "fused_update": False}
    with engine_of(**config) as ran:
        moments, kept = [], None
        for step, batch in enumerate(batches("opt-tiny")):
            points = pairs([100 * step])
            entries = entries_of(step, points, ran.probe(batch, points))
            if step == 2:
                ran.drain()
                kept = Kept(ran)
            ran.commit(entries)
            moments.append(PassRecord(points=points, entries=entries))
        with engine_of(options={"start": kept}, **config) as again:
            again.retrace(moments, kept)
            assert_equal_from_here(ran, again, "opt-tiny")


@pytest.mark.parametrize(("device", "engine"), on_devices(ENGINES_ON))
def test_units_are_read_by_another_thread_before_the_step_touches_them(device, engine):
    config, dtype = {"device": device, **ENGINES_ON[device][engine]}, {"cpu": "fp32", CUDA: "fp16"}[device]
    with engine_of(dtype=dtype, **config) as ran:
        run(ran, "opt-tiny", queries=1)
        ran.drain()
        kept, locks = Kept(ran), {unit.name: threading.Lock() for unit in ran.units}
        early, done = {}, set()

        def capture(unit):
            with locks[unit.name]:
                if unit.name not in done and unit.name in kept.bytes:
                    early[unit.name] = allocate(ran.kept_bytes(unit))
                    ran.read(unit, early[unit.name])
                done.add(unit.name)

        ran.before_change = capture
        reader = threading.Thread(target=lambda: [capture(unit) for unit in ran.units])
        reader.start()
        ran.probe(batches("opt-tiny")[0], pairs([7]))
        reader.join()
        assert all(torch.equal(early[name], kept.bytes[name]) for name in kept.bytes)


def test_what_is_read_at_rest_waits_for_its_write_back(monkeypatch):
    with engine_of() as engine:
        before(monkeypatch.setattr, engine.pipeline.tier, "offload", lambda *_: time.sleep(0.02))
        run(engine, "opt-tiny", queries=1)
        early = Kept(engine).bytes
        engine.drain()
        late = Kept(engine).bytes
        assert all(torch.equal(early[name], late[name]) for name in late)
