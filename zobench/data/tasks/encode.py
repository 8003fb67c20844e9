"""Examples as token rows and the places that score their candidates; batches of them, padded. Plain text as one stream
of tokens, cut into rows of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zobench.data.batch import IGNORED, Batch, Choices
from zobench.data.tasks.task import MASK, Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD_MULTIPLE = 8
"""Rows are padded to a multiple of it (docs/design/METHODS.md, "Tasks")."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example: token ``rows``; for each candidate its tokens as (row, position that predicts it, token id).

    ``length``: tokens of its longest text before any cut; ``cut``: whether one was cut. ``right``: the candidates that
    count as right, where they are more than the ``answer``. ``prompt`` and ``golds``: of a question with a free answer,
    the tokens that an answer follows, and the answers that count as right.
    """

    rows: tuple[tuple[int, ...], ...]
    candidates: tuple[tuple[tuple[int, int, int], ...], ...]
    answer: int
    length: int
    cut: bool
    right: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    golds: tuple[str, ...] = ()

    def only_right(self) -> Encoded:
        """The right candidate alone, in the one row that holds it: all that the loss "lm" reads."""
        tokens = self.candidates[self.answer]
        row = self.rows[tokens[0][0]]
        moved = tuple((0, position, token) for _, position, token in tokens)
        return replace(self, rows=(row,), candidates=(moved,), answer=0, right=())


class Encoding:
    """An encoding makes rows of tokens of a task's examples, and batches of these rows: by itself, of candidates."""

    def units(self, encoder: Encoder, examples: Sequence[Example]) -> Sequence[Any]:
        """The units of a split: its examples, or rows that are packed from them. Each has an ``answer``."""
        return examples

    def encode(self, encoder: Encoder, units: Sequence[Any], places: Sequence[str]) -> list[Encoded]:
        """Units of a split encoded; ``places`` name them in errors (``ValueError``)."""
        return encoder.encode(units, places)

    def batch(self, items: Sequence[Encoded], *, pad: int, left: bool, widest: int, loss: str) -> Batch:
        """One batch of encoded units: see :func:`collate`."""
        return collate(items, pad=pad, left=left, widest=widest, loss=loss)


