"""The fast engine: every granularity, write-back interval, number of directions and placement, against a plain loop."""

import functools
import itertools
import math
import types
from unittest import mock

import numpy as np
import pytest
import torch

from tests.support.devices import CUDA, DEVICES, on_devices
from tests.support.reference import draw_seeds, g_of, perturb, pristine_mezo, update
from zobench import ZOSGD, Engine, EngineConfig, Entry, Point, RunSpec, kernels, models
from zobench.data.tokens import stream
from zobench.engine import blocks as units
from zobench.engine import head, linear
from zobench.engine.loss import RunningLoss
from zobench.engine.survival import Survival
from zobench.engine.tiers import HostTier, allocate
from zobench.engine.wire import FloatWire
from zobench.models import weights

STEPS, EPS, LR, RUN_SEED = 50, 1e-3, 1e-3, 7
STEPS_ON = {"cpu": STEPS, CUDA: 10}
PLACES = {
    "resident": {"placement": "resident"},
    "pageable": {"tier": "pageable"},
    "disk": {"tier": "disk", "slots": 2},
    "partly resident": {"tier": "pageable", "resident_blocks": 1},
}
PINNED = {
    "pinned": {"tier": "pinned"},
    "two slots": {"tier": "pinned", "slots": 2},
    "partly resident": {"tier": "pinned", "resident_blocks": 1},
}
PLACES_ON = {"cpu": PLACES, CUDA: PLACES | PINNED}
TILE = {"cpu": 20_000, CUDA: 3_000}
PIECES: dict[str, dict[str, int]] = {"cpu": {}, CUDA: {"logits_bytes": 1 << 13}}
"""On CUDA the head's pieces are small and of uneven length."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of a few rows also for tiny models."""
    monkeypatch.setattr(units.tiles, "__defaults__", (TILE["cpu"],))


def batches(name, kind="ragged", count=STEPS):
    spec = RunSpec(model=name, batch_size=3, seq_len=17, data=kind, seed=1)
    config = models.build_config(name)
    return list(itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), count))


def directions(queries):
    flat = iter(draw_seeds(RUN_SEED, STEPS * queries))
    return [tuple(next(flat) for _ in range(queries)) for _ in range(STEPS)]


@functools.cache
def reference(name, dtype, tied, decay, queries, every=1, count=STEPS):
    """(losses, projected gradients, final weights) of a plain loop on the CPU."""
    model = models.build(name, dtype, tied)
    weights.materialise(model, weights.RandomWeights(model, 3), "cpu")
    seeds, every = directions(queries)[:count], math.inf if every == "inf" else every
    losses, gs = pristine_mezo(model, batches(name, count=count), seeds, eps=EPS, lr=LR, wd=decay, every=every)
    return losses, gs, {key: p.data for key, p in model.named_parameters()}


def run(name, dtype, tied, decay, queries, count=None, device="cpu", **config):
    """(losses, projected gradients, final weights on the CPU) of an engine."""
    model = models.build(name, dtype, tied)
    config = EngineConfig(device=device, noise="counter", **PIECES[device] | config)
    with (
        mock.patch.object(units.tiles, "__defaults__", (TILE[device],)),
        Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine,
    ):
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED, weight_decay=decay, queries=queries)
        steps = [method.step(engine, batch.to(device)) for batch in batches(name, count=count or STEPS_ON[device])]
        return [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors())


@functools.cache
def resident(name, dtype, tied, decay, queries, device, granularity, every=1):
    case = {"device": device, "granularity": granularity, "writeback_every": every}
    return run(name, dtype, tied, decay, queries, **case, **PLACES["resident"])


def assert_near_in_tiles(mine, expected):
    assert np.allclose(mine[0], expected[0], rtol=1e-4, atol=0)
    assert np.allclose(mine[1][:5], expected[1][:5], atol=2e-3)  # an ulp of the loss is 2.4e-4 of g


def assert_near_on_cuda(mine, expected):
    """Up to the rounding of products."""
    assert np.allclose(mine[0], expected[0], rtol=1e-4, atol=0)
    assert np.allclose(mine[1], expected[1], rtol=1e-2, atol=2e-2)
    assert all(torch.allclose(mine[2][key], expected[2][key], rtol=0, atol=1e-3) for key in expected[2])


