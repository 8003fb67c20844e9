"""Progress of a run, and its callbacks: a class of the user's, called at its start, steps, evaluations and end.

None of them can lose a run: one that fails is said once, and the run goes on without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zobench.result import Result
from zobench.runspec import RunSpec


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """The start of a run, for callbacks: its ``spec`` and its own ``folder``, and of a run that goes on the
    ``steps`` and ``evaluations`` that are done, in order."""

    spec: RunSpec
    folder: Path
    steps: Sequence[StepReport]
    evaluations: Sequence[Evaluation]


class Callback:
    """What a run calls, each with nothing to do; a subclass takes what it needs.

    The evaluation on the test set comes after the last step, and :meth:`on_end` after it, with the result. A run that
    is stopped does not end: it starts again where it goes on.
    """

    def on_start(self, start: RunStart) -> None:
        """Called before the first step of this process."""

    def on_step(self, step: StepReport) -> None:
        """Called after each step."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called after each evaluation, on dev or on test."""

    def on_end(self, result: Result) -> None:
        """Called after the last evaluation."""

    def close(self) -> None:
        """Called in any case, at the end of this process's part of the run."""


class Callbacks:
    """Calls ``progress``, then all of ``callbacks``, and leaves out one that has failed after that has been said."""

    def __init__(self, callbacks: Sequence[Callback], progress: Hooks) -> None:
        self._callbacks, self.progress = list(callbacks), progress
        self.started = False

    def start(self, start: RunStart) -> None:
        self.started = True
        self._each(lambda callback: callback.on_start(start))

    def step(self, step: StepReport) -> None:
        self.progress.step(step)
        self._each(lambda callback: callback.on_step(step))

    def evaluated(self, evaluation: Evaluation) -> None:
        self.progress.evaluated(evaluation)
        self._each(lambda callback: callback.on_evaluation(evaluation))

    def end(self, result: Result) -> None:
        self._each(lambda callback: callback.on_end(result))

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._each(lambda callback: callback.close())

    def _each(self, call: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                call(callback)
            except Exception as error:  # whatever a stranger's code does: the run is worth more
                self._callbacks.remove(callback)
                cause = " ".join(f"{type(error).__name__}: {error}".split())
                name = type(callback).__name__
                self.progress.say(f"warning: the callback {name} failed ({cause}); the run goes on without it")
