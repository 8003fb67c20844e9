"""All that happened to an engine's weights, and what is restored from a snapshot; and one rank of a test: runs with
checkpoints of each kind, of which rank 0 restores each alone and says whether all is equal."""

import itertools
import json
import sys
from pathlib import Path

from tests.support.parity import batches_of
from tests.support.watched import before
from zobench import RunSpec
from zobench.durable import savers
from zobench.durable.savers import Target, saving
from zobench.durable.snapshot import SnapshotStart
from zobench.engine.base import BASE, PassRecord
from zobench.parallel.world import join
from zobench.training.assemble import tuner

KINDS = ("sync", "async", "journal")
CASES = [*itertools.product(KINDS, ["sliced"], ["torch"]), *itertools.product(KINDS, ["whole"], ["counter"])]


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


def main():
    equal, folder = {}, Path(sys.argv[1])
    savers.background.GROUP = 100_000
    spec = RunSpec(
        model="opt-tiny", engine="offload", tier="pageable", gpus=2, parallel="ddp", batch_size=2, seq_len=16, lr=1e-2
    )
    with join(spec.resolve("cpu")) as world:
        for kind, transfers, noise in CASES:
            path = folder / f"{kind}-{transfers}-{noise}"
            path.mkdir(exist_ok=True)
            resolved = spec.replace(transfers=transfers, noise=noise).resolve("cpu")
            target = Target(folder=path, state=lambda step: {"run": "r"}, warn=TOLD.append, world=world)
            with tuner(resolved, world=world) as built:
                recorder = Recorder(built.engine)
                with saving(kind, built.engine.engine, target) as saver:
                    for step, batch in enumerate(batches_of(resolved, 5), start=1):
                        built.method.step(built.engine, batch)
                        if step == 2:
                            saver.begin(step)
                        saver.after_step(step)
                weights = weights_of(built.engine)
            if world.leads:
                alone = resolved.replace(gpus=1, parallel="none", transfers="auto")
                again = restored(alone, path / "snapshot-2", recorder.recorded())
                ranks = {file.name[0] for file in (path / "snapshot-2").glob("*.safetensors")}
                equal[path.name] = [again == weights, sorted(ranks)]
            world.barrier()
    if world.leads:
        (folder / "found.json").write_text(json.dumps(equal))


if __name__ == "__main__":
    main()