def assert_equal(mine, expected):
    assert mine[0] == expected[0]
    assert mine[1] == expected[1]
    assert mine[2].keys() == expected[2].keys()
    assert all(torch.equal(mine[2][key], expected[2][key]) for key in expected[2])
    assert len(set(mine[1])) > 0.9 * len(mine[1])  # a loop that never moved would agree with itself


@pytest.mark.parametrize(("device", "place"), on_devices(PLACES_ON))
@pytest.mark.parametrize("every", [1, 4, "inf"])
@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize(("name", "tied", "decay"), [("opt-tiny", True, 0.1), ("qwen3-tiny", False, 0.0)])
def test_fp32_equals_a_plain_loop_in_every_mode(name, tied, decay, queries, granularity, every, device, place):
    """Replaying K entries at once is in float32 the same arithmetic as K single updates, so all of it is ``==``; but
    a product by a tile of the rows, or on CUDA, may be summed in another order than in the loop on the CPU: such an
    engine equals a resident one of its granularity that keeps updates at every step, and the loop nearly."""
    case = (name, "fp32", tied, decay, queries)
    expected = reference(*case, count=STEPS_ON[device])
    where = PLACES_ON[device][place]
    mine = run(*case, device=device, granularity=granularity, writeback_every=every, **where)
    if device == CUDA:
        assert_near_on_cuda(mine, expected)
    elif granularity == "tile":
        assert_near_in_tiles(mine, expected)
    if device == CUDA or granularity == "tile":
        expected = resident(*case, device, granularity)
    assert_equal(mine, expected)


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
        expected = resident(*case, device, granularity, every)
        places = PLACES_ON[device].keys() - {"resident"}
    else:
        expected = reference(*case, every)
        places = {"resident", "disk", "partly resident"}
    for place in sorted(places):
        where = PLACES_ON[device][place]
        mine = run(*case, device=device, granularity=granularity, writeback_every=every, **where)
        assert_equal(mine, expected)


STREAMED = {
    "cpu": [{"tier": "disk"}, {"tier": "pageable", "slots": 1}, {"tier": "pageable", "overlap": False}],
    CUDA: [PLACES_ON[CUDA][place] for place in ("pinned", "two slots", "pageable", "disk")],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
@pytest.mark.parametrize("wire", ["fp16", "bf16", "fp8"])
def test_a_wire_gives_the_same_whatever_is_streamed_from_where(wire, granularity, device):
    case, common = ("opt-tiny", "fp32", True, 0.1, 1), {"count": 10, "device": device, "granularity": granularity}
    first, *others = (run(*case, wire=wire, **common, **place) for place in STREAMED[device])
    for other in others:
        assert_equal(other, first)
    plain = run(*case, **common)
    assert first[0] != plain[0]  # the wire was used
    tolerance = {"fp16": 1e-3, "bf16": 1e-2, "fp8": 5e-2}[wire]
    assert np.allclose(first[0], plain[0], rtol=tolerance)


@pytest.mark.parametrize("wire", ["fp16", "bf16", "fp8"])
def test_unpacking_what_was_packed_loses_at_most_half_a_unit_in_the_last_place(wire):
    model = models.build("opt-tiny", "fp32")
    blocks, _ = units.find_units(model, list(models.blocks(model)))
    packer, unit = FloatWire(wire), blocks[0]
    master, back = allocate(unit.nbytes), allocate(unit.nbytes)
    slot = allocate(packer.nbytes(unit))
    for item in unit.fields:
        item.view(master).normal_()
    packer.encode(unit, master, slot)
    packer.decode(unit, slot, back)
    half_ulp = {"fp16": 2**-11, "bf16": 2**-8, "fp8": 2**-4}[wire]
    for item in unit.fields:
        before, after = item.view(master), item.view(back)
        if wire == "fp8" and len(item.shape) == 1:
            assert torch.equal(after, before)
            continue
        row = before.abs().amax(-1, keepdim=True)
        floor = row * 2**-9 / 448 if wire == "fp8" else torch.full_like(row, 2.0**-25)  # below: subnormal
        assert ((after - before).abs() <= torch.maximum(before.abs() * half_ulp, floor) * 1.0001).all()
        assert not torch.equal(after, before)
    small = {"fp8": 0.29, "fp16": 0.52, "bf16": 0.52}[wire]  # a block this small ends in a page that is mostly empty
    assert packer.nbytes(unit) < small * unit.nbytes


def test_eight_bits_have_a_scale_for_each_row():
    model = models.build("opt-tiny", "fp32")
    blocks, _ = units.find_units(model, list(models.blocks(model)))
    packer, unit = FloatWire("fp8"), blocks[0]
    master, back, slot = allocate(unit.nbytes), allocate(unit.nbytes), allocate(packer.nbytes(unit))
    matrix = unit.fields[0]
    sizes = torch.logspace(-12, 3, matrix.shape[0])
    matrix.view(master).normal_().mul_(sizes[:, None])
    packer.encode(unit, master, slot)
    packer.decode(unit, slot, back)
    error = (matrix.view(back) - matrix.view(master)).norm(dim=1) / matrix.view(master).norm(dim=1)
    assert (error < 0.04).all()


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_autocast_changes_the_products_of_both_points_alike(noise):
    """Both points of a pair give what two passes with one point each give: no cast is kept from one to the other."""

    def losses(points, **config):
        model = models.build("opt-tiny", "fp32")
        with Engine(model, EngineConfig(noise=noise, **config), weights=weights.RandomWeights(model, 3)) as engine:
            return [loss for some in points for loss in engine.probe(batches("opt-tiny", count=1)[0], some)]

    pair = [Point(5, 0.05), Point(5, -0.05)]
    together = losses([pair], autocast="bf16")
    alone = losses([pair[:1]], autocast="bf16") + losses([pair[1:]], autocast="bf16")
    exact = losses([pair])
    assert together != exact
    assert together == pytest.approx(exact, rel=1e-2)
    assert together == pytest.approx(alone, rel=1e-4)  # not equal: -eps is reached by another way
    assert abs(together[0] - together[1]) > 1e-3


def test_compiled_blocks_are_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compiled.append(options) or forward)
    plain = run("opt-tiny", "fp32", True, 0.0, 1, count=2)
    assert run("opt-tiny", "fp32", True, 0.0, 1, count=2, compile=True)[0] == plain[0]
    assert compiled == [{"dynamic": False}] * 3
    with pytest.raises(ValueError, match="`compile` needs granularity=block, but got granularity=tile"):
        EngineConfig(noise="counter", granularity="tile", compile=True)


