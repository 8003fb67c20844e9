"""Looking at a split: the loss and the accuracy of the weights as they are."""

from __future__ import annotations

from collections.abc import Callable

from zobench.data.tasks.judge import Score, judge
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import EvaluatingEngine
from zobench.finetune.progress import Evaluation


def evaluate(
    engine: EvaluatingEngine, data: TaskData, split: str, step: int, between: Callable[[], None] = lambda: None
) -> Evaluation:
    """Judges every example of ``split``; ``between`` is called before each batch, and may end it by raising."""
    total = Score()
    for batch in data.batches(split):
        between()
        assert batch.choices is not None
        total += judge(batch.choices, engine.scores(batch))
    loss, accuracy = total.loss_sum / total.count, total.right / total.count
    return Evaluation(split=split, step=step, loss=loss, accuracy=accuracy, count=total.count)
