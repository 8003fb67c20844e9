"""A batch: token ids, labels and mask of a step, and the candidates that a task chooses between; and the batches of a
throughput run, random or cut from a text, the same for every engine and for a resumed run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zobench.runspec import RunSpec

IGNORED = -100
"""The label of a position that has no part in the loss."""


@dataclass(frozen=True, eq=False, slots=True)
class Choices:
    """Candidates to choose from: which log-probabilities make each one's score, and which one is right.

    All tensors int64. Of n tokens: ``places`` (n, 2), the row and the position whose output predicts it (of a causal
    model: the position before it), and ``tokens`` (n,). A candidate's score is the mean log-probability of its tokens.
    ``owners`` (n,): the candidate, 0 to c - 1, of each token; ``groups`` (c,): the example, 0 to e - 1, of each
    candidate; both in rising order. ``answers`` (e,): the right candidate of each example, among all c.
    ``loss``: "choice", the cross-entropy over each example's scores, averaged over the examples; or "lm", the mean
    negative log-probability of all tokens of the right candidates (docs/design/METHODS.md, "Tasks").
    """

    places: Tensor
    tokens: Tensor
    owners: Tensor
    groups: Tensor
    answers: Tensor
    loss: str = "choice"

    def __post_init__(self) -> None:
        n, c = len(self.tokens), len(self.groups)
        if self.places.shape != (n, 2) or self.owners.shape != (n,) or self.loss not in ("choice", "lm"):
            raise ValueError(
                f"`places` (n, 2) and `owners` (n,) must fit {n} tokens and `loss` be choice or lm, but got "
                f"{tuple(self.places.shape)}, {tuple(self.owners.shape)} and {self.loss!r}"
            )
        if not n or not len(self.answers) or int(self.owners.max()) != c - 1:
            raise ValueError(f"every one of {c} candidates must have tokens, but got owners of {n} tokens")

    def to(self, device: torch.device | str) -> Choices:
        """The same choices on ``device``."""
        places, tokens, owners = self.places.to(device), self.tokens.to(device), self.owners.to(device)
        return Choices(places, tokens, owners, self.groups.to(device), self.answers.to(device), self.loss)

    def between(self, first: int, last: int) -> tuple[Tensor, Choices]:
        """(the rows that examples ``first`` to ``last - 1`` use, their choices, numbered by those rows)."""
        candidates = (self.groups >= first) & (self.groups < last)
        kept = candidates[self.owners]
        before = int((self.groups < first).sum())
        rows, places = torch.unique(self.places[kept, 0], return_inverse=True)
        return rows, Choices(
            torch.stack([places, self.places[kept, 1]], dim=1), self.tokens[kept], self.owners[kept] - before,
            self.groups[candidates] - first, self.answers[first:last] - before, self.loss,
        )  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Token ids, labels and mask of ``b`` rows of ``t`` tokens, each an int64 tensor of shape (b, t).

    With ``choices`` the loss is theirs, and ``labels`` has no part in it.

    ``labels`` are token ids, :data:`IGNORED` where the loss skips them; ``labels[:, i]`` belongs to ``input_ids[:, i]``
    (the loss shifts them). ``attention_mask`` is 1 on tokens and 0 on padding, or None without padding.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None = None
    choices: Choices | None = None

    def __post_init__(self) -> None:
        if self.input_ids.dim() != 2:
            raise ValueError(
                f"`input_ids` must have shape (rows, tokens), but got {tuple(self.input_ids.shape)}; "
                "give one row as ids[None]"
            )
        for name in ("input_ids", "labels", "attention_mask"):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.dtype != torch.int64:
                raise ValueError(f"`{name}` must be of dtype int64, but got {tensor.dtype}; give {name}.long()")
            if tensor.shape != self.input_ids.shape:
                raise ValueError(
                    f"`{name}` must have the shape of input_ids {tuple(self.input_ids.shape)}, but got "
                    f"{tuple(tensor.shape)}; pad both alike"
                )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        choices = None if self.choices is None else self.choices.to(device)
        return Batch(self.input_ids.to(device), self.labels.to(device), mask, choices)

    @property
    def examples(self) -> int:
        """How many examples a batch can be cut into: its rows, or with choices the examples that they belong to."""
        return len(self.input_ids) if self.choices is None else len(self.choices.answers)

    def shard(self, index: int, count: int) -> Batch:
        """The ``index``-th of ``count`` equal parts of the examples, in order, padded as the whole is.

        Raises ``ValueError`` if they cannot be cut equally.
        """
        if self.examples % count:
            raise ValueError(
                f"`count` must divide the batch, but got {count} for {self.examples} examples; use a multiple of it"
            )
        size = self.examples // count
        first, last = index * size, (index + 1) * size
        if self.choices is None:
            rows, choices = torch.arange(first, last), None
        else:
            rows, choices = self.choices.between(first, last)
        mask = None if self.attention_mask is None else self.attention_mask[rows]
        return Batch(self.input_ids[rows], self.labels[rows], mask, choices)

    @property
    def tokens(self) -> int:
        """Positions of the batch, padding included, as the papers count throughput."""
        return self.input_ids.numel()


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
