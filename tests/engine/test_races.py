"""The pipeline against an emulator of its lanes: every legal order gives the same bits, planted bugs show.

It explores interleavings deterministically, poisons released slots and watches every access with vector clocks.
A submitted transfer does not run until somebody waits for it or the seeded scheduler picks it, so that any order which
the declared dependencies allow can happen. Two accesses to the same slot or host block, one of them a write, must be
ordered by those dependencies: if their vector clocks are not, that is a race, whether or not this order showed it.
"""

import dataclasses
import functools
import itertools
import math
import random
from dataclasses import dataclass, field

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from zobench import ZOSGD, Batch, Engine, EngineConfig, Entry, Point
from zobench.engine.transfers import schedule
from zobench.engine.weights.tiers import HostTier
from zobench.models.weights import RandomWeights

LANES = ("compute", "upload", "offload")


class RaceError(AssertionError):
    """Two unordered accesses to one buffer."""


@dataclass(eq=False)
class Job:
    """A submitted operation and its clock once it has run."""

    op: object
    action: object
    after: list
    clock: dict | None = None


@dataclass
class History:
    """The last write of a buffer and the reads since, as (lane, time on that lane, description)."""

    write: tuple | None = None
    reads: list = field(default_factory=list)


class EmulatedLanes:
    """``mood`` biases the scheduler: "random", or "slow-upload", "slow-offload", "eager" for the extremes."""

    def __init__(self, seed: int, mood: str = "random") -> None:
        self._random = random.Random(seed)
        self._mood = mood
        self._waiting: dict[str, list[Job]] = {}
        self._clocks = {lane: dict.fromkeys(LANES, 0) for lane in LANES}
        self._buffers: dict[tuple[str, int], History] = {}
        self.pipeline = None

    def submit(self, op, action, after):
        job = Job(op, action, list(after))
        if op.lane != "compute":
            self._waiting.setdefault(op.lane, []).append(job)
            self._wander()
            return job
        for earlier in job.after:
            self._force(earlier)
        self._run(job)
        self._wander()
        return job

    def drain(self):
        while jobs := self._ready():
            self._run(self._take(self._random.choice(jobs)))
        assert not any(self._waiting.values()), "operations wait for each other"

    def close(self):
        self._waiting.clear()

    def record(self):
        pass

    def timeline(self):
        return []

    def _ready(self):
        heads = [jobs[0] for jobs in self._waiting.values() if jobs]
        return [job for job in heads if all(earlier.clock is not None for earlier in job.after)]

    def _take(self, job):
        self._waiting[job.op.lane].remove(job)
        return job

    def _wander(self):
        """Runs some of the operations that could run now."""
        while jobs := [job for job in self._ready() if self._mood != f"slow-{job.op.lane}"]:
            if self._mood != "eager" and self._random.random() < 0.5:
                return
            self._run(self._take(self._random.choice(jobs)))

    def _force(self, wanted):
        """Runs operations in a random order until ``wanted`` is done; slow lanes only as far as they must."""
        while wanted.clock is None:
            jobs = self._ready()
            assert jobs, "operations wait for each other"
            quick = [job for job in jobs if self._mood != f"slow-{job.op.lane}"]
            self._run(self._take(self._random.choice(quick or jobs)))

    def _run(self, job):
        clock = self._clocks[job.op.lane]
        for earlier in job.after:
            for lane, time in earlier.clock.items():
                clock[lane] = max(clock[lane], time)
        clock[job.op.lane] += 1
        job.clock = dict(clock)
        self._watch(job.op, clock)
        job.action()
        if job.op.kind == "offload" and self.pipeline is not None and self.pipeline.slots[job.op.slot] is not None:
            self.pipeline.slots[job.op.slot].fill_(0xFF)  # NaN in every float dtype

    def _watch(self, op, clock):
        slot, host = ("slot", op.slot), ("host", op.block)
        reads = {"upload": [host], "offload": [slot]}.get(op.kind, [slot])
        writes = {"upload": [slot], "offload": [host, slot]}.get(op.kind, [slot])
        for buffer in reads:
            self._access(buffer, op, clock, write=False)
        for buffer in writes:
            self._access(buffer, op, clock, write=True)

    def _access(self, buffer, op, clock, *, write):
        history = self._buffers.setdefault(buffer, History())
        others = [history.write] if history.write else []
        for lane, time, what in others + (history.reads if write else []):
            if clock[lane] < time:
                raise RaceError(f"{op.kind} {op.block} and {what} touch {buffer} in no order")
        event = (op.lane, clock[op.lane], f"{op.kind} {op.block}")
        if write:
            self._buffers[buffer] = History(write=event)
        else:
            history.reads.append(event)