def test_looking_at_the_weights_changes_nothing():
    """With pending updates in 16 bits, or behind a narrow wire, saving must neither round nor write."""
    for dtype, config in (("bf16", {}), ("fp32", {"wire": "fp8"}), ("bf16", {"placement": "resident"})):
        quiet = run("opt-tiny", dtype, True, 0.0, 1, count=6, writeback_every="inf", **config)
        model = models.build("opt-tiny", dtype, True)
        config = EngineConfig(noise="counter", writeback_every="inf", **config)
        with Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine:
            method, losses = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED), []
            for batch in batches("opt-tiny", count=6):
                losses.append(method.step(engine, batch).loss)
                seen = dict(engine.named_tensors())
        assert losses == quiet[0]
        assert all(torch.equal(seen[key], quiet[2][key]) for key in seen)


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_a_resident_model_is_handed_back_with_every_update(noise):
    model = models.build("opt-tiny", "fp32")
    with Engine(
        model, EngineConfig(noise=noise, placement="resident"), weights=weights.RandomWeights(model, 3)
    ) as engine:
        ZOSGD(lr=LR).step(engine, batches("opt-tiny", count=1)[0])
        trained = dict(engine.named_tensors())
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


def test_an_engine_whose_step_failed_is_not_used_again(monkeypatch):
    """Half a pass may have applied half of an update: going on would apply it twice."""
    model = models.build("opt-tiny", "fp32")
    with Engine(
        model, EngineConfig(noise="counter", placement="resident"), weights=weights.RandomWeights(model, 3)
    ) as e:
        method, data = ZOSGD(lr=LR), batches("opt-tiny", count=2)
        method.step(e, data[0])
        monkeypatch.setattr(RunningLoss, "add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            method.step(e, data[1])
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match="must not be used after an error in a step"):
            method.step(e, data[1])


def test_entries_come_in_the_order_of_their_steps():
    model = models.build("opt-tiny", "fp32")
    with Engine(model, EngineConfig(noise="counter"), weights=weights.RandomWeights(model, 3)) as engine:
        engine.commit([Entry(step=3, seed=1, g=1.0, lr=0.1)])
        with pytest.raises(ValueError, match="`step` of entries must not fall, but got 0 after 3; count steps on"):
            engine.commit([Entry(step=0, seed=1, g=1.0, lr=0.1)])


