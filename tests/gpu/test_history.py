"""On a CUDA device: runs are retraced bit for bit, also from units that another thread read beside the steps."""

import threading

import pytest
import torch

from tests.engine.test_history import Kept, batches, entries_of, pairs, run
from zobench import Engine, EngineConfig, models
from zobench.engine import history
from zobench.engine.base import PassRecord
from zobench.engine.tiers import allocate
from zobench.models import weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENGINES = {
    "resident": {"placement": "resident"},
    "resident counter": {"placement": "resident", "noise": "counter"},
    "pinned": {"tier": "pinned"},
    "pinned counter": {"tier": "pinned", "noise": "counter"},
    "pageable": {"tier": "pageable"},
    "disk counter every 4": {"tier": "disk", "noise": "counter", "writeback_every": 4},
    "tile": {"tier": "pinned", "noise": "counter", "granularity": "tile"},
}


def engine_of(config, **more):
    model = models.build("opt-tiny", "fp16", True)
    return Engine(model, EngineConfig(device="cuda:0", **config), weights=weights.RandomWeights(model, 3), **more)


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_a_run_is_retraced(config):
    with engine_of(config) as ran, engine_of(config) as again:
        moments, _ = run(ran, "opt-tiny", queries=2)
        history.retrace(again, moments)
        mine, its = dict(ran.named_tensors()), dict(again.named_tensors())
        assert all(torch.equal(mine[key], its[key]) for key in mine)


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_units_are_read_by_another_thread_before_the_step_touches_them(config):
    with engine_of(config) as ran:
        moments = []
        for step, batch in enumerate(batches("opt-tiny")):
            points = pairs([100 * step])
            entries = entries_of(step, points, ran.probe(batch, points))
            ran.commit(entries)
            moments.append(PassRecord(points=points, entries=entries))
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
