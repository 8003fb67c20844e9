"""The pipeline against an emulator of its lanes: every legal order gives the same bits, planted bugs show."""

import dataclasses
import itertools
import mmap
import threading
import weakref

import pytest
import torch

from tests.support.emulator import EmulatedLanes, RaceError
from tests.support.races import model, resident, trace
from zobench import ZOSGD, Batch, Engine, EngineConfig, Entry, models
from zobench.cost.clock import Clock
from zobench.engine.directions.in_place import InPlace
from zobench.engine.transfers import schedule
from zobench.engine.transfers.lanes import ThreadLanes
from zobench.engine.transfers.pipeline import Pipeline
from zobench.engine.weights.tiers import HostTier
from zobench.models.weights import RandomWeights

MOODS = ("random", "eager", "slow-upload", "slow-offload")
SWITCHES = [
    {name: False for name, off in zip(("overlap", "reusable_memory", "fused_update"), offs, strict=True) if off}
    for offs in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize(("n_blocks", "slots"), list(itertools.product((1, 2, 3, 5), (1, 2, 3))))
def test_every_interleaving_gives_the_bits_of_the_resident_run(n_blocks, slots, switches):
    for seed, mood in enumerate(MOODS if len(switches) < 2 else MOODS[:2]):
        lanes = EmulatedLanes(seed, mood)
        assert trace(n_blocks, lanes=lanes, slots=slots, **switches) == resident(n_blocks), mood


def drop(kind, cause):
    """The bug of not waiting: operations of ``kind`` forget their dependencies on ``cause``."""

    def corrupt(op):
        if op.kind != kind:
            return op
        return dataclasses.replace(op, after=tuple(key for key in op.after if key[0] != cause))

    return corrupt


def wrong_slot(op):
    """The bug of n_blocks % n_slots != 0: block 3 (the first after a full round) lands in its neighbour's slot."""
    return dataclasses.replace(op, slot=(op.slot + 1) % 2) if op.block == 3 else op


PLANTED = {
    "compute does not wait for its upload": drop("compute", "upload"),
    "update does not wait for its upload": drop("update", "upload"),
    "offload does not wait for its compute": drop("offload", "compute"),
    "offload does not wait for its update": drop("offload", "update"),
    "upload does not wait for the slot's offload": drop("upload", "offload"),
    "a block lands in its neighbour's slot": wrong_slot,
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, monkeypatch):
    original = schedule.traversal

    def buggy(*args, **kwargs):
        return tuple(PLANTED[bug](op) for op in original(*args, **kwargs))

    monkeypatch.setattr(schedule, "traversal", buggy)
    verdicts = [found(5, seed, mood, fused_update=False) for mood in MOODS for seed in range(3)]
    assert any(verdicts), f"no interleaving showed: {bug}"


def found(n_blocks, seed, mood, **config):
    """Whether the emulator sees a race or the numbers differ. Any other error is a fault of the test."""
    try:
        return trace(n_blocks, lanes=EmulatedLanes(seed, mood), slots=2, **config) != resident(n_blocks)
    except RaceError:
        return True


def upload_neighbour(original):
    return lambda self, unit, block, slot: original(self, unit, min(block + 1, 4) if block == 3 else block, slot)


def forget_that_it_changed(original):
    def offload(self, unit, block, slot):
        unit.dirty = unit.dirty and block != 2
        original(self, unit, block, slot)

    return offload


def skip_one_replay(original):
    def begin(self, unit):
        if unit.name.endswith("layers.1") and len(self._journal) == 2:
            unit.applied = 2
        return original(self, unit)

    return begin


def replay_twice(original):
    def begin(self, unit):
        if unit.name.endswith("layers.0") and unit.applied == 1 and len(self._journal) == 2:
            original(self, unit)
            unit.applied, self._turn = 1, None
        return original(self, unit)

    return begin


ENGINE_BUGS = {
    "a block is uploaded in place of another": (Pipeline, "_upload", upload_neighbour),
    "a changed block is not written back": (Pipeline, "_offload", forget_that_it_changed),
    "one block misses an update": (InPlace, "_begin", skip_one_replay),
    "one block is updated twice": (InPlace, "_begin", replay_twice),
}


@pytest.mark.parametrize("bug", ENGINE_BUGS)
def test_a_bug_planted_in_the_engine_changes_the_numbers(bug, monkeypatch):
    resident(5)  # before the bug is there
    owner, name, plant = ENGINE_BUGS[bug]
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    assert found(5, 0, "random")


def failing_offload(blocks):
    def offload(self, block, slot, first=0, original=HostTier.offload):
        if block in blocks:
            raise OSError("the link is gone")
        original(self, block, slot, first)

    return offload


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_write_back_that_failed_is_never_swallowed(block, monkeypatch):
    monkeypatch.setattr(HostTier, "offload", failing_offload({block}))
    skeleton = model(3)
    engine = Engine(skeleton, EngineConfig(slots=3), weights=RandomWeights(skeleton, 0))
    engine.commit([Entry(step=0, seed=1, g=1.0, lr=1.0)])
    with pytest.raises(OSError, match="the link is gone"):
        engine.flush()
    with pytest.raises(OSError, match="the link is gone"):
        engine.close()


def test_after_an_interruption_between_two_blocks_it_says_so_too():
    skeleton = model(3)
    ids = torch.arange(10).view(1, 10)
    with Engine(skeleton, EngineConfig(slots=2), weights=RandomWeights(skeleton, 0)) as engine:
        second = skeleton.model.decoder.layers[1]
        inner, second.forward = second.forward, None
        with pytest.raises(TypeError):
            engine.evaluate(Batch(ids, ids))
        second.forward = inner
        with pytest.raises(RuntimeError, match="must not be used after an error in a step"):
            engine.flush() or engine.evaluate(Batch(ids, ids))


class Counted:
    """Counts what the pipeline does, to show that each switch really switches something."""

    def __init__(self, monkeypatch):
        self.calls = {"upload": 0, "offload": 0, "allocate": 0}
        self.threads = {"upload": set(), "offload": set()}
        for name in ("upload", "offload"):
            monkeypatch.setattr(HostTier, name, self.watch(name, getattr(HostTier, name)))

    def watch(self, name, original):
        def call(tier, block, slot, first=0):
            self.calls[name] += 1
            self.threads[name].add(threading.current_thread().name)
            original(tier, block, slot, first)

        return call


def counted_steps(monkeypatch, **config):
    """What happens in two steady steps of a model of four blocks in two slots."""
    counted, skeleton, ids = Counted(monkeypatch), model(4), torch.arange(10).view(1, 10)
    with Engine(skeleton, EngineConfig(slots=2, **config), weights=RandomWeights(skeleton, 0)) as engine:
        slot = engine.pipeline._new_slot
        engine.pipeline._new_slot = lambda nbytes: (
            counted.calls.update(allocate=counted.calls["allocate"] + 1),
            slot(nbytes),
        )[1]
        method = ZOSGD(lr=1e-3)
        method.step(engine, Batch(ids, ids))
        engine.pipeline.drain()
        before = dict(counted.calls)
        for _ in range(2):
            method.step(engine, Batch(ids, ids))
        engine.pipeline.drain()
        return {name: counted.calls[name] - before[name] for name in before}, counted.threads


LANES = {"upload": {"zobench-upload"}, "offload": {"zobench-offload"}}
MAIN = {name: {"MainThread"} for name in LANES}


@pytest.mark.parametrize(
    ("switches", "moves", "expected"),
    [({}, 8, LANES), ({"fused_update": False}, 16, LANES), ({"overlap": False}, 8, MAIN)],
    ids=str,
)
def test_how_often_and_by_whom_each_block_is_moved_in_two_steps(switches, moves, expected, monkeypatch):
    """As published once per step, by lanes of their own, into slots that stay."""
    calls, threads = counted_steps(monkeypatch, **switches)
    assert calls == {"upload": moves, "offload": moves, "allocate": 0}
    assert threads == expected


def test_without_reusable_memory_each_tensor_of_each_block_is_allocated_by_its_upload_and_freed_after_its_offload():
    """Pages of its own, which the system gets back: no allocator keeps them."""
    skeleton, ids = model(4), torch.arange(10).view(1, 10)
    tensors, live, taken = sum(len(list(b.parameters())) for b in models.blocks(skeleton)), set(), []
    with Engine(skeleton, EngineConfig(slots=2, reusable_memory=False), weights=RandomWeights(skeleton, 0)) as engine:
        allocate = engine.pipeline._new_slot

        def watched(nbytes):
            memory = allocate(nbytes)
            taken.append(memory.data_ptr() % mmap.PAGESIZE)
            live.add(number := len(taken))
            weakref.finalize(memory, live.discard, number)
            return memory

        engine.pipeline._new_slot = watched
        for steps in (1, 2, 3):
            ZOSGD(lr=1e-3).step(engine, Batch(ids, ids))
            engine.pipeline.drain()
            assert (len(taken), len(live)) == (tensors * steps + tensors // 2, tensors // 2), "2 of 4 blocks wait"
    assert set(taken) == {0}


@pytest.mark.parametrize("granularity", ["block", "linear"])
def test_what_computes_without_transfers_allocates_nothing_and_goes_on_as_if_it_had_not(granularity):
    skeleton, ids, taken = model(4), torch.arange(10).view(1, 10), []
    config = EngineConfig(slots=2, reusable_memory=False, granularity=granularity, noise="counter")
    with Engine(skeleton, config, weights=RandomWeights(skeleton, 0)) as engine:
        loss, allocate = engine.evaluate(Batch(ids, ids)), engine.pipeline._new_slot
        with engine.compute_only():
            engine.pipeline._new_slot = taken.append
            engine.evaluate(Batch(ids, ids))
            engine.pipeline._new_slot = allocate
        assert taken == []
        assert engine.evaluate(Batch(ids, ids)) == loss


class CountedSeconds(ThreadLanes):
    """The engine's threads, each with a clock that only counts the stated seconds of what it runs."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.clocks, self.ends = seconds, {}, {}

    def _run(self, op, action, after, ticket):
        def counted():
            action()
            waits = [self.ends[earlier] for earlier in after]
            thread = threading.current_thread().name
            self.clocks[thread] = max([self.clocks.get(thread, 0.0), *waits]) + self.seconds(op)
            self.ends[ticket] = self.clocks[thread]

        super()._run(op, counted, after, ticket)


@pytest.mark.parametrize("compute", [0.5, 3.0], ids="a product of {} s".format)
def test_at_a_stated_rate_of_the_disk_no_overlap_lengthens_a_step_by_what_the_schedules_simulation_says(compute):
    """Eight blocks in three slots, the disk at a block per second: shorter and longer products than transfers."""
    n_blocks, slots, found, ids = 8, 3, {}, torch.arange(10).view(1, 10)

    def seconds(op):
        return 1.0 if op.kind in ("upload", "offload") else compute

    for overlap in (True, False):
        lanes, clock = CountedSeconds(seconds), Clock()
        simulated = [clock.run(schedule.prologue(n_blocks, slots, overlap), seconds)]
        skeleton, config = model(n_blocks), EngineConfig(tier="disk", slots=slots, overlap=overlap)
        with Engine(skeleton, config, weights=RandomWeights(skeleton, 0), lanes=lanes) as engine:
            for _ in range(5):
                ZOSGD(lr=1e-3).step(engine, Batch(ids, ids))
                engine.pipeline.drain()
                simulated.append(clock.run(schedule.step(n_blocks, slots, overlap), seconds))
                assert max(lanes.clocks.values()) == pytest.approx(simulated[-1])
        found[overlap] = simulated[-1] - simulated[-2]
    assert found == pytest.approx({True: n_blocks * max(1.0, compute), False: n_blocks * (2.0 + compute)}, rel=0.1)


def test_lanes_that_fail_to_close_leave_no_tier_open(monkeypatch):
    skeleton = model(3)
    engine = Engine(skeleton, EngineConfig(slots=2), weights=RandomWeights(skeleton, 0))
    closed, close = [], engine.pipeline.lanes.close

    def failing():
        close()
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine.pipeline.lanes, "close", failing)
    monkeypatch.setattr(engine.pipeline.tier, "close", lambda: closed.append(True))
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.pipeline.close()
    assert closed == [True]
    assert engine.pipeline.slots == []
