"""Judges: how a model's choices, its answers and its predictions of a text are evaluated with an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from zobench.data.tasks.encode import Encoded
from zobench.data.tasks.judge import Score, judge
from zobench.data.tasks.match import exact_match, f1
from zobench.data.tasks.task_data import TaskData
from zobench.engine.interface import EvaluatingEngine
from zobench.engine.loss import counted
from zobench.finetune.generate import generate


class Judge(Protocol):
    """Evaluates a task's goal (:class:`zobench.data.tasks.task.Goal`)."""

    def look(self, engine: EvaluatingEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        """What the model makes of one group of examples."""

    def scores(self, total: Score) -> tuple[float, ...]:
        """The goal's scores, in its order, of all groups together."""


class Choosing:
    """A :class:`Judge` of choices: the share of examples whose highest score is a right candidate's."""

    def look(self, engine: EvaluatingEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        batch = data.batch(items)
        assert batch.choices is not None
        return judge(batch.choices, engine.scores(batch), [item.right for item in items])

    def scores(self, total: Score) -> tuple[float, ...]:
        return (total.right / total.count,)


class Answering(Choosing):
    """A :class:`Judge` of answers that are generated, token by token the likeliest: their F1 and exact matches. The
    loss is that of the right answer, as it trains."""

    def look(self, engine: EvaluatingEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        answers, score = generate(engine, data, items), super().look(engine, data, items)
        pairs = [(answer, item.golds) for answer, item in zip(answers, items, strict=True)]
        right = math.fsum(f1(*pair) for pair in pairs)
        return Score(right, score.count, score.loss_sum, math.fsum(exact_match(*pair) for pair in pairs))

    def scores(self, total: Score) -> tuple[float, ...]:
        return total.right / total.count, total.exact / total.count


class Continuing:
    """A :class:`Judge` of plain text: the perplexity, the exponential of the mean loss of a token."""

    def look(self, engine: EvaluatingEngine, data: TaskData, items: Sequence[Encoded]) -> Score:
        batch = data.batch(items)
        count = counted(engine.model, batch)
        return Score(0, count, engine.evaluate(batch) * count)

    def scores(self, total: Score) -> tuple[float, ...]:
        loss = total.loss_sum / total.count
        return (math.exp(loss) if loss < math.log(1e300) else math.inf,)
