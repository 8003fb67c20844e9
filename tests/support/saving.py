"""All that happened to an engine's weights, and what is restored from a snapshot."""

from tests.support.watched import before
from zobench.durable.snapshot import SnapshotStart
from zobench.engine.base import BASE, PassRecord
from zobench.training.assemble import tuner


class Recorder:
    """All that happened to an engine's weights, as moments."""

    def __init__(self, engine):
        self.moments = []
        before(setattr, engine, "probe", lambda batch, points: self._begin(() if list(points) == [BASE] else points))
        for name in ("evaluate", "tangent"):
            before(setattr, engine, name, lambda *_: self._begin(()))
        before(setattr, engine, "commit", self._commit)

    def _begin(self, points):
        self.moments.append((tuple(points), ()))

    def _commit(self, entries):
        points, earlier = self.moments[-1]
        self.moments[-1] = points, (*earlier, *entries)

    def recorded(self):
        return [PassRecord(points=points, entries=entries) for points, entries in self.moments]


def weights_of(engine):
    named = {name: tensor.numpy().tobytes() for name, tensor in engine.named_tensors()}
    return named | {name: tensor.numpy().tobytes() for name, tensor in engine.state_tensors()}


TOLD = []


def restored(spec, path, moments):
    """The weights at the end of a run that goes on from a snapshot."""
    start = SnapshotStart(path)
    with tuner(spec, start=start) as built:
        built.engine.retrace(moments, start)
        return weights_of(built.engine)
