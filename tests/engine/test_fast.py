"""The fast engine: every granularity, write-back interval, number of directions and placement, against a plain loop."""

import copy
import math

import pytest
import torch

from tests.support import fast
from tests.support.causal import with_bias
from tests.support.devices import CUDA, on_devices
from tests.support.families import made
from tests.support.parity import engine_of, materialised
from tests.support.reference import pristine_mezo
from zobench import ZOSGD, Batch, Engine, EngineConfig, Entry, Point, models
from zobench.engine.base import PassRecord
from zobench.engine.weights.survival import Survival
from zobench.models import weights
from zobench.testing.local import Kept
from zobench.testing.suite import assert_same

pytestmark = pytest.mark.usefixtures("small_tiles")


@pytest.mark.parametrize(("device", "place"), on_devices(fast.PLACES_ON))
@pytest.mark.parametrize("every", [1, 4, "inf"])
@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize(("name", "tied", "decay"), [("opt-tiny", True, 0.1), ("qwen3-tiny", False, 0.0)])
def test_fp32_equals_a_plain_loop_in_every_mode(name, tied, decay, queries, granularity, every, device, place):
    """Replaying K entries at once is in float32 the same arithmetic as K single updates, so all of it is ``==``; but
    a product by a tile of the rows, or on CUDA, may be summed in another order than in the loop on the CPU: such an
    engine equals a resident one of its granularity that keeps updates at every step, and the loop nearly."""
    case = (name, "fp32", tied, decay, queries)
    count, where = fast.steps_on(device, name, place, queries), fast.PLACES_ON[device][place]
    expected = fast.reference(*case, count=count)
    mine = fast.run(*case, count, device, granularity=granularity, writeback_every=every, **where)
    if device == CUDA:
        fast.assert_near_on_cuda(mine, expected)
    elif granularity == "tile":
        fast.assert_near_in_tiles(mine, expected)
    if device == CUDA or granularity == "tile":
        expected = fast.resident(*case, device, granularity, count=count)
    fast.assert_equal(mine, expected)


@pytest.mark.parametrize("every", [1, 4, "inf"])
@pytest.mark.parametrize(
    ("device", "granularity"), on_devices({"cpu": ["block", "linear"], CUDA: ["block", "linear", "tile"]})
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("name", "tied", "decay"), [("opt350-tiny", True, 0.0), ("llama-tiny", True, 0.1)])
def test_sixteen_bits_equal_a_plain_loop_that_rounds_as_often(name, tied, decay, dtype, device, granularity, every):
    """On CUDA, where products round in another order, the resident engine stands for the loop."""
    case = (name, dtype, tied, decay, 1)
    if device == CUDA:
        expected = fast.resident(*case, device, granularity, every)
        places = fast.PLACES_ON[device].keys() - {"resident"}
    else:
        expected = fast.reference(*case, every)
        places = {"resident", "disk", "partly resident"}
    for place in sorted(places):
        where = fast.PLACES_ON[device][place]
        mine = fast.run(*case, device=device, granularity=granularity, writeback_every=every, **where)
        fast.assert_equal(mine, expected)


def test_a_checkpoint_is_its_own_tier_and_is_not_written(tmp_path):
    materialised().save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    expected = fast.reference("opt-tiny", "fp32", None, 0.0, 1)
    for granularity, threshold in (("block", 256), ("linear", 256), ("linear", 7)):
        model = models.build("opt-tiny", "fp32")
        config = EngineConfig(
            noise="counter", tier="checkpoint", writeback_every="inf", granularity=granularity,
            consolidate_after=threshold, disk_dir=tmp_path,
        )  # fmt: skip
        with Engine(model, config, weights=weights.PretrainedWeights(tmp_path, model)) as engine:
            method = ZOSGD(lr=fast.LR, eps=fast.EPS, seed=fast.RUN_SEED)
            steps = [method.step(engine, batch) for batch in fast.batches("opt-tiny")]
            mine = [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors())
            consolidated = engine.pipeline.tier._overlay is not None
        fast.assert_equal(mine, expected)
        assert consolidated == (threshold == 7)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_run_on_a_checkpoint_resumes_from_what_was_consolidated(tmp_path):
    """In 16 bits, where updates that are rounded together are rounded otherwise than one after another."""
    materialised("opt-tiny", "bf16").save_pretrained(tmp_path)
    config = EngineConfig(
        noise="counter", tier="checkpoint", writeback_every="inf", consolidate_after=3, disk_dir=tmp_path
    )

    def engine(start=None):
        model = models.build("opt-tiny", "bf16")
        return Engine(model, config, weights=weights.PretrainedWeights(tmp_path, model), start=start)

    records, (batch,) = [], fast.batches("opt-tiny", count=1)
    with engine() as ran:
        for step in range(8):
            points = (Point(step, 1e-2), Point(step, -1e-2))
            plus, minus = ran.probe(batch, points)
            entry = Entry(step=step, seed=step, g=(plus - minus) / 2e-2, lr=1e-2)
            ran.commit([entry])
            records.append(PassRecord(points=points, entries=(entry,)))
        ran.drain()
        with engine(kept := Kept(ran)) as again:
            assert {unit.applied for unit in again.blocks} == {6}
            again.retrace(records, kept)
            assert_same(dict(again.named_tensors()), dict(ran.named_tensors()))
            assert again.evaluate(batch) == ran.evaluate(batch)


def test_a_block_that_stands_for_several_has_room_for_the_largest():
    """Of Gemma 4, whose layers differ in the width of a head."""
    (batch,) = fast.batches("opt-tiny", count=1)
    ids = batch.input_ids % 64
    for tier in ("pageable", "disk"):
        with Engine(made("gemma4_text"), EngineConfig(noise="counter", shared_blocks=1, slots=1, tier=tier)) as engine:
            sizes = [engine.rest_bytes(unit) for unit in engine.blocks]
            assert len(set(sizes)) == 2
            assert engine.bytes_at_rest == max(sizes)
            assert math.isfinite(engine.evaluate(Batch(ids, ids)))


@pytest.mark.parametrize("every", [1, "inf"])
def test_a_head_with_a_bias(every):
    model = with_bias(vocab_size=128)
    plain, data = copy.deepcopy(model), fast.batches("llama-tiny", count=5)
    losses, _ = pristine_mezo(plain, data, fast.directions(1)[:5], eps=fast.EPS, lr=fast.LR, wd=0.1)
    with Engine(model, EngineConfig(noise="counter", writeback_every=every)) as engine:
        method = ZOSGD(lr=fast.LR, eps=fast.EPS, seed=fast.RUN_SEED, weight_decay=0.1)
        assert [method.step(engine, batch).loss for batch in data] == losses
        tensors = dict(engine.named_tensors())
    assert torch.equal(tensors["lm_head.bias"], plain.lm_head.bias)


def survival(dtype, steps=20, **config):
    with engine_of(dtype=dtype, noise="counter", **config) as engine:
        watch, method = Survival(engine), ZOSGD(lr=1e-6, seed=7)
        for batch in fast.batches("opt-tiny", count=steps):
            method.step(engine, batch)
        return watch.share()


def test_float32_replay_keeps_updates_that_sixteen_bits_lose():
    assert survival("fp32") == pytest.approx(1, abs=1e-5)
    assert survival("fp32", wire="bf16", writeback_every="inf") == pytest.approx(1, abs=1e-5)
    as_published, deferred = survival("bf16"), survival("bf16", writeback_every=64)
    assert 0 <= as_published < 0.5
    assert deferred > as_published
