"""Generates answers with an engine: after each prompt the likeliest token, again and again, until one ends the answer.

Every token takes a pass over the whole text, because an engine keeps no keys and values: offloaded weights are brought
to the device once for all prompts of a batch. The tokens are those of ``transformers``' own greedy search.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from zobench.data.batch import IGNORED, Batch
from zobench.data.tasks.encode import Encoded
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import EvaluatingEngine


def generate(engine: EvaluatingEngine, data: TaskData, items: Sequence[Encoded]) -> list[str]:
    """An answer to each question, at most as long as the task's goal allows, without special tokens and the spaces at
    its ends. It ends with the goal's ``stop``, of which the last token counts, or with the tokenizer's end of text."""
    goal, tokenizer = data.asked.goal, data.tokenizer
    assert tokenizer is not None
    stops = {*tokenizer(goal.stop, add_special_tokens=False)["input_ids"][-1:], tokenizer.eos_token_id}
    answers = greedy(engine, [item.prompt for item in items], most=goal.new_tokens, stops=stops, pad=data.pad)
    return [str(tokenizer.decode(tokens, skip_special_tokens=True)).strip() for tokens in answers]


def greedy(
    engine: EvaluatingEngine, prompts: Sequence[Sequence[int]], *, most: int, stops: Collection[int | None], pad: int
) -> list[list[int]]:
    """What follows each of ``prompts``, up to ``most`` tokens, one of ``stops`` the last of them."""
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(most):
        open_ones = [number for number, tokens in enumerate(answers) if not tokens or tokens[-1] not in stops]
        if not open_ones:
            break
        batch = _on_the_left([[*prompts[number], *answers[number]] for number in open_ones], pad)
        for number, token in zip(open_ones, engine.next_logits(batch).argmax(-1).tolist(), strict=True):
            answers[number].append(token)
    return answers


def _on_the_left(rows: Sequence[Sequence[int]], pad: int) -> Batch:
    """``rows`` padded on the left; nothing is a label."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return Batch(ids, torch.full_like(ids, IGNORED), mask)
