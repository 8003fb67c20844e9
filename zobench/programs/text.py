"""The batches of a cost cell: random tokens, or the sentences of SST-2 in the ids of the model's tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from zobench import finetune
from zobench.data.batch import Batch
from zobench.data.tokens import stream
from zobench.finetune import tokenizer
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SENTENCES = 4096
"""As many of the training set's first sentences are read, about 50,000 tokens; batches begin anywhere in them."""


def batches(spec: RunSpec, model: PreTrainedModel) -> Iterator[Batch]:
    """The batches of ``spec`` without end. Raises ``ValueError`` (one line) where data=sst2 lacks its tokenizer or its
    files, ``ImportError`` where they would come from the hub and ``datasets`` is missing."""
    config = model.config.get_text_config()
    text = _sentences(spec) if spec.data == "sst2" else None
    return stream(spec, config.vocab_size, getattr(config, "pad_token_id", None), text=text)


def _sentences(spec: RunSpec) -> np.ndarray:
    """Token ids (n,), int64: sentences of SST-2's training set, each with the tokenizer's special tokens."""
    words, _ = tokenizer.load(spec)
    where, rows = TASKS.get("sst2").rows("sst2", "train", finetune.usual_data_dir())
    records = [record for _, record in itertools.islice(rows, SENTENCES)]
    if not records or any(not isinstance(record.get("sentence"), str) for record in records):
        raise ValueError(f"{where} must hold sentences in a column `sentence`, but has none; give SST-2 as published")
    ids = words([record["sentence"] for record in records])["input_ids"]
    return np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64)
