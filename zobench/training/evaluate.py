"""Evaluates the current weights on a split of a task: its mean loss, and the scores of its goal.

Answers are generated greedily: after each prompt the likeliest token, again and again, until one ends the answer. Each
token takes a pass over the whole text, because an engine keeps no keys and values; offloaded weights are brought to the
device once for all prompts of a batch. The tokens are those of ``transformers``' own greedy search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from zobench import models
from zobench.cost import shapes
from zobench.cost.footprint import weights_bytes
from zobench.data.batch import IGNORED, Batch
from zobench.data.tasks.encode import Encoded, padded
from zobench.data.tasks.judge import Score, exact_match, f1, judge
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import TunedEngine
from zobench.engine.passes.loss import counted
from zobench.runspec import RunSpec
from zobench.runspec.kinds import WIDTHS
from zobench.runspec.registry import resolve
from zobench.training.callbacks import Evaluation

PLATEAU = 2048
"""Tokens from which more of them make products no faster, on a processor from 256 on, on a GPU later."""
SHARE, LEAST = 1 / 8, 4 << 20
"""The share of the memory of a device's weights that an evaluation may take on top of a step; bytes that it may take of
any."""


class Judge(Protocol):
    """Evaluates a task's goal (:class:`zobench.data.tasks.task.Goal`)."""

    def look(self, engine: TunedEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        """Returns the score of the model on one group of examples."""

    def scores(self, total: Score) -> tuple[float, ...]:
        """The goal's scores, in its order, of all groups together."""


class Choosing:
    """A :class:`Judge` of choices: the share of examples whose highest score is a right candidate's."""

    def look(self, engine: TunedEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        batch = data.batch(items)
        assert batch.choices is not None
        return judge(batch.choices, engine.scores(batch), [item.right for item in items])

    def scores(self, total: Score) -> tuple[float, ...]:
        return (total.right / total.count,)


class Answering(Choosing):
    """A :class:`Judge` of answers that are generated, token by token the likeliest: their F1 and exact matches. The
    loss is that of the right answer, as it trains."""

    def look(self, engine: TunedEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        answers, score = generate(engine, data, items), super().look(engine, data, items)
        pairs = [(answer, item.golds) for answer, item in zip(answers, items, strict=True)]
        right = math.fsum(f1(*pair) for pair in pairs)
        return Score(right, score.count, score.loss_sum, math.fsum(exact_match(*pair) for pair in pairs))

    def scores(self, total: Score) -> tuple[float, ...]:
        return total.right / total.count, total.exact / total.count


class Continuing:
    """A :class:`Judge` of plain text: the perplexity, the exponential of the mean loss of a token."""

    def look(self, engine: TunedEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        batch = data.batch(items)
        count = counted(engine.model, batch)
        return Score(0, count, engine.evaluate(batch) * count)

    def scores(self, total: Score) -> tuple[float, ...]:
        loss = total.loss_sum / total.count
        return (math.exp(loss) if loss < math.log(1e300) else math.inf,)


def evaluate(
    engine: TunedEngine, data: TaskData, split: str, step: int, between: Callable[[], None] = lambda: None
) -> Evaluation:
    """Mean loss and scores on every example of ``split``, "dev" or "test".

    ``between`` is called before each group of examples; what it raises ends the evaluation.
    """
    goal, total = data.asked.goal, Score()
    judge: Judge = resolve(goal.judge)()
    groups = data.groups(split, room(data.spec))
    for group in groups:
        between()
        total += judge.look(engine, data, group)
    examples = _in_order(total.examples, groups, data.splits[split])
    first, *others = judge.scores(total)
    return Evaluation(
        split=split, step=step, loss=total.loss_sum / total.count, accuracy=first, count=total.count,
        names=goal.scores, second=others[0] if others else 0.0, examples=examples,
    )  # fmt: skip


def room(spec: RunSpec) -> int:
    """Tokens that an evaluation of a run takes at once even where a step takes fewer: up to :data:`PLATEAU`, while
    their activations are at most the :data:`SHARE` of the memory of the weights, or :data:`LEAST`. 0, no more than a
    step's, where ``device_memory`` is planned with these. Neither the device nor its cores matter, because scores are
    verified to the digit elsewhere, and products over other shapes round otherwise."""
    if spec.device_memory:
        return 0
    architecture = models.of(spec)
    token = (4 * architecture.hidden + int(shapes.feed_forward(architecture))) * WIDTHS[spec.dtype]
    return min(PLATEAU, max(LEAST, int(SHARE * weights_bytes(spec))) // token)


def _in_order(
    examples: tuple[tuple[bool, float], ...], groups: Sequence[Sequence[Encoded]], items: Sequence[Encoded]
) -> tuple[tuple[bool, float], ...]:
    """``examples`` as the split has its ``items``, whatever the order of ``groups``: runs are paired by it."""
    numbers = {id(item): number for number, item in enumerate(items)}
    order = [numbers[id(item)] for group in groups for item in group]
    return tuple(example for _, example in sorted(zip(order, examples, strict=True))) if examples else ()


def generate(engine: TunedEngine, data: TaskData, items: Sequence[Encoded]) -> list[str]:
    """An answer to each question, at most as long as the task's goal allows: what is written before the goal's
    ``stop``, which may be part of a token or several, or before the tokenizer's end of text. Without special tokens and
    the spaces at its ends."""
    goal, tokenizer = data.asked.goal, data.tokenizer
    assert tokenizer is not None

    def ends(tokens: Sequence[int]) -> bool:
        return tokens[-1] == tokenizer.eos_token_id or goal.stop in str(tokenizer.decode(list(tokens)))

    answers = greedy(engine, [item.prompt for item in items], most=goal.new_tokens, ends=ends, pad=data.pad)
    texts = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in answers]
    return [text.partition(goal.stop)[0].strip() for text in texts]


def greedy(
    engine: TunedEngine, prompts: Sequence[Sequence[int]], *, most: int, ends: Callable[[Sequence[int]], bool], pad: int
) -> list[list[int]]:
    """Returns the tokens that the model adds to each of ``prompts``, up to ``most`` tokens, or up to the first token
    with which the answer ``ends``."""
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(most):
        open_ones = [number for number, tokens in enumerate(answers) if not tokens or not ends(tokens)]
        if not open_ones:
            break
        ids, mask = padded([[*prompts[number], *answers[number]] for number in open_ones], pad, left=True)
        batch = Batch(ids, torch.full_like(ids, IGNORED), mask)
        for number, token in zip(open_ones, engine.next_logits(batch).argmax(-1).tolist(), strict=True):
            answers[number].append(token)
    return answers