def test_a_matrix_of_zeros_survives_eight_bits():
    model = models.build("opt-tiny", "fp32")
    blocks, _ = units.find_units(model, list(models.blocks(model)))
    packer, unit = FloatWire("fp8"), blocks[0]
    master, slot = torch.zeros(unit.nbytes, dtype=torch.uint8), allocate(packer.nbytes(unit))
    packer.encode(unit, master, slot)
    packer.decode(unit, slot, master)
    assert not master.any()


@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
def test_torch_noise_with_a_wire_is_zo2s_amp(granularity):
    """As published: float32 on the device, the low-bit copy persists; here only block is published."""
    if granularity != "block":
        with pytest.raises(ValueError, match="use noise=counter"):
            EngineConfig(wire="bf16", granularity=granularity)
        return
    model = models.build("opt-tiny", "fp32", True)
    expected = models.build("opt-tiny", "fp32", True)
    weights.materialise(expected, weights.RandomWeights(expected, 3), "cpu")
    low = {name for name, _ in expected.named_parameters() if ".layers." in name}
    losses = []
    generator = iter(draw_seeds(RUN_SEED, 5))
    with torch.inference_mode():
        pending = None
        for batch in batches("opt-tiny", count=5):
            for name, p in expected.named_parameters():
                if name in low:
                    p.data = p.data.bfloat16().float()
            if pending:
                update(expected, *pending, LR, 0.0)
            seed, pair = next(generator), []
            for scale in (1, -2):
                perturb(expected, seed, scale, EPS)
                pair.append(expected(**batch_arguments(batch)).loss.item())
            perturb(expected, seed, 1, EPS)
            pending = seed, g_of(*pair, EPS)
            losses.append(sum(pair) / 2)
    with Engine(model, EngineConfig(wire="bf16"), weights=weights.RandomWeights(model, 3)) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED)
        assert [method.step(engine, batch).loss for batch in batches("opt-tiny", count=5)] == losses


def batch_arguments(batch):
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}


def test_a_checkpoint_is_its_own_tier_and_is_not_written(tmp_path):
    model = models.build("opt-tiny", "fp32")
    weights.materialise(model, weights.RandomWeights(model, 3), "cpu")
    model.save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    expected = reference("opt-tiny", "fp32", None, 0.0, 1)
    for granularity, threshold in (("block", 256), ("linear", 256), ("linear", 7)):
        model = models.build("opt-tiny", "fp32")
        config = EngineConfig(
            noise="counter", tier="checkpoint", writeback_every="inf", granularity=granularity,
            consolidate_after=threshold, disk_dir=tmp_path,
        )  # fmt: skip
        with Engine(model, config, weights=weights.PretrainedWeights(tmp_path, model)) as engine:
            method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED)
            steps = [method.step(engine, batch) for batch in batches("opt-tiny")]
            mine = [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors())
            consolidated = engine.rest.stream.tier._overlay is not None
        assert_equal(mine, expected)
        assert consolidated == (threshold == 7)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_checkpoint_in_another_dtype_cannot_be_the_tier(tmp_path):
    model = models.build("opt-tiny", "fp16")
    weights.materialise(model, weights.RandomWeights(model, 3), "cpu")
    model.save_pretrained(tmp_path)
    model = models.build("opt-tiny", "fp32")
    config = EngineConfig(noise="counter", tier="checkpoint", writeback_every="inf")
    with pytest.raises(ValueError, match=r"float32, but .* is torch.float16; use that dtype or tier=disk"):
        Engine(model, config, weights=weights.PretrainedWeights(tmp_path, model))
    with pytest.raises(ValueError, match="needs the weights of a checkpoint, but got RandomWeights"):
        Engine(model, config, weights=weights.RandomWeights(model, 3))


