"""The second stage of a protocol in a sweep: the runs of its winners, foreseen before, planned once they are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zobench.execute.plan import Plan, Step
    from zobench.execute.sweep import Summary
    from zobench.recipes.protocol import Contest
    from zobench.result import Result
    from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Second:
    """What a sweep needs for it. ``known``: the machine's results by their hash; ``plan`` plans cells, ``show`` shows
    a plan under a heading, ``run`` runs one within so many seconds (None: as many as it takes)."""

    contest: Contest
    known: Callable[[], Mapping[str, Result]]
    plan: Callable[[Sequence[RunSpec]], Plan]
    show: Callable[[str, Sequence[Step], float | None], None]
    run: Callable[[Plan, float | None], Summary]

    def foresee(self) -> None:
        """Shows the plan of the second stage, if there can be one: the winners' runs, and of a method that is not
        tuned yet those of its first point, which take as long."""
        results, seeds = self.known(), self.contest.protocol.seeds
        waiting = self._untuned(results)
        chosen = {header: self.contest.winner(header, results) for header in self.contest.tuning}
        likely = [spec or self.contest.tuning[one][0] for one, spec in chosen.items() if spec or one in waiting]
        if not likely:
            return
        steps = self.plan([self.contest.final(spec, seed) for seed in seeds for spec in likely]).steps
        told = f" ({len(waiting)} not chosen yet: their first point stands in)" if waiting else ""
        self.show(f"Then the best point of each method with {len(seeds)} seeds, and the test set{told}", steps, None)

    def follow(self, first: Summary, budget: float | None, begin: float) -> tuple[Summary, list[Step], int]:
        """Runs the winners in what is left of the ``budget`` of seconds since ``begin`` (``time.monotonic()``).

        Returns what both stages came to, the steps of the second, and how many runs are not among these but still to
        come: of methods that are not tuned yet, or all that are lacking if the second stage did not begin.
        """
        from zobench.recipes.protocol import is_done

        known = {**self.known(), **{result.spec.hash: result for result in first.results}}
        finals = self.contest.finals(known)
        unknown = len(self._untuned(known)) * len(self.contest.protocol.seeds)
        left = None if budget is None else budget - (time.monotonic() - begin)
        if first.interrupted or not finals or (left is not None and left <= 0):
            return first, [], unknown + sum(not is_done(known.get(spec.hash)) for spec in finals)
        planned = self.plan(finals)
        self.show("The best point of each method", planned.steps, left)
        second = self.run(planned, left)
        first.results += second.results
        first.unsaved += second.unsaved
        first.interrupted = second.interrupted
        return first, planned.steps, unknown

    def _untuned(self, results: Mapping[str, Result]) -> list[str]:
        """The methods whose grids have not run whole; one that is tuned and has no finite loss has no second stage."""
        return [header for header in self.contest.tuning if not self.contest.is_tuned(header, results)]