class Answers(Encoding):
    """An :class:`Encoding` of questions: the right answer trains as a candidate, and the prompt alone is kept too."""

    def encode(self, encoder: Encoder, units: Sequence[Example], places: Sequence[str]) -> list[Encoded]:
        encoded, prompts = super().encode(encoder, units, places), encoder.prompts(units, places)
        return [replace(example, prompt=prompt) for example, prompt in zip(encoded, prompts, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """Encodes for a causal or a ``masked`` language model with at most ``limit`` tokens per text.

    ``truncate``: a longer text loses tokens from the left, after the special tokens it begins with (MeZO); else it is
    an error, which names ``limit_text``. ``room``: tokens that are left for an answer; ``positions``: the model's, 0 if
    they are not known.
    """

    tokenizer: PreTrainedTokenizerBase
    masked: bool
    limit: int
    limit_text: str
    truncate: bool
    room: int = 0
    positions: int = 0

    def encode(self, examples: Sequence[Example], places: Sequence[str]) -> list[Encoded]:
        """The examples encoded; ``places`` name them in errors (``ValueError``)."""
        encode = self._masked if self.masked else self._causal
        texts = [self._texts(example) for example in examples]
        tokens = self._ids([text for candidates in texts for text in candidates])
        head, tail = self._edges()
        self._check_lengths(texts, tokens, 0 if self.masked else tail, places)
        ids = iter(tokens)
        return [
            encode(example, [next(ids) for _ in candidates], head, tail, row_name)
            for example, candidates, row_name in zip(examples, texts, places, strict=True)
        ]

    def prompts(self, examples: Sequence[Example], places: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens of each prompt alone, without what the tokenizer puts after a text."""
        head, tail = self._edges()
        prompts = []
        tokens = self._ids([example.prompt for example in examples])
        self._check_lengths([[example.prompt] for example in examples], tokens, tail, places)
        for ids in tokens:
            whole = ids[: len(ids) - tail]
            prompts.append((*whole[:head], *whole[head + self._excess(len(whole)) :]))
        return prompts

    def _texts(self, example: Example) -> list[str]:
        """The texts that the tokenizer reads: the prompt, and for a causal model the prompt with each candidate."""
        if self.masked:
            return [example.prompt.replace(MASK, str(self.tokenizer.mask_token))]
        return [example.prompt, *(example.prompt + candidate for candidate in example.candidates)]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []  # it refuses no texts
        return ids

    def _edges(self) -> tuple[int, int]:
        """The numbers of special tokens that the tokenizer puts before and after a text."""
        empty, letter = self._ids(["", "a"])
        head = _shared(empty, letter)
        return head, len(empty) - head

    def _causal(self, example: Example, ids: list[list[int]], head: int, tail: int, row_name: str) -> Encoded:
        """A candidate's tokens are those beyond its prompt's. What the tokenizer puts after a text is left out, and so
        is a row's last token, which predicts nothing. Candidates that differ only in that token, so all of one token
        each, then have the same row: it is computed once for them."""
        prompt, *wholes = [whole[: len(whole) - tail] for whole in ids]
        rows: list[tuple[int, ...]] = []
        candidates = []
        for whole in wholes:
            excess = self._excess(len(whole))
            start = _shared(prompt, whole) - excess
            if start < max(head, 1):
                raise ValueError(
                    f"{row_name}: a candidate must follow at least one token of {self.limit}, but got one of "
                    f"{len(whole) - start - excess} tokens after none; use a larger seq_len or another tokenizer"
                )
            kept = (*whole[:head], *whole[head + excess :])
            row, tokens = kept[:-1], kept[start:]
            if not tokens:
                raise ValueError(
                    f"{row_name}: a candidate must add a token to its prompt, but the tokenizer makes none of "
                    f"{example.candidates}; give each a text that it knows"
                )
            if not rows or rows[-1] != row:
                rows.append(row)
            candidates.append(tuple((len(rows) - 1, start - 1 + i, token) for i, token in enumerate(tokens)))
        longest = max(map(len, wholes))
        return Encoded(
            tuple(rows), tuple(candidates), example.answer, longest, longest > self.limit, example.right,
            golds=example.golds,
        )  # fmt: skip

    def _masked(self, example: Example, ids: list[list[int]], head: int, tail: int, row_name: str) -> Encoded:
        whole = ids[0]
        excess = self._excess(len(whole))
        kept = (*whole[:head], *whole[head + excess :])
        mask = self.tokenizer.mask_token_id
        if kept.count(mask) != 1:
            raise ValueError(
                f"{row_name}: a text must hold one mask token, but got {kept.count(mask)}; use a larger seq_len"
            )
        position = kept.index(mask)
        candidates = tuple(((0, position, self._word(text)),) for text in example.candidates)
        return Encoded((kept,), candidates, example.answer, len(whole), excess > 0)

    def _word(self, text: str) -> int:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise ValueError(f"a label word must be one token, but got {len(ids)} for {text!r}; use another tokenizer")
        return int(ids[0])

    def _excess(self, length: int) -> int:
        return max(0, length - self.limit)

    def _check_lengths(
        self, texts: Sequence[Sequence[str]], tokens: Sequence[Sequence[int]], tail: int, places: Sequence[str]
    ) -> None:
        """Raises ``ValueError`` for the first text that is longer than the limit, unless it may be cut; with the
        ``seq_len`` that the longest needs, where the model has as many positions."""
        lengths = [len(ids) - tail for ids in tokens]
        if self.truncate or max(lengths, default=0) <= self.limit:
            return
        owners = [row_name for group, row_name in zip(texts, places, strict=True) for _ in group]
        row_name, length = next(
            (row_name, length) for row_name, length in zip(owners, lengths, strict=True) if length > self.limit
        )
        needed = max(lengths) + self.room
        larger = f"use seq_len={needed}, which the longest needs, or " if needed <= self.positions else ""
        raise ValueError(
            f"{row_name}: a text must have at most {self.limit} tokens ({self.limit_text}), but got {length}; {larger}"
            "use truncate=true to cut its prompt from the left"
        )


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the longest common prefix of the two."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def collate(items: Sequence[Encoded], *, pad: int, left: bool, widest: int, loss: str) -> Batch:
    """One batch of examples in their order, padded with the token ``pad`` on the left or the right.

    Its width is a multiple of :data:`PAD_MULTIPLE`, or ``widest`` (the model's positions) where that is less.
    """
    rows = [row for item in items for row in item.rows]
    longest = max(map(len, rows))
    ids, mask = padded(rows, pad, left=left, width=min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, widest))
    return Batch(ids, torch.full_like(ids, IGNORED), mask, _choices(items, ids.shape[1] if left else None, loss))


def padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False, width: int = 0) -> tuple[Tensor, Tensor]:
    """(``rows`` padded with the token ``pad``, their mask), int64 (rows, tokens): as wide as the longest, or ``width``
    where that is more."""
    width = max(width, *map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        begin = width - len(row) if left else 0
        ids[number, begin : begin + len(row)] = torch.tensor(row)
        mask[number, begin : begin + len(row)] = 1
    return ids, mask


def _choices(items: Sequence[Encoded], width: int | None, loss: str) -> Choices:
    """``width``: of rows that end together (padded on the left), which shifts their positions."""
    places: list[tuple[int, int]] = []
    tokens: list[int] = []
    owners: list[int] = []
    groups: list[int] = []
    answers: list[int] = []
    first_row = 0
    for example, item in enumerate(items):
        answers.append(len(groups) + item.answer)
        for candidate in item.candidates:
            for row, position, token in candidate:
                shift = 0 if width is None else width - len(item.rows[row])
                places.append((first_row + row, position + shift))
                tokens.append(token)
                owners.append(len(groups))
            groups.append(example)
        first_row += len(item.rows)
    tensor = torch.tensor
    return Choices(tensor(places), tensor(tokens), tensor(owners), tensor(groups), tensor(answers), loss)


class PackedText(Encoding):
    """An :class:`Encoding` of documents: their tokens follow each other, each document's
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
        ids, kept = padded([item.rows[0] for item in items], pad)
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
