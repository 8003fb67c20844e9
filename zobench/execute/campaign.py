"""The rest of a campaign: which rounds of each part are not stored whole, and how long they should take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from zobench import cost
from zobench.execute.plan import Limits, Step, decide, is_settled
from zobench.recipes.campaign import PartOn
from zobench.result import Outcome, Result
from zobench.result.repeats import folded, number_of
from zobench.runspec import RunSpec


def unmeasured(stored: Sequence[tuple[RunSpec, Result | None]], retry: Collection[str]) -> list[RunSpec]:
    """The cells of a round that are left to run, given what is ``stored`` of each. Ratios of times are of pairs within
    one round, so of a round that was stopped, or put together of several, all cells run that can: ends other than ok
    stay, unless they are to ``retry``. A cell with a task is there for its accuracy, and counts by itself."""
    timed = [result for spec, result in stored if spec.task == "none"]
    began = {result.round.began if result.round else None for result in timed if result is not None and result.is_ok}
    is_one_round = not began or (len(began) == 1 and None not in began)
    is_whole = is_one_round and all(is_settled(result, retry) for result in timed)
    return [
        spec
        for spec, result in stored
        if not is_settled(result, retry) or (spec.task == "none" and not is_whole and result and result.is_ok)
    ]


def whole_round(steps: Sequence[Step], retry: Collection[str]) -> list[Step]:
    """The ``steps`` of a round, in which also stored cells run that are of no use alone (:func:`unmeasured`), or are
    skipped where they do not fit any more."""
    left = {
        spec.hash for spec in unmeasured([(step.spec, step.earlier) for step in steps if step.action != "skip"], retry)
    }
    return [
        step if step.action != "keep" or step.spec.hash not in left
        else replace(step, action="skip", reason=step.lacks.reason) if step.lacks
        else replace(step, action="run")
        for step in steps
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Runs of a part, each a cell and the number of its round: those that are ``wanted``, and those ``left`` to do."""

    wanted: tuple[tuple[RunSpec, int], ...]
    left: tuple[tuple[RunSpec, int], ...]

    @property
    def done(self) -> int:
        return len(self.wanted) - len(self.left)


def progress(
    cells: Sequence[RunSpec], numbers: Sequence[int], runs: Sequence[Result], retry: Collection[str] = ()
) -> Progress:
    """How far ``cells`` are, each of which is wanted in the rounds ``numbers``; one that did not end well in the first,
    as it ran out of memory, in no other. ``runs``: this machine's, each repeat for itself. ``retry``: outcomes that are
    to be tried again; see :func:`unmeasured`."""
    by_hash = {(run.spec.hash, number_of(run)): run for run in runs}
    wanted, left = list[tuple[RunSpec, int]](), list[tuple[RunSpec, int]]()
    firsts = [run for run in runs if number_of(run) == numbers[0] and not run.is_ok]
    hopeless = {run.spec.hash for run in firsts if is_settled(run, retry)}
    for number in numbers:
        members = [spec for spec in cells if number == numbers[0] or spec.hash not in hopeless]
        wanted += [(spec, number) for spec in members]
        stored = [(spec, by_hash.get((spec.hash, number))) for spec in members]
        left += [(spec, number) for spec in unmeasured(stored, retry)]
    return Progress(wanted=tuple(wanted), left=tuple(left))


def part_progress(
    on: PartOn, runs: Sequence[Result], retry: Collection[str] = (), unfit: Collection[str] | None = None
) -> Progress:
    """How far a part is, less the ``unfit`` cells, by their hash; None: those that were so when they were planned. Of a
    protocol the runs that can be foreseen."""
    unfit = _skipped(runs) if unfit is None else unfit
    if on.contest is None:
        return progress([cell for cell in on.cells if cell.hash not in unfit], on.rounds, runs, retry)
    by_hash = {run.spec.hash: run for run in runs if number_of(run) == on.first}
    cells = [cell for cell in on.contest.foreseen(by_hash, unfit) if cell.hash not in unfit]
    left = tuple((cell, on.first) for cell in cells if not is_settled(by_hash.get(cell.hash), retry))
    return Progress(wanted=tuple((cell, on.first) for cell in cells), left=left)


def fitting(cells: Sequence[RunSpec], runs: Sequence[Result]) -> list[RunSpec]:
    """``cells`` less those that this machine was found too small for, and never ran."""
    unfit = _skipped(runs)
    return [cell for cell in cells if cell.hash not in unfit]


def _skipped(runs: Sequence[Result]) -> set[str]:
    """The hashes of cells that were skipped, and never ran."""
    good = {run.spec.hash for run in runs if run.is_ok}
    return {run.spec.hash for run in runs if run.outcome is Outcome.SKIPPED} - good


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """A part as this machine meets it now. ``steps``: one for each of its cells, in the first round; ``unfit``: those
    that cannot run here. ``whole`` and ``left``: predicted seconds of all its runs, and of those that are not done; nan
    where no rates are known. ``most``: those left and all that the grids of a protocol may add to them."""

    on: PartOn
    steps: tuple[Step, ...]
    progress: Progress
    whole: float
    left: float
    most: float
    unfit: tuple[Step, ...]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left that can run here."""
        return not self.progress.left

    @property
    def purpose(self) -> str:
        """The purpose of the part, the obstacle that keeps it from being run, and the cells that this machine is too
        small for."""
        if not self.unfit:
            return self.on.purpose
        cells = "1 cell" if len(self.unfit) == 1 else f"{len(self.unfit)} cells"
        return f"{self.on.purpose}; not here: {cells}, the first {self.unfit[0].reason}"


def outlook(
    on: PartOn, runs: Sequence[Result], rates: cost.Rates | None, room: Limits, retry: Collection[str] = ()
) -> Outlook:
    """A part whose cells are resolved for this machine: see :func:`progress`. Without ``rates`` its seconds are nan."""
    earlier = folded(runs)
    first = {run.spec.hash: run for run in runs if number_of(run) == on.first}
    cells = on.contest.foreseen(first) if on.contest else on.cells
    steps = [decide(spec, first.get(spec.hash), earlier, rates, room, retry) for spec in cells]
    steps = steps if on.contest else whole_round(steps, retry)
    unfit = tuple(step for step in steps if step.action == "skip")
    seconds = {step.spec.hash: step.estimate.seconds if step.estimate else 0.0 for step in steps}
    unfit_hashes = {step.spec.hash for step in unfit}
    part = part_progress(on, runs, retry, unfit_hashes)
    whole, left = (sum(seconds[spec.hash] for spec, _ in runs_of) for runs_of in (part.wanted, part.left))
    added = on.contest.addable(first, unfit_hashes) if on.contest else ()
    most = left + sum(seconds[spec.hash] for spec in added)
    return Outlook(on=on, steps=tuple(steps), progress=part, whole=whole, left=left, most=most, unfit=unfit)
