"""The mesh is a bijection between ranks and (shard, sign); shards of a batch are the batch again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.causal import batch_of
from zobench import RunSpec
from zobench.data.batch import IGNORED, Batch
from zobench.parallel.mesh import Mesh
from zobench.testing.plain import choosing

WAYS = st.one_of(
    st.tuples(st.just("pertp"), st.just(2)),
    st.tuples(st.just("ddp"), st.integers(2, 12)),
    st.tuples(st.sampled_from(("2d", "2d-outer")), st.sampled_from((4, 6, 8, 12))),
)


def spec_of(parallel, gpus, nodes=1):
    return RunSpec(model="opt-tiny", parallel=parallel, gpus=gpus, nodes=nodes, batch_size=2 * 3 * 4 * 5 * 7 * 11 * 6)


@given(WAYS)
def test_every_shard_and_sign_has_one_rank(way):
    meshes = [Mesh.of(spec_of(*way), rank) for rank in range(way[1])]
    places = [(mesh.shard, mesh.sign) for mesh in meshes]
    first = meshes[0]
    assert sorted(places) == [(shard, sign) for shard in range(first.shards) for sign in range(first.signs)]
    assert [first.at(*place) for place in places] == list(range(way[1]))
    assert first.shape[0] * first.shape[1] == way[1]
    assert (places[0], first.signs) == ((0, 0), 1 if way[0] == "ddp" else 2)


@pytest.mark.parametrize(("gpus", "nodes"), [(4, 2), (8, 2), (12, 3)])
def test_pairs_stay_inside_a_node(gpus, nodes):
    """torchrun gives the ranks of a node consecutive numbers."""
    size = gpus // nodes
    for rank in range(gpus):
        mesh = Mesh.of(spec_of("2d", gpus, nodes), rank)
        other = mesh.at(mesh.shard, 1 - mesh.sign)
        assert other // size == rank // size
    outer = Mesh.of(spec_of("2d-outer", gpus, nodes), 0)
    assert outer.at(0, 1) // size != 0


@pytest.mark.parametrize(("rows", "count", "masked"), [(4, 2, True), (3, 3, False), (6, 1, True)])
def test_shards_in_order_are_the_batch(rows, count, masked):
    ids = torch.arange(rows * 5).view(rows, 5)
    batch = Batch(ids, torch.where(ids % 3 == 0, IGNORED, ids), ids % 2 if masked else None)
    parts = [batch.shard(index, count) for index in range(count)]
    for name in ("input_ids", "labels", "attention_mask"):
        whole = getattr(batch, name)
        if whole is None:
            assert all(getattr(part, name) is None for part in parts)
        else:
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), whole)


def batches(batch):
    """For each example: whether a candidate is the answer, and its tokens, each with the row that predicts it."""
    choices, losses = batch.choices, []
    for example, answer in enumerate(choices.answers.tolist()):
        rows = []
        for candidate in (choices.groups == example).nonzero()[:, 0].tolist():
            kept = choices.owners == candidate
            scored = [
                (batch.input_ids[row].tolist(), place, token)
                for (row, place), token in zip(
                    choices.places[kept].tolist(), choices.tokens[kept].tolist(), strict=True
                )
            ]
            rows.append((candidate == answer, scored))
        losses.append(rows)
    return losses


@pytest.mark.parametrize(("batch", "count"), [(batch_of(), 3), (choosing(), 2)], ids=["prompts", "a shared row"])
def test_shards_of_choices_in_order_are_the_choices(batch, count):
    parts = [batch.shard(index, count) for index in range(count)]
    assert [row for part in parts for row in batches(part)] == batches(batch)


def test_a_batch_that_cannot_be_cut_equally_is_refused():
    with pytest.raises(ValueError, match=r"`count` must divide the batch, but got 2 for 3 examples; use a multiple"):
        Batch(torch.zeros(3, 2).long(), torch.zeros(3, 2).long()).shard(0, 2)
