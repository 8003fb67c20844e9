"""The later stages of a protocol in a sweep: points beside the best of each grid, then the winners with other seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zobench.execute.plan import Plan, Step
from zobench.execute.sweep import Summary
from zobench.recipes.protocol import Contest, is_done
from zobench.report import power
from zobench.result import Result
from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """What a sweep needs for them. ``results``: the machine's by their hash; ``plan`` plans cells, ``show`` shows
    a plan under a heading, ``run`` runs one within so many seconds (None: as many as it takes)."""

    contest: Contest
    results: Callable[[], Mapping[str, Result]]
    plan: Callable[[Sequence[RunSpec]], Plan]
    show: Callable[[str, Sequence[Step], float | None], None]
    run: Callable[[Plan, float | None], Summary]

    def foresee(self) -> None:
        """Shows the plan of the stages after the grids: the winners' runs, and of a method that is not tuned yet those
        of its first point, which take as long."""
        results, protocol = self.results(), self.contest.protocol
        waiting = self._untuned(results)
        later = self.contest.foreseen(results)[len(self.contest.cells) :]
        if not later:
            return
        stand = f" ({len(waiting)} not chosen yet: their first point stands in)" if waiting else ""
        self.show(
            f"Then points beyond each grid whose best one is its end, at most {protocol.extra}, and the best point of "
            f"each method with {len(protocol.seeds)} seeds, and the test set{stand}", self.plan(later).steps, None,
        )  # fmt: skip

    def power(self) -> str:
        """What the protocol can show, from the spread of seeds in this machine's runs and the published ones."""
        return power.of_contest(self.contest, self.results().values())

    def follow(self, first: Summary, budget: float | None, begin: float) -> tuple[Summary, list[Step], int]:
        """Runs the later stages in what is left of the ``budget`` of seconds since ``begin`` (``time.monotonic()``).

        Returns what all stages came to, the steps of the later ones, and how many runs are not among these but still to
        come: the last runs of methods that are not tuned yet, or all that are lacking if their stage did not begin.
        """
        steps: list[Step] = []
        measured = {**self.results(), **{result.spec.hash: result for result in first.results}}
        tried: set[str] = set()
        while True:
            added = [run for run in self.contest.added(measured) if not is_done(measured.get(run.hash))]
            added = [run for run in added if run.hash not in tried]
            stage = added or [run for run in self.contest.finals(measured) if run.hash not in tried]
            left = None if budget is None else budget - (time.monotonic() - begin)
            if first.interrupted or not stage or (left is not None and left <= 0):
                lacking = sum(not is_done(measured.get(run.hash)) for run in stage)
                return first, steps, lacking + len(self._untuned(measured)) * len(self.contest.protocol.seeds)
            planned = self.plan(stage)
            self.show(
                "Beside the best point of each grid" if added else "The best point of each method", planned.steps, left
            )
            summary = self.run(planned, left)
            steps += planned.steps
            tried |= {run.hash for run in stage}
            measured |= {result.spec.hash: result for result in summary.results}
            first.results += summary.results
            first.unsaved += summary.unsaved
            first.interrupted = summary.interrupted

    def _untuned(self, results: Mapping[str, Result]) -> list[str]:
        """The methods whose grids have not run whole; one that is tuned and has no finite loss has no last stage."""
        return [header for header in self.contest.tuning if not self.contest.is_tuned(header, results)]
