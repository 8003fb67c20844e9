"""CudaLanes without a GPU: fake streams and events carry vector clocks, so a missing wait between streams shows."""

import pytest
import torch

from tests.support.races import model, resident
from zobench import ZOSGD, Batch, Engine, EngineConfig
from zobench.engine.transfers.lanes import CudaLanes
from zobench.machine.accelerator import Accelerator
from zobench.models.weights import RandomWeights


class Stream:
    """A stream's clock: for each stream, how much of its work is known to be done before this one's next operation."""

    made = 0
    current = None

    def __init__(self):
        Stream.made += 1
        self.name, self.clock = Stream.made, {}

    def __enter__(self):
        self.previous, Stream.current = Stream.current, self

    def __exit__(self, *_):
        Stream.current = self.previous

    def wait_event(self, event):
        for name, time in event.clock.items():
            self.clock[name] = max(self.clock.get(name, 0), time)


class Event:
    """Its clock is its last record's, which is what a wait that is issued now is for."""

    def __init__(self, stream):
        self.record(stream)

    def record(self, stream):
        stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        self.clock = dict(stream.clock)

    def elapsed_time(self, other):
        return 1.0


@pytest.fixture
def fake_cuda(monkeypatch):
    Stream.current = Stream()
    monkeypatch.setattr(Accelerator, "stream", lambda self: Stream())
    monkeypatch.setattr(Accelerator, "mark", lambda self, stream, timed=True: Event(stream))
    monkeypatch.setattr(Accelerator, "current_stream", lambda self: Stream.current)
    monkeypatch.setattr(Accelerator, "synchronize", lambda self: None)


class Watched(CudaLanes):
    """Notes for each slot and host block who touched it last, and fails if the next one does not wait for that."""

    def __init__(self):
        super().__init__("cuda:0")
        self.last = {}
        self.unordered = []

    def submit(self, op, action, after):
        def watched():
            stream = Stream.current
            touched = [("slot", op.slot)] + ([("host", op.block)] if op.kind in ("upload", "offload") else [])
            for buffer in touched:
                name, time = self.last.get(buffer, (stream.name, 0))
                if name != stream.name and stream.clock.get(name, 0) < time:
                    self.unordered.append((op.kind, op.block, buffer))
                self.last[buffer] = (stream.name, stream.clock.get(stream.name, 0) + 1)
            action()

        return super().submit(op, watched, after)


def trace(lanes, **config):
    skeleton, ids = model(5), torch.arange(10).view(1, 10)
    batch, method, numbers = Batch(ids, ids), ZOSGD(lr=1e-2, seed=3, weight_decay=0.1), []
    with Engine(skeleton, EngineConfig(**config), weights=RandomWeights(skeleton, 0), lanes=lanes) as engine:
        for _ in range(3):
            result = method.step(engine, batch)
            numbers += [result.loss, result.projected_grad]
        numbers.append(engine.evaluate(batch))
        numbers.append(method.step(engine, batch).loss)
        return numbers, {name: tensor.numpy().tobytes() for name, tensor in engine.named_tensors()}


@pytest.mark.parametrize("switches", [{}, {"reusable_memory": False}, {"fused_update": False}], ids=str)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_streams_wait_for_each_other_wherever_they_share_a_buffer(fake_cuda, slots, switches):
    lanes = Watched()
    assert trace(lanes, slots=slots, **switches) == resident(5)
    assert lanes.unordered == []
    assert len(lanes._streams) in (0, 2)  # closed, or upload and offload; computes stay on the caller's stream


def test_without_the_waits_the_fake_streams_see_it(fake_cuda, monkeypatch):
    monkeypatch.setattr(Stream, "wait_event", lambda self, event: None)
    lanes = Watched()
    trace(lanes, slots=2)
    assert {kind for kind, _, _ in lanes.unordered} >= {"upload", "compute", "offload"}


def test_the_timeline_has_every_operation_since_recording_began(fake_cuda):
    lanes, skeleton, ids = Watched(), model(3), torch.arange(10).view(1, 10)
    with Engine(skeleton, EngineConfig(slots=2), weights=RandomWeights(skeleton, 0), lanes=lanes) as engine:
        engine.evaluate(Batch(ids, ids))
        engine.record()
        engine.evaluate(Batch(ids, ids))
        kinds = [kind for _, kind, *_ in engine.timeline()]
        assert sorted(kinds) == ["compute"] * 3 + ["offload"] * 3 + ["upload"] * 3
        engine.evaluate(Batch(ids, ids))
        assert engine.timeline() == []
