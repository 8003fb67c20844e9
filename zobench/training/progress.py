"""Progress of a fine-tuning run, and hooks for its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """A step that was taken: steps so far, its loss, projected gradient g, learning rate; updates skipped so far."""

    step: int
    loss: float
    g: float
    lr: float
    skipped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The loss and the accuracy on ``split`` ("dev" or "test") after ``step`` steps, and of how many examples.

    ``best``: whether it is the best on dev after any step so far, and so what would be kept if the run ended now;
    ``gained``: whether its loss is below that of the start, which is no result of training and never kept. ``names``:
    what the task's goal is scored by. ``accuracy`` is the first of these scores, of an answer its F1, of plain text the
    perplexity; ``second`` is the other one, where there are two. ``count`` are the tokens of a plain text.
    ``examples``: of choices that were just evaluated whether each is right, and its loss.
    """

    split: str
    step: int
    loss: float
    accuracy: float
    count: int
    best: bool = False
    gained: bool = True
    names: tuple[str, ...] = ("accuracy",)
    second: float = 0.0
    examples: tuple[tuple[bool, float], ...] = field(default=(), compare=False, repr=False)

    @property
    def scores(self) -> dict[str, float]:
        return dict(zip(self.names, (self.accuracy, self.second), strict=False))

    @property
    def point(self) -> dict[str, Any]:
        """The evaluation as a result stores it."""
        return {"step": self.step, "loss": self.loss, **self.scores, "count": self.count}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Callbacks of a run. ``say``: a line on an automatic choice; ``begin``: steps done already, and in all."""

    say: Callable[[str], None] = lambda text: None
    begin: Callable[[int, int], None] = lambda done, total: None
    step: Callable[[StepReport], None] = lambda moment: None
    evaluated: Callable[[Evaluation], None] = lambda evaluation: None
