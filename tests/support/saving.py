"""All that happened to an engine's weights, and what is restored from a snapshot."""

from zobench.durable.snapshot import SnapshotStart
from zobench.engine.base import BASE, PassRecord
from zobench.training.assemble import tuner


class Recorder:
    """All that happened to an engine's weights, as moments."""

    def __init__(self, engine):
        self.moments = []
        self._watch(engine, "probe", lambda batch, points: () if list(points) == [BASE] else tuple(points))
        for name in ("evaluate", "tangent"):
            self._watch(engine, name, lambda *_: ())
        commit = engine.commit

        def noted(entries):
            points, earlier = self.moments[-1]
            self.moments[-1] = points, (*earlier, *entries)
            commit(entries)

        engine.commit = noted

    def _watch(self, engine, name, points_of):
        original = getattr(engine, name)

        def watched(*args):
            self.moments.append((points_of(*args), ()))
            return original(*args)

        setattr(engine, name, watched)

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
