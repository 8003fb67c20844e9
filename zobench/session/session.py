"""The functions that a user's program calls: sweeps, their plans, campaigns, and comparisons of stored results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from zobench import recipes
from zobench.execute.monitor import Monitor
from zobench.execute.plan import Plan
from zobench.execute.sweep import Summary
from zobench.recipes import campaign as campaigns
from zobench.runspec import FIELDS, check_keywords, named_arguments
from zobench.session.campaigns import CampaignRun
from zobench.session.inputs import parse_seconds
from zobench.session.machine import LocalMachine
from zobench.session.matrices import MatrixSweep, SweepOptions
from zobench.store import Store, printable
from zobench.store import compare as comparing
from zobench.store.compare import Comparison


class Session(LocalMachine):
    """A session runs sweeps on this machine and keeps their results in a store."""

    def matrix(self, name: str | Path, **options: Any) -> MatrixSweep:
        """The sweep of a matrix, by its name or file, to plan and run; ``options``: of
        :class:`zobench.session.matrices.SweepOptions`."""
        _check(options)
        return MatrixSweep(self, str(name), SweepOptions(**options))

    def sweep(self, name: str | Path, **options: Any) -> Summary:
        return self.matrix(name, **options).go()

    def campaign(
        self, name: str | Path, *, part: str | None = None, budget: str | float | None = None, retry: str = "none",
        busy: bool = False, more: bool = False,
    ) -> Summary:  # fmt: skip
        """Runs what is left of a campaign, by its name or file, or of one ``part``, as far as the ``budget`` (seconds,
        or text as ``2h30m``) holds whole parts. The rest: see :class:`zobench.session.campaigns.CampaignRun`."""
        definition, seconds = campaigns.load(recipes.find("campaigns", name)), parse_seconds("budget", budget)
        run = CampaignRun(self, definition, retry=retry, busy=busy, more=more)
        return run.go(run.outlooks(part)[0], seconds)


def sweep(matrix: str | Path, **options: Any) -> Summary:
    """Runs the cells of a matrix, by its name or file, each in a fresh process, and stores each result, as ``zobench
    sweep`` does: what is stored is not run again.

    ``options``: ``results``, the folder that they are stored in; ``device``: auto, cpu, cuda or cuda:N; ``disk_dir``:
    the folder of the disk tier; ``monitor``, which is told how it goes (:class:`zobench.Monitor`); and those of
    :class:`zobench.SweepOptions`, as ``budget="10m"`` or ``repeats=5``. A KeyboardInterrupt ends the sweep, and the
    summary says so. Raises ``ValueError`` for what cannot be, before anything is measured, and ``BusyError``, an
    ``OSError``, while another sweep writes into that store or has these cells.
    """
    return _sweep(matrix, **options).go()


def plan(matrix: str | Path, **options: Any) -> Plan:
    """The steps that :func:`sweep` would take, of the same ``options``; nothing is measured: of each cell whether it
    runs, is kept or is skipped, why, its predicted bytes, and seconds, nan where this machine's rates are not known."""
    return _sweep(matrix, dry=True, **options).plan()


def _sweep(
    matrix: str | Path, *, results: str | Path = "results", device: str = "auto", disk_dir: str | Path | None = None,
    monitor: Monitor | None = None, dry: bool = False, **options: Any,
) -> MatrixSweep:  # fmt: skip
    _check(options, "results", "device", "disk_dir", "monitor")
    return Session(Store(Path(results)), device, disk_dir=disk_dir, monitor=monitor, dry=dry).matrix(matrix, **options)


def _check(options: Mapping[str, Any], *others: str) -> None:
    """Raises ``ValueError`` for one that is none of a sweep and none of ``others``."""
    written = {field: f"changes={{'{field}': ...}}" for field in FIELDS if field != "device"}
    written["executor"] = "`zobench sweep --executor`"
    check_keywords("sweep", options, [*others, *(field.name for field in fields(SweepOptions))], written)


@named_arguments()
def compare(
    before: str | Path, after: str | Path, *, results: str | Path = "results", tolerance: float = 0.02,
    across_machines: bool = False, monitor: Monitor | None = None,
) -> Comparison:  # fmt: skip
    """Compares two sets of runs cell by cell, as ``zobench compare`` does: which steps became faster or slower.
    ``before`` and ``after``: a folder of results, or of the store in ``results`` a machine, a commit or conditions as
    ``engine=offload``. ``tolerance``: the share by which equal step times may differ. ``across_machines``: cells of
    other machines are matched too. ``monitor`` is told what cannot be read, and cautions. Raises ``ValueError`` for a
    side that names nothing and a tolerance that is no share."""
    if not 0 <= tolerance <= 1:
        raise ValueError(f"`tolerance` must be a share from 0 to 1, but got {tolerance:g}; write 0.02 for 2 %")
    words, monitor = (str(before), str(after)), monitor or Monitor()
    with monitor.waiting("reading results"):
        (a, problems_a), (b, problems_b) = (comparing.side(word, Path(results)) for word in words)
    for problem in dict.fromkeys([*problems_a, *problems_b]):
        monitor.say(f"not read: {problem}", "yellow")
    fields = comparing.differing_fields(words)
    comparison = comparing.compare(a, b, tolerance=tolerance, across_machines=across_machines, may_differ=fields)
    for caution in comparing.cautions(comparison):
        monitor.say(printable(f"warning: {caution}"), "yellow")
    return comparison
