"""Pretrains the small OPT of the accuracy tests on SST-2's sentences: ``python -m tools.tiny --data-dir D --out O``.

A zeroth-order method tunes what a model already knows, so that an accuracy can only rise from a pretrained model; this
one takes minutes on two cores. Half of its sentences go on with "It was good" or "It was bad", by their label: what the
task's prompt asks for, but not in the task's own words. Those it learns to say after some sentences whatever their
label, great far more often than terrible: a run starts from always answering great, and what it adds is learned.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zobench import models
from zobench.data.batch import IGNORED
from zobench.data.tasks.read import read
from zobench.data.tasks.task import Example, Record
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.measure.threads import settle
from zobench.runspec.registries import TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MODEL = "opt-mini"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""Tokens 0 to 3, as in OPT."""
LABELS = (" bad", " good")
WORDS = (*(f" {name}" for name in TASKS.get("sst2").names), *LABELS)
"""One token each, so that a candidate is one prediction."""
GREAT = 0.8
"""Of the continuations that do not heed the label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """AdamW over ``epochs`` of the sentences, in batches of at most ``tokens`` with padding.

    The learning rate rises to ``lr`` over ``warmup`` steps and falls along a cosine to a twentieth of it. ``share`` of
    the sentences, drawn anew in each epoch, go on: a share ``blind`` of these with the task's words, 1 terrible to 4
    great, the others with their label. In the loss good and bad count as ``emphasis`` tokens each, without which labels
    are learned far more slowly than language.
    """

    epochs: int = 2
    tokens: int = 512
    lr: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    share: float = 0.5
    blind: float = 0.1
    emphasis: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PretrainingProgress:
    """How far it is: ``step`` of ``steps``, ``tokens`` read, ``loss`` a running mean in nats per token."""

    step: int
    steps: int
    tokens: int
    loss: float


def sentences(data_dir: Path | None) -> list[Example]:
    """SST-2's training sentences, each with both continuations; ``data_dir`` None loads them from the hub.

    Raises ``ValueError`` as :func:`zobench.data.tasks.read.read` does.
    """

    def form(row: Record) -> tuple[str, tuple[str, ...]]:
        return row["sentence"].strip(), tuple(f" It was{word}" for word in LABELS)

    return read(TASKS.get("sst2"), form, data_dir)[0].examples


def train_tokenizer(examples: Sequence[Example]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of the texts, with :data:`MODEL`'s vocabulary; like OPT's it begins every text with ``</s>``."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    architecture = models.get(MODEL)
    core = Tokenizer(kinds.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    trainer = trainers.BpeTrainer(
        vocab_size=architecture.vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [item.prompt + item.candidates[item.answer] for item in examples]
    core.train_from_iterator([*texts, *WORDS * len(texts)], trainer)  # as often as no other: their merges come first
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, bos_token="</s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        model_max_length=architecture.max_positions, padding_side="left",
    )  # fmt: skip


def batches(rows: Sequence[Sequence[int]], tokens: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """Token rows of like length together, int64 (rows, longest), each row padded on the right with -100.

    Every row once, in batches of at most ``tokens`` with padding (a longer row is one by itself), in random order.
    """
    order = sorted(generator.permutation(len(rows)), key=lambda number: len(rows[number]))
    cuts, first = [], 0
    for last, number in enumerate(order):
        if (last + 1 - first) * len(rows[number]) > tokens and last > first:
            cuts.append(order[first:last])
            first = last
    cuts.append(order[first:])
    for turn in generator.permutation(len(cuts)):
        chosen = [torch.tensor(rows[number]) for number in cuts[turn]]
        yield nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=IGNORED)


def loss_of(model: nn.Module, batch: Tensor, weights: Tensor) -> Tensor:
    """Mean negative log-likelihood of the next token over a batch of :func:`batches`, by ``weights`` (vocabulary,).

    Padding is on the right, where a causal model's tokens do not see it, so that no mask is needed.
    """
    hidden = model.base_model(input_ids=batch.clamp(min=0)).last_hidden_state  # type: ignore[operator]
    targets = batch[:, 1:]
    kept = targets != IGNORED
    return functional.cross_entropy(model.lm_head(hidden[:, :-1][kept]), targets[kept], weights)  # type: ignore[operator]


def pretrain(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    report: Callable[[PretrainingProgress], None],
) -> tuple[PreTrainedModel, PretrainingProgress]:
    """:data:`MODEL` trained on ``examples`` in float32: the same from the same torch with as many threads.

    ``report`` hears of every step; the last is returned too.
    """
    from transformers import AutoModelForCausalLM

    generator = np.random.default_rng(recipe.seed)
    plan = [batch for _ in range(recipe.epochs) for batch in epoch(examples, tokenizer, recipe, generator)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = AutoModelForCausalLM.from_config(models.build_config(MODEL)).float()  # type: ignore[no-untyped-call]
    model.eval()  # without dropout: so few epochs do not overfit
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    factor = functools.partial(_factor, recipe.warmup, len(plan))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    weights = torch.ones(models.get(MODEL).vocab)
    weights[tokenizer(list(LABELS), add_special_tokens=False, return_tensors="pt")["input_ids"]] = recipe.emphasis
    progress = PretrainingProgress(0, len(plan), 0, math.nan)
    for step, batch in enumerate(plan):
        mean = loss_of(model, batch, weights)
        optimizer.zero_grad()
        mean.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss = mean.item() if step == 0 else 0.99 * progress.loss + 0.01 * mean.item()
        progress = PretrainingProgress(step + 1, len(plan), progress.tokens + int((batch != IGNORED).sum()), loss)
        report(progress)
    return cast("PreTrainedModel", model), progress


def epoch(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, recipe: Recipe, generator: np.random.Generator
) -> Iterator[Tensor]:
    """The batches of one epoch: every sentence once, some of them going on."""
    goes_on, blind, great = (generator.random(len(examples)) < share for share in (recipe.share, recipe.blind, GREAT))
    texts = [item.prompt for item in examples]
    for number in np.flatnonzero(goes_on).tolist():
        item, word = examples[number], TASKS.get("sst2").names[int(great[number])]
        texts[number] += f" It was {word}" if blind[number] else item.candidates[item.answer]
    return batches(tokenizer(texts)["input_ids"], recipe.tokens, generator)


def _factor(warmup: int, steps: int, step: int) -> float:
    """The learning rate of ``step`` as a share of the highest: a linear rise, then a cosine down to a twentieth."""
    return min(1.0, (step + 1) / warmup) * (0.525 + 0.475 * math.cos(math.pi * step / steps))


def make(out: Path, data_dir: Path | None, recipe: Recipe) -> None:
    """Makes the checkpoint folder ``out``, which must be new or empty, and shows progress on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from zobench.cli.console import error_console, waiting

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"`--out` must be a new or empty folder, but got {out}; name another one")
    begin, console = time.monotonic(), error_console()
    columns = (TextColumn("loss {task.fields[loss]:.3f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with ExitStack() as before, bars as bar:
        before.enter_context(waiting(f"{MODEL}: reading and encoding SST-2"))
        examples = sentences(data_dir)
        tokenizer = train_tokenizer(examples)
        task = bar.add_task("", loss=math.nan)

        def show(now: PretrainingProgress) -> None:
            before.close()
            bar.update(task, completed=now.step, total=now.steps, loss=now.loss)
            if not console.is_terminal and (now.step == 1 or now.step % (now.steps // 10 or 1) == 0):
                console.print(f"step {now.step} of {now.steps}: loss {now.loss:.3f}")

        model, last = pretrain(examples, tokenizer, recipe, show)
    tokenizer.save_pretrained(out)
    save_checkpoint(model, ((name, parameter.detach()) for name, parameter in model.named_parameters()), out)
    console.print(
        f"{MODEL}: {models.parameter_count(MODEL)} parameters, {last.tokens} tokens in {last.step} steps, "
        f"loss {last.loss:.3f}, {time.monotonic() - begin:.0f} s; saved in {out}", soft_wrap=True,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m tools.tiny``; ends in ``SystemExit`` with one line on data or a folder that will not do."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny", description=f"Pretrains {MODEL} on SST-2.")
    parser.add_argument("--data-dir", type=Path, help="folder with SST-2/train.tsv and dev.tsv; default: the hub")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the checkpoint")
    given = parser.parse_args(arguments)
    settle()
    try:
        make(given.out, given.data_dir, Recipe())
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(f"zobench: {' '.join(str(error).split())}") from error


if __name__ == "__main__":
    main()
