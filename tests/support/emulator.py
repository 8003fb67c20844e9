"""Lanes that explore interleavings deterministically, poison released slots and watch every access with vector clocks.

A submitted transfer does not run until somebody waits for it or the seeded scheduler picks it, so that any order which
the declared dependencies allow can happen. Two accesses to the same slot or host block, one of them a write, must be
ordered by those dependencies: if their vector clocks are not, that is a race, whether or not this order showed it.
"""

import random
from dataclasses import dataclass, field

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
