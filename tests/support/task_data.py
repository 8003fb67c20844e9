"""Tasks small enough to score by hand: a trained tokenizer, an SST-2 of a few sentences, an unbatched reference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zobench.data.batch import Batch
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.read import LabelledSet, read
from zobench.data.tasks.task import Example
from zobench.data.tasks.task_data import TaskData
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

SENTENCES = [
    f"the {noun} is {very}{adjective} , and it was {other} ."
    for noun in ("film", "plot", "acting", "story", "music", "ending", "hero")
    for very in ("", "very ", "rarely ")
    for adjective, other in (("good", "great"), ("bad", "dreadful"), ("slow", "too long"), ("fresh", "short"))
]


def trained(
    template: str = "</s> $A", words: Sequence[str] = (" great", " terrible", "Yes", "No", " Yes", " No")
) -> Any:
    """A byte-level BPE tokenizer of 500 tokens; ``words`` are one token each; ``template`` adds special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "<pad>", "</s>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES, *(word for word in words for _ in range(2000))], trainer)
    used = [(token, specials.index(token)) for token in specials if token in template]
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])  # as RoBERTa's: it takes the space before it
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token="<mask>"
    )


def spec(task: str, **changes: Any) -> RunSpec:
    return RunSpec(model="opt-tiny", task=task, batch_size=3).replace(**changes)


def load(run: RunSpec, tokenizer: Any, folder: Path, positions: int = 4096, masked: bool = False) -> TaskData:
    return TaskData.load(run, tokenizer, positions=positions, masked=masked, data_dir=folder)


def sets(name: str, folder: Path | None, aligned: bool = True, masked: bool = False) -> tuple[LabelledSet, ...]:
    return read(TASKS.get(name), form_of(TASKS.get(name), aligned=aligned, masked=masked), folder)


def sst2(folder: Path, train: int, validation: int) -> Path:
    """An SST-2 folder of that many sentences of different lengths, every third one negative."""
    pool = SENTENCES * (max(train, validation) // len(SENTENCES) + 1)
    for name, count in (("train", train), ("dev", validation)):
        rows = [f"{pool[i]}{' so' * (i % 7)} {i}\t{int(i % 3 > 0)}\n" for i in range(count)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows), encoding="utf-8")
    return folder


def scores(model: Any, batch: Batch) -> Tensor:
    """Scores (c,) as :class:`Choices` defines them, from full logits, in float64."""
    assert batch.choices is not None
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    scores = logits.log_softmax(-1)[batch.choices.places[:, 0], batch.choices.places[:, 1]]
    picked = scores[torch.arange(len(scores)), batch.choices.tokens]
    return torch.stack([picked[batch.choices.owners == c].mean() for c in range(len(batch.choices.groups))])


def naive(model: Any, tokenizer: Any, example: Example, length: int = 4096) -> list[float]:
    """Each candidate alone, unpadded: the mean log-probability of the tokens that it adds to its prompt. Of more tokens
    than ``length`` the first stays and the last, as in MeZO's program."""
    scores = []
    for candidate in example.candidates:
        ids = tokenizer(example.prompt + candidate)["input_ids"]
        count = len(ids) - len(tokenizer(example.prompt)["input_ids"])
        ids = ids if len(ids) <= length else [ids[0], *ids[1 - length :]]
        logs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        picked = [logs[place - 1, ids[place]] for place in range(len(ids) - count, len(ids))]
        scores.append(float(torch.stack(picked).mean()))
    return scores


def examples_of(batch: Batch) -> list[tuple[int, ...]]:
    """The unpadded rows of a batch whose examples have one row each."""
    assert batch.attention_mask is not None
    return [tuple(row[keep.bool()].tolist()) for row, keep in zip(batch.input_ids, batch.attention_mask, strict=True)]
