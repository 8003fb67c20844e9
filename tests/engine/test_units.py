"""The engine's small parts: transitions, folding, the chunked loss, tiers, lanes, configuration."""

import errno
import itertools
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from zobench import Batch, Engine, EngineConfig, Point, models
from zobench.engine import schedule
from zobench.engine.base import BASE, transitions
from zobench.engine.fold import fold, join, split
from zobench.engine.lanes import ThreadLanes
from zobench.engine.loss import causal_loss, rows_per_chunk
from zobench.engine.tiers import DiskTier, HostTier, allocate
from zobench.models import weights


def test_mezos_sequence_is_plus_minus_two_plus():
    eps = 1e-3
    chain = [BASE, Point(5, eps), Point(5, -eps), BASE]
    moves = [move for a, b in itertools.pairwise(chain) for move in transitions(a, b)]
    assert moves == [(5, eps), (5, -2 * eps), (5, eps)]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), max_size=6))
def test_transitions_lead_where_they_say(points):
    chain = [BASE, *(Point(seed, scale) for seed, scale in points), BASE]
    offsets = dict.fromkeys(range(4), 0.0)
    for here, there in itertools.pairwise(chain):
        for seed, delta in transitions(here, there):
            offsets[seed] += delta
        assert all(offsets[s] == (there.scale if s == there.seed else 0.0) for s in offsets)


def test_a_point_without_a_seed_cannot_have_a_scale():
    with pytest.raises(ValueError, match="give it a seed"):
        Point(None, 0.5)


def test_split_cuts_what_has_the_batch_and_shares_the_rest():
    x, positions, cos = torch.arange(24).view(6, 4), torch.arange(6), torch.ones(1, 4)
    parts = split({"x": x, "p": positions, "rope": (cos, cos), "cache": None, "flag": True}, copies=2, batch=3)
    assert torch.equal(torch.cat([p["x"] for p in parts]), x)
    assert all(p["p"] is positions and p["rope"][0] is cos and p["cache"] is None and p["flag"] for p in parts)


def test_join_refuses_what_it_cannot_join():
    with pytest.raises(TypeError, match="but returned object"):
        join([object(), object()])


def test_fold_runs_each_copy_with_its_own_weights():
    scale = torch.zeros(())

    def prepare(copy):
        scale.fill_(copy + 1)

    out = fold("m", lambda x: (x * scale, None), 3, 1, prepare, (torch.ones(3, 2),), {})
    assert out[0].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert out[1] is None


@pytest.mark.parametrize("ignored", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunked_loss_is_the_models_own_loss(dtype, ignored):
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 50, bias=False).to(dtype)
    hidden, labels = torch.randn(2, 9, 16, dtype=dtype), torch.randint(50, (2, 9))
    labels[0, :ignored] = -100
    with torch.inference_mode():
        targets = functional.pad(labels, (0, 1), value=-100)[:, 1:].reshape(-1)
        whole = functional.cross_entropy(head(hidden.view(18, 16)).float(), targets, ignore_index=-100)
        assert causal_loss(head, hidden, labels, rows=18) == whole
        for rows in (1, 4, 7):  # the product of fewer rows may round differently; the sum may not
            torch.testing.assert_close(causal_loss(head, hidden, labels, rows), whole, rtol=1e-6, atol=0)


def test_rows_per_chunk_keeps_its_bound():
    assert rows_per_chunk(50272, 32 << 20) == 128
    assert rows_per_chunk(151936, 1 << 20) == 1
    assert rows_per_chunk(10**9, 1) == 1


@pytest.mark.parametrize("ring", [None, 2])
@pytest.mark.parametrize("kind", ["pageable", "disk"])
def test_a_tier_gives_back_what_it_was_given(kind, ring, tmp_path):
    sizes = [4096, 8192, 4096]
    tier = DiskTier(sizes, tmp_path, ring=ring) if kind == "disk" else HostTier(sizes, pinned=False, ring=ring)
    for block, size in enumerate(sizes):
        tier.fill(block, lambda buffer, value=block: buffer.fill_(value + 1))
        slot = allocate(size)
        if ring is None or block < ring:
            tier.upload(block, slot[:size])
            assert slot[:size].unique().tolist() == [block + 1]
        slot.fill_(9)
        if ring is None:
            tier.offload(block, slot[:size])
            tier.upload(block, slot[:size].zero_())
            assert slot.unique().tolist() == [9]
    tier.close()
    assert list(tmp_path.iterdir()) == []


def test_the_disk_tiers_file_is_gone_even_if_nobody_closes_it(tmp_path):
    tier = DiskTier([4096], tmp_path)
    assert list(tmp_path.iterdir()) == []
    tier.close()


def test_a_disk_without_space_says_so_in_one_line(tmp_path, monkeypatch):
    facts = os.statvfs(tmp_path)
    full = os.statvfs_result([*facts[:4], 10, *facts[5:10]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(OSError, match=r"the disk tier needs 0\.\d+ GB, but .* name a folder on another disk") as caught:
        DiskTier([64 << 20], tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_thread_lanes_keep_each_lanes_order_and_wait_for_tickets():
    lanes, seen = ThreadLanes(), []
    op = lambda lane, block: schedule.Op("upload", block, 0, lane)  # noqa: E731
    first = [lanes.submit(op("upload", i), lambda i=i: seen.append(i), []) for i in range(20)]
    lanes.submit(op("compute", 99), lambda: seen.append(99), first)
    lanes.drain()
    lanes.close()
    assert seen == [*range(20), 99]


def test_the_timeline_shows_uploads_under_computes():
    model = models.build("opt-tiny", "fp32")
    ids = torch.arange(40).view(1, 40)
    with Engine(model, EngineConfig(slots=2), weights=weights.RandomWeights(model, 0)) as engine:
        engine.evaluate(Batch(ids, ids))
        engine.record()
        engine.evaluate(Batch(ids, ids))
        events = engine.timeline()
    assert sorted((kind, block) for _, kind, block, _, _ in events if kind == "compute") == [
        ("compute", i) for i in range(3)
    ]
    assert all(start <= end for *_, start, end in events)
    assert [e[3] for e in events] == sorted(e[3] for e in events)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"placement": "offloaded"}, "did you mean offload"),
        ({"tier": "dsk"}, "did you mean disk"),
        ({"slots": 0}, "use slots=3"),
        ({"tier": "pinned"}, "needs a CUDA device, but got device=cpu"),
        ({"slots": 3, "shared_blocks": 2}, "share at least as many blocks"),
    ],
)
def test_an_impossible_configuration_is_one_line(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        EngineConfig(**values)
    assert "\n" not in str(caught.value)


def test_probe_needs_points():
    model = models.build("opt-tiny", "fp32")
    ids = torch.arange(8).view(1, 8)
    with (
        Engine(model, EngineConfig(), weights=weights.RandomWeights(model, 0)) as engine,
        pytest.raises(ValueError, match="`points` must not be empty"),
    ):
        engine.probe(Batch(ids, ids), [])


def test_closing_gives_the_model_its_own_forward_back():
    model = models.build("opt-tiny", "fp32")
    engine = Engine(model, EngineConfig(placement="resident"), weights=weights.RandomWeights(model, 0))
    ids = torch.arange(8).view(1, 8)
    mine = engine.evaluate(Batch(ids, ids))
    engine.close()
    assert all("forward" not in vars(module) for module in model.modules())
    with torch.inference_mode():
        assert model(input_ids=ids, labels=ids).loss.item() == mine
