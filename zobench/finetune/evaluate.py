"""Evaluates the current weights on a split of a task: its mean loss, and its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zobench.data.tasks.encode import Encoded
from zobench.data.tasks.judge import Score
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import EvaluatingEngine
from zobench.finetune.judges import Judge
from zobench.finetune.progress import Evaluation
from zobench.runspec.registry import resolve


def evaluate(
    engine: EvaluatingEngine, data: TaskData, split: str, step: int, between: Callable[[], None] = lambda: None
) -> Evaluation:
    """Mean loss and scores on every example of ``split``, "dev" or "test".

    ``between`` is called before each group of examples; what it raises ends the evaluation.
    """
    goal, total = data.asked.goal, Score()
    judge: Judge = resolve(goal.judge)()
    groups = data.groups(split)
    for group in groups:
        between()
        total += judge.look(engine, data, group)
    examples = _in_order(total.examples, groups, data.splits[split])
    first, *others = judge.scores(total)
    return Evaluation(
        split=split, step=step, loss=total.loss_sum / total.count, accuracy=first, count=total.count,
        names=goal.scores, second=others[0] if others else 0.0, examples=examples,
    )  # fmt: skip


def _in_order(
    examples: tuple[tuple[bool, float], ...], groups: Sequence[Sequence[Encoded]], items: Sequence[Encoded]
) -> tuple[tuple[bool, float], ...]:
    """``examples`` as the split has its ``items``, whatever the order of ``groups``: runs are paired by it."""
    numbers = {id(item): number for number, item in enumerate(items)}
    order = [numbers[id(item)] for group in groups for item in group]
    return tuple(example for _, example in sorted(zip(order, examples, strict=True))) if examples else ()