def test_nothing_is_written_while_updates_are_deferred(monkeypatch):
    written = []
    monkeypatch.setattr(HostTier, "offload", lambda self, block, slot: written.append(block))
    run("opt-tiny", "fp32", True, 0.0, 1, count=5, writeback_every="inf")
    assert not written
    written.clear()
    run("opt-tiny", "fp32", True, 0.0, 1, count=5, writeback_every=1)
    assert len(written) == 3 * 4  # the first step has nothing to write


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("every", [1, "inf"])
def test_a_table_larger_than_the_scratch_is_settled_in_place(monkeypatch, tied, every):
    monkeypatch.setattr(head, "HEAD_BYTES", 8 << 10)
    monkeypatch.setattr(head, "BIAS_BYTES", 64)
    config = {"granularity": "tile", "writeback_every": every, "tier": "disk"}
    model = models.build("qwen3-tiny", "fp32", tied)
    with Engine(model, EngineConfig(noise="counter", **config), weights=weights.RandomWeights(model, 3)) as engine:
        assert engine.arithmetic._scratch.numel() < model.get_input_embeddings().weight.nbytes
    mine = run("qwen3-tiny", "fp32", tied, 0.1, 1, count=6, **config)
    monkeypatch.setattr(head, "HEAD_BYTES", 16 << 20)
    monkeypatch.setattr(head, "BIAS_BYTES", 64 << 10)
    whole = run("qwen3-tiny", "fp32", tied, 0.1, 1, count=6, **config)
    assert np.allclose(mine[0], whole[0], rtol=1e-6)
    assert np.allclose(mine[1][:2], whole[1][:2], atol=2e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_pass_draws_z_twice_per_step_and_never_for_rows_that_nobody_reads(monkeypatch, tied):
    drawn = []
    real, real_flat = kernels.advance, kernels.advance_flat

    def advance(master, span, updates, *, scratch=None, **more):
        drawn.append((span.tensor_id, master.numel() * (len(updates) + (scratch is not None))))
        real(master, span, updates, scratch=scratch, **more)

    def advance_flat(master, flat, updates, *, scratch=None, **more):
        draws = len(updates) + (scratch is not None)
        drawn.extend((segment.tensor_id, segment.numel * draws) for segment in flat.segments)
        real_flat(master, flat, updates, scratch=scratch, **more)

    monkeypatch.setattr(kernels, "advance", advance)
    monkeypatch.setattr(kernels, "advance_flat", advance_flat)
    model = models.build("opt-tiny", "fp32", tied)
    with Engine(model, EngineConfig(noise="counter"), weights=weights.RandomWeights(model, 3)) as engine:
        method, data = ZOSGD(lr=LR), batches("opt-tiny", count=3)
        method.step(engine, data[0])
        method.step(engine, data[1])
        drawn.clear()
        method.step(engine, data[2])
        total = sum(n for _, n in drawn)
    count = sum(p.numel() for p in model.parameters())
    rows = data[2].input_ids.numel() * 64
    table = model.get_input_embeddings().weight.numel()
    assert total == 2 * count + 2 * rows - (0 if tied else table)


def test_the_pair_of_points_is_antithetic_in_sixteen_bits():
    """Exactly so unless 2W - S needs a digit more than it has, which takes a power of two between W and it."""
    model = models.build("opt-tiny", "bf16")
    config = EngineConfig(noise="counter", placement="resident", granularity="linear")
    with Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine:
        unit = next(unit for unit in engine.residents if "fc1" in unit.name)
        weight = unit.views(unit.buffer)[0].clone().double()
        plus = engine.arithmetic.at(unit, Point(1, 1e-3))[0].clone().double()
        minus = engine.arithmetic.at(unit, Point(1, -1e-3))[0].clone().double()
        engine.arithmetic.rest(unit)
    exact = plus - weight == weight - minus
    assert (plus != weight).double().mean() > 0.9
    assert exact.double().mean() > 0.9
    crossed = minus.abs().log2().floor() > torch.minimum(plus.abs(), weight.abs()).log2().floor()
    assert (exact | crossed).all()


@pytest.mark.parametrize("every", [1, "inf"])
def test_a_head_with_a_bias(every):
    def build():
        model = models.build("llama-tiny", "fp32")
        model.lm_head.bias = torch.nn.Parameter(torch.empty(model.config.vocab_size, device="meta"))
        return model

    class Source(weights.RandomWeights):
        def fill(self, name, out, first=0):
            if "lm_head.bias" in name:
                out.copy_(torch.linspace(-1, 1, 128)[first : first + len(out)])
            else:
                super().fill(name, out, first)

    model = build()
    assert model.config.vocab_size == 128
    weights.materialise(model, Source(model, 3), "cpu")
    losses, _ = pristine_mezo(model, batches("llama-tiny", count=5), directions(1)[:5], eps=EPS, lr=LR, wd=0.1)
    model = build()
    config = EngineConfig(noise="counter", writeback_every=every)
    with Engine(model, config, weights=Source(model, 3)) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED, weight_decay=0.1)
        assert [method.step(engine, batch).loss for batch in batches("llama-tiny", count=5)] == losses


