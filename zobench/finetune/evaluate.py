"""Evaluates the current weights on a split of a task: mean loss and accuracy."""

from __future__ import annotations

from collections.abc import Callable

from zobench.data.tasks.judge import Score, judge
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import EvaluatingEngine
from zobench.finetune.progress import Evaluation


def evaluate(
    engine: EvaluatingEngine, data: TaskData, split: str, step: int, between: Callable[[], None] = lambda: None
) -> Evaluation:
    """Mean loss and accuracy on every example of ``split``, "dev" or "test".

    ``between`` is called before each batch; what it raises ends the evaluation.
    """
    total = Score()
    for batch in data.batches(split):
        between()
        assert batch.choices is not None
        total += judge(batch.choices, engine.scores(batch))
    loss, accuracy = total.loss_sum / total.count, total.right / total.count
    return Evaluation(split=split, step=step, loss=loss, accuracy=accuracy, count=total.count)
