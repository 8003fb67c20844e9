"""Evaluates the current weights on a split of a task: its mean loss, and its scores."""

from __future__ import annotations

from collections.abc import Callable

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
    for group in data.groups(split):
        between()
        total += judge.look(engine, data, group)
    first, *others = judge.scores(total)
    return Evaluation(
        split=split, step=step, loss=total.loss_sum / total.count, accuracy=first, count=total.count,
        names=goal.scores, second=others[0] if others else 0.0, examples=total.examples,
    )  # fmt: skip