MOODS = ("random", "eager", "slow-upload", "slow-offload")
SWITCHES = [
    {name: False for name, off in zip(("overlap", "reusable_memory", "fused_update"), offs, strict=True) if off}
    for offs in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("slots", [1, 2, 3])
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
    assert any(shows(seed, mood) for mood in MOODS for seed in range(3)), f"no interleaving showed: {bug}"


def shows(seed, mood):
    """Whether the emulator sees a race or the numbers differ. Any other error is a fault of the test."""
    try:
        return trace(5, lanes=EmulatedLanes(seed, mood), slots=2, fused_update=False) != resident(5)
    except RaceError:
        return True


def test_a_write_back_that_failed_is_never_swallowed(monkeypatch):
    def failing(self, block, slot, first=0, offload=HostTier.offload):
        if block == 1:
            raise OSError("the link is gone")
        offload(self, block, slot, first)

    monkeypatch.setattr(HostTier, "offload", failing)
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


def test_after_an_update_that_broke_off_it_says_so_and_an_entry_that_cannot_be_is_refused_before(monkeypatch):
    skeleton, ids = model(3), torch.arange(10).view(1, 10)
    whole = Entry(step=0, seed=1, g=1.0, lr=1e-3)
    with Engine(skeleton, EngineConfig(placement="resident"), weights=RandomWeights(skeleton, 0)) as engine:
        loss = engine.evaluate(Batch(ids, ids))
        for changes, why in (
            ({"lr": math.nan}, "`lr` of an entry must be finite, but got nan"),
            ({"weight_decay": math.inf}, "`weight_decay` of an entry must be finite"),
            ({"part": 5}, "`part` must be one of the engine's parts, 0 to 4, but got 5"),
        ):
            with pytest.raises(ValueError, match=why):
                engine.commit([dataclasses.replace(whole, **changes)])
        with pytest.raises(ValueError, match="`part` must be one of the engine's parts, 0 to 4, but got -1"):
            engine.probe(Batch(ids, ids), [Point(1, 1e-3, part=-1)])
        assert engine.evaluate(Batch(ids, ids)) == loss
        monkeypatch.setattr(engine.arithmetic, "settle", lambda unit: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.commit([whole])
        with pytest.raises(RuntimeError, match="must not be used after an error in a step"):
            engine.evaluate(Batch(ids, ids))


@pytest.mark.parametrize("granularity", ["block", "linear"])
def test_what_computes_without_transfers_goes_on_as_if_it_had_not(granularity):
    skeleton, ids = model(4), torch.arange(10).view(1, 10)
    config = EngineConfig(slots=2, reusable_memory=False, granularity=granularity, noise="counter")
    with Engine(skeleton, config, weights=RandomWeights(skeleton, 0)) as engine:
        loss = engine.evaluate(Batch(ids, ids))
        with engine.compute_only():
            engine.evaluate(Batch(ids, ids))
        assert engine.evaluate(Batch(ids, ids)) == loss


STEPS = 3


def model(n_blocks):
    config = OPTConfig(
        num_hidden_layers=n_blocks, hidden_size=16, ffn_dim=32, num_attention_heads=2, vocab_size=40,
        max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.0, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return OPTForCausalLM(config)


def trace(n_blocks, *, lanes=None, **config):
    """Losses of three steps, an evaluation between, and the final weights."""
    skeleton = model(n_blocks)
    engine = Engine(skeleton, EngineConfig(**config), weights=RandomWeights(skeleton, 0), lanes=lanes)
    if lanes is not None:
        lanes.pipeline = engine.pipeline
    ids = torch.arange(10).view(1, 10) % 40
    batch, method, numbers = Batch(ids, ids), ZOSGD(lr=1e-2, seed=3, weight_decay=0.1), []
    with engine:
        for _ in range(STEPS):
            result = method.step(engine, batch)
            numbers += [result.loss, result.projected_grad]
        numbers.append(engine.evaluate(batch))
        numbers.append(method.step(engine, batch).loss)
        return numbers, {name: tensor.numpy().tobytes() for name, tensor in engine.named_tensors()}


@functools.cache
def resident(n_blocks):
    return trace(n_blocks, placement="resident")
