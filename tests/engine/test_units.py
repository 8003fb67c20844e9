"""The engine's small parts: transitions, folding, the chunked loss, tiers, lanes, configuration."""

import errno
import itertools
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from zobench import Point
from zobench.engine.base import BASE, rows_per_chunk, transitions
from zobench.engine.passes.fold import fold, join, split
from zobench.engine.passes.loss import log_probabilities, mean_loss
from zobench.engine.weights.tiers import DiskTier, HostTier, allocate


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
def test_the_chunked_loss_is_cross_entropy(dtype, ignored):
    torch.manual_seed(0)
    head, states = torch.nn.Linear(16, 50, bias=False).to(dtype), torch.randn(18, 16, dtype=dtype)
    targets = torch.randint(50, (18,))
    targets[:ignored] = -100
    with torch.inference_mode():
        whole = functional.cross_entropy(head(states).float(), targets, ignore_index=-100)
        assert mean_loss(log_probabilities(head, states, targets, 18), targets) == whole
        for rows in (1, 4, 7):  # the product of fewer rows may round differently; the sum may not
            chunked = mean_loss(log_probabilities(head, states, targets, rows), targets)
            torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=0)


def test_rows_per_chunk_keeps_its_bound():
    assert rows_per_chunk(50272, 32 << 20) == 128
    assert rows_per_chunk(151936, 1 << 20) == 1
    assert rows_per_chunk(10**9, 1) == 1


@pytest.mark.parametrize("kind", ["pageable", "disk"])
def test_blocks_of_a_ring_serve_all_layers_in_turn(kind, tmp_path):
    """Layer 2 is filled by nobody and reads what layer 0 wrote."""
    sizes = [4096, 8192, 4096]
    tier = DiskTier(sizes, tmp_path, ring=2) if kind == "disk" else HostTier(sizes, pinned=False, ring=2)
    for block in range(3):
        tier.fill(block, lambda buffer, value=block: buffer.fill_(value + 1))
    for block, value in ((0, 1), (1, 2), (2, 1)):
        slot = allocate(sizes[block])
        tier.upload(block, slot)
        assert slot.unique().tolist() == [value]
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
