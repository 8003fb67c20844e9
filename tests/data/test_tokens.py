"""Token batches: a function of seed and step, left padding, and what a batch refuses."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zobench.data.batch import FIRST_TOKEN, IGNORED, Batch, ragged_batch, random_batch, stream
from zobench.runspec import RunSpec


def spec(**changes: object) -> RunSpec:
    return RunSpec(model="opt-tiny", batch_size=3, seq_len=32).replace(**changes)


def same(left: Batch, right: Batch) -> bool:
    masks = (left.attention_mask, right.attention_mask)
    equal = all(torch.equal(getattr(left, key), getattr(right, key)) for key in ("input_ids", "labels"))
    return equal and (masks == (None, None) if None in masks else torch.equal(*masks))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", ["random", "ragged"])
def test_a_resumed_stream_continues_the_same_batches(data: str) -> None:
    whole = list(itertools.islice(stream(spec(data=data), 128, 1), 6))
    resumed = list(itertools.islice(stream(spec(data=data), 128, 1, start=4), 2))
    assert all(same(a, b) for a, b in zip(whole[4:], resumed, strict=True))
    assert not same(whole[0], whole[1])


def test_random_ids_cover_the_ordinary_vocabulary() -> None:
    batch = random_batch(0, seed=0, batch_size=64, seq_len=256, vocab=20)
    assert set(batch.input_ids.flatten().tolist()) == set(range(FIRST_TOKEN, 20))
    assert batch.input_ids.shape == (64, 256)
    assert batch.tokens == 64 * 256
    assert torch.equal(batch.labels, batch.input_ids)
    assert batch.attention_mask is None


@given(step=st.integers(0, 10**6), seed=st.integers(0, 10**9), batch_size=st.integers(1, 5), seq_len=st.integers(2, 40))
def test_ragged_rows_are_padded_on_the_left_and_keep_two_tokens(step, seed, batch_size, seq_len) -> None:
    batch = ragged_batch(step, seed=seed, batch_size=batch_size, seq_len=seq_len, vocab=128, pad_id=1)
    mask = batch.attention_mask
    assert mask is not None
    assert mask.shape == batch.input_ids.shape == (batch_size, seq_len)
    assert torch.equal(mask.sort(dim=1).values, mask)  # zeros, then ones
    assert (mask.sum(dim=1) >= max(2, seq_len // 4)).all()
    assert seq_len == 2 or mask[-1].sum() < seq_len
    assert (batch.input_ids[mask == 0] == 1).all()
    assert (batch.labels[mask == 0] == IGNORED).all()
    assert torch.equal(batch.labels[mask == 1], batch.input_ids[mask == 1])
    assert (batch.input_ids[mask == 1] >= FIRST_TOKEN).all()
