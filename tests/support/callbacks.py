"""A callback for tests: it acts after some steps, and notes what it is told."""

from collections.abc import Callable, Mapping
from typing import Any

from zobench.result import Result
from zobench.training import Callback, Evaluation, RunStart, StepReport


class MachineDownError(BaseException):
    """What no run survives, as it does a callback's own errors."""


def crash() -> None:
    raise MachineDownError("the machine went down")


class Acting(Callback):
    """Does ``acts``, by the number of steps that are done. ``starts``: the steps that were done at each start;
    ``calls``: all that it is told but lines, in order."""

    def __init__(self, acts: Mapping[int, Callable[[], Any]] | None = None) -> None:
        self._acts = acts or {}
        self.lines: list[str] = []
        self.starts: list[int] = []
        self.steps: list[StepReport] = []
        self.evaluations: list[Evaluation] = []
        self.calls: list[Any] = []

    def on_line(self, text: str) -> None:
        self.lines.append(text)

    def on_start(self, start: RunStart) -> None:
        self.starts.append(len(start.steps))
        self.calls.append(("start", len(start.steps), len(start.evaluations)))

    def on_step(self, step: StepReport) -> None:
        self.steps.append(step)
        self.calls.append(step)
        if step.step in self._acts:
            self._acts[step.step]()

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        self.calls.append(evaluation)

    def on_end(self, result: Result) -> None:
        self.calls.append(("end", result.evaluation["test"]))

    def close(self) -> None:
        self.calls.append("close")