def survival(dtype, steps=20, **config):
    model = models.build("opt-tiny", dtype)
    with Engine(model, EngineConfig(noise="counter", **config), weights=weights.RandomWeights(model, 3)) as engine:
        watch, method = Survival(engine), ZOSGD(lr=1e-6, seed=7)
        for batch in batches("opt-tiny", count=steps):
            method.step(engine, batch)
        return watch.share()


def test_float32_replay_keeps_updates_that_sixteen_bits_lose():
    assert survival("fp32") == pytest.approx(1, abs=1e-5)
    assert survival("fp32", wire="bf16", writeback_every="inf") == pytest.approx(1, abs=1e-5)
    as_published, deferred = survival("bf16"), survival("bf16", writeback_every=64)
    assert 0 <= as_published < 0.5
    assert deferred > as_published


def test_granularity_needs_linears_that_are_called_once():
    model = models.build("opt-tiny", "fp32")
    layer = models.blocks(model)[0]
    layer.self_attn.q_proj.__class__ = type("Quantised", (torch.nn.Linear,), {})
    with pytest.raises(ValueError, match=r"all matrices in nn.Linear, but .*q_proj.weight is in Quantised; use gran"):
        Engine(model, EngineConfig(noise="counter", granularity="linear"), weights=weights.RandomWeights(model, 3))
    twice, never = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    fake = types.SimpleNamespace(base_model=lambda input_ids, use_cache: twice(twice(torch.zeros(1, 2, 4))))
    with pytest.raises(ValueError, match="called once per forward, but 2 calls reached 2 layers; use"):
        linear.call_order(fake, [twice, never], "cpu")
    assert twice(torch.ones(1, 4)).any()  # its own forward again


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"granularity": "linear"}, "need noise=counter, but got noise=torch"),
        ({"writeback_every": 4}, "use noise=counter"),
        ({"writeback_every": 0, "noise": "counter"}, 'must be at least 1 or "inf", but got 0'),
        ({"tier": "checkpoint", "noise": "counter"}, "needs writeback_every=inf and wire=none"),
        ({"resident_blocks": -1}, "`resident_blocks >= 0` must hold, but got -1"),
        ({"placement": "resident", "wire": "fp8"}, "need placement=offload, but got placement=resident"),
        ({"autocast": "tf32"}, "`autocast=tf32` needs a CUDA device, but got device=cpu"),
        ({"noise": "counter", "fused_update": False, "writeback_every": 4}, "needs writeback_every=1, but got 4"),
        ({"wire": "fp9"}, "must be one of none, fp16, bf16, fp8"),
    ],
)
def test_a_configuration_that_cannot_be_says_why(values, error):
    with pytest.raises(ValueError, match=error):
        EngineConfig(**values)


def test_more_resident_blocks_than_there_are():
    model = models.build("opt-tiny", "fp32")
    with pytest.raises(ValueError, match="`resident_blocks <= 3` must hold for this model, but got 4"):
        Engine(model, EngineConfig(resident_blocks=4), weights=weights.RandomWeights(model, 3))


def test_zero_queries_make_no_step():
    with pytest.raises(ValueError, match="`queries >= 1` must hold, but got queries=0"):
        ZOSGD(lr=1, queries=0)


def test_a_direction_that_is_not_finite_is_left_out_and_counted():
    class Half:
        config = EngineConfig(placement="resident")

        def probe(self, batch, points):
            return [math.nan, 1.0, 2.0, 1.0]

        def shared(self, values):
            return list(values)

        def commit(self, entries):
            self.entries = entries

    engine, method = Half(), ZOSGD(lr=1, eps=0.5, queries=2, weight_decay=0.1)
    result = method.step(engine, None)
    assert not result.applied
    assert method.skipped == 1
    assert [(e.g, e.weight_decay) for e in engine.entries] == [(0.5, 0.1)]
