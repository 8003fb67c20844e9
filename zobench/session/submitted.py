"""The cells of sweeps that were submitted to Slurm or to the local pool, as this machine sees them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.execute.jobs import CellState, Submission
    from zobench.runspec import RunSpec


def refuse_twice(results: Path, cells: Sequence[RunSpec]) -> None:
    """Raises :class:`zobench.store.BusyError` if a submitted sweep has one of ``cells`` queued or running."""
    from zobench.execute import jobs
    from zobench.store import BusyError

    wanted = {spec.hash for spec in cells}
    for submission in jobs.submissions(results):
        twice = [s for s in cell_states(submission) if s.state in jobs.ACTIVE and s.spec.hash in wanted]
        if twice:
            name, number, where = submission.name, submission.id, results_option(results)
            raise BusyError(
                f"a cell must be in one sweep at a time, but {len(twice)} of these are queued or running in {name} "
                f"{number}; wait for it (zobench status{where}), end it (zobench cancel {number}{where}), "
                "or name another --results"
            )


def cell_states(submission: Submission) -> list[CellState]:
    """Where each cell of a submitted sweep is."""
    from zobench.execute import jobs

    said = [jobs.progress(submission, cell) for cell in range(len(submission.cells))]
    over = all(report is not None and report.outcome for report in said)
    return jobs.states(submission, {} if over else backend(submission).look(submission))


def backend(submission: Submission) -> Any:
    """The module that has submitted it: :mod:`zobench.execute.slurm` or :mod:`zobench.execute.pool`."""
    from zobench.execute import pool, slurm

    return {"slurm": slurm, "local": pool}[submission.executor]


def results_option(results: Path) -> str:
    """`` --results DIR`` for a command that is suggested, or "" for the default folder."""
    return "" if results.absolute() == Path("results").absolute() else f" --results {shlex.quote(str(results))}"
