"""Token batches of a throughput run, random or cut from a text, the same for every engine and for a resumed run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from zobench.data.batch import IGNORED, Batch
from zobench.runspec import RunSpec

FIRST_TOKEN = 4
"""Lowest id that is drawn: OPT, LLaMA and Mistral keep begin, pad, end and unknown below it."""


def random_batch(step: int, *, seed: int, batch_size: int, seq_len: int, vocab: int) -> Batch:
    """Rows of uniform token ids without padding, every token a label; a function of its arguments only."""
    ids = torch.from_numpy(_ids(np.random.default_rng((seed, step)), batch_size, seq_len, vocab))
    return Batch(ids, ids)


def ragged_batch(step: int, *, seed: int, batch_size: int, seq_len: int, vocab: int, pad_id: int | None) -> Batch:
    """Rows of ``seq_len // 4`` to ``seq_len`` random tokens, padded on the left; padding is masked and has no label.

    The last row is always shorter than ``seq_len`` if that leaves it the two tokens which a causal loss needs.
    ``pad_id`` None (LLaMA has no padding token) pads with 0: the mask hides it.
    """
    generator = np.random.default_rng((seed, step))
    ids = _ids(generator, batch_size, seq_len, vocab)
    low = min(max(2, seq_len // 4), seq_len)
    lengths = generator.integers(low, seq_len + 1, size=batch_size)
    lengths[-1] = generator.integers(low, max(low + 1, seq_len))
    kept = np.arange(seq_len)[None] >= seq_len - lengths[:, None]
    return Batch(
        torch.from_numpy(np.where(kept, ids, 0 if pad_id is None else pad_id)),
        torch.from_numpy(np.where(kept, ids, IGNORED)),
        torch.from_numpy(kept.astype(np.int64)),
    )


def text_batch(step: int, *, seed: int, batch_size: int, seq_len: int, text: np.ndarray) -> Batch:
    """Rows of ``seq_len`` successive ids of ``text`` (n,), from a random place on, and from its beginning past its
    end: shapes, dtypes and labels are those of :func:`random_batch`."""
    begins = np.random.default_rng((seed, step)).integers(0, len(text), size=batch_size)
    ids = torch.from_numpy(text[(begins[:, None] + np.arange(seq_len)) % len(text)])
    return Batch(ids, ids)


def stream(
    spec: RunSpec, vocab: int, pad_id: int | None, start: int = 0, text: np.ndarray | None = None
) -> Iterator[Batch]:
    """The batches of ``spec`` from step ``start`` on, without end, on the CPU: each depends on (seed, step) only.

    ``text``: the token ids (n,), int64, that data=sst2 cuts its rows from; without it ``ValueError`` is raised.
    """
    shape = {"seed": spec.seed, "batch_size": spec.batch_size, "seq_len": spec.seq_len}
    for step in itertools.count(start):
        if spec.data == "sst2":
            if text is None:
                raise ValueError(f"`data={spec.data}` needs token ids, but got none; give text=IDS or use data=random")
            yield text_batch(step, **shape, text=text)
        elif spec.data == "ragged":
            yield ragged_batch(step, **shape, vocab=vocab, pad_id=pad_id)
        else:
            yield random_batch(step, **shape, vocab=vocab)


def _ids(generator: np.random.Generator, batch_size: int, seq_len: int, vocab: int) -> np.ndarray:
    if vocab <= FIRST_TOKEN:
        raise ValueError(f"`vocab > {FIRST_TOKEN}` must hold, but got vocab={vocab}; ids below are special tokens")
    return generator.integers(FIRST_TOKEN, vocab, size=(batch_size, seq_len), dtype=np.int64)
