"""Plain text: documents as one stream of tokens, cut into rows of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from zobench.data.batch import IGNORED, Batch
from zobench.data.tasks.encode import Encoded, Encoder
from zobench.data.tasks.task import Example


class PackedText:
    """An :class:`~zobench.data.tasks.encode.Encoding` of documents: their tokens follow each other, each document's
    with the end-of-text token after them, and every row takes as many as it may have. Only a last row is shorter."""

    def units(self, encoder: Encoder, examples: Sequence[Example]) -> list[Encoded]:
        """The rows of all documents. Raises ``ValueError`` where the tokenizer has no end-of-text token."""
        end = encoder.tokenizer.eos_token_id
        if end is None:
            raise ValueError("plain text needs a tokenizer with an end-of-text token, but got none; set its eos_token")
        ids = encoder.tokenizer([example.prompt for example in examples], add_special_tokens=False, verbose=False)
        return list(packed(ids["input_ids"], end, encoder.limit))

    def encode(self, encoder: Encoder, units: Sequence[Encoded], places: Sequence[str]) -> list[Encoded]:
        """The rows as they are."""
        return list(units)

    def batch(self, items: Sequence[Encoded], *, pad: int, left: bool, widest: int, loss: str) -> Batch:
        """Rows as they are; a shorter one is padded on the right, where nothing looks at padding."""
        rows = [torch.tensor(item.rows[0]) for item in items]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad, dtype=torch.int64)
        kept = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)], kept[number, : len(row)] = row, 1
        return Batch(ids, ids.where(kept.bool(), IGNORED), None if kept.all() else kept)


def packed(documents: Iterable[Sequence[int]], end: int, width: int) -> Iterable[Encoded]:
    """Rows of ``width`` tokens of the ``documents``, each followed by ``end``; the last row holds what is left, unless
    that is one token, which nothing predicts."""
    waiting: list[int] = []
    for document in documents:
        waiting += [*document, end]
        whole = len(waiting) // width * width
        for first in range(0, whole, width):
            yield Encoded((tuple(waiting[first : first + width]),), (), 0, width, False)
        waiting = waiting[whole:]
    if len(waiting) > 1:
        yield Encoded((tuple(waiting),), (), 0, len(waiting), False)
