"""A campaign on this machine: what is left of its parts, and their runs, while the budget holds and others are idle."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zobench import recipes
from zobench.cost.budget import price
from zobench.execute import campaign as campaigns
from zobench.execute import plan, together
from zobench.execute.campaign import Outlook
from zobench.execute.plan import gpu_uuids
from zobench.execute.sweep import Summary
from zobench.machine.device import choose_device
from zobench.machine.texts import duration
from zobench.measure.sampler import DeviceReader
from zobench.measure.samples import DISTURBING_CORES
from zobench.measure.threads import Neighbours
from zobench.recipes.campaign import Campaign, PartOn, load
from zobench.result import Result
from zobench.runspec import suggestion
from zobench.session.inputs import parse_outcomes, parse_seconds
from zobench.session.machine import LocalMachine, keeping, selftest_first
from zobench.session.matrices import MatrixSweep, SweepOptions, refuse_torchrun
from zobench.store import Store

WATCH_SECONDS = 3.0  # how long others are watched, or waited for
TRIES = 5  # watches of a machine that is busy, before it counts as such: what lasts a moment is over by then


def beyond(count: int) -> str:
    """That ``count`` parts of a campaign are only run with ``--more``."""
    return f"{count} more {'part goes' if count == 1 else 'parts go'} beyond what it is for"


def chosen_parts(campaign: Campaign, device: str, wanted: str | None = None, *, more: bool = False) -> list[PartOn]:
    """The parts of a campaign on ``device``, with those beyond what it is for if ``more``; or the one called
    ``wanted``. Raises ``ValueError`` if no part is, if none of them can run, and for a bad time in its file."""
    for word in ("timeout", "selftest"):
        parse_seconds(f"{campaign.name}: {word}", getattr(campaign, word))
    names = [part.name for part in campaign.parts]
    if wanted is not None and wanted not in names:
        raise ValueError(f"`part` must be one of the campaign's, but got {wanted!r}; {suggestion(wanted, names)}")
    parts = campaign.on(device, price)
    chosen = [on for on in parts if (on.part.name == wanted if wanted is not None else more or not on.part.more)]
    if chosen and all(on.obstacle for on in chosen):
        raise ValueError(f"part {chosen[0].part.name}: {chosen[0].obstacle}")
    return chosen


def campaign_session(campaign: Campaign, store: Store, **settings: Any) -> LocalMachine:
    """This machine with the device that a campaign measures, if it is here; ``settings`` as of ``LocalMachine``."""
    try:
        choose_device(campaign.device)
    except ValueError as error:
        raise ValueError(
            f"the campaign {campaign.name} needs a CUDA device, but none is visible; run it where one is"
        ) from error
    return LocalMachine(store, campaign.device, **settings)


def disturbance(device: str, seconds: float) -> str:
    """Returns what would disturb a measurement on ``device`` now, if by as much as its result would mention, or ""."""
    if device.startswith("cuda"):
        uuids, index = gpu_uuids(), int(device.partition(":")[2] or 0)
        others = DeviceReader(uuids[index], os.getpid()).processes() if index < len(uuids) else {}
        return f"another process uses the GPU (pid {', '.join(map(str, others))})" if others else ""
    neighbours = Neighbours()
    time.sleep(seconds)
    cores = neighbours.cores()
    return "" if cores is None or cores <= DISTURBING_CORES else f"other processes keep {cores:.1f} cores busy"


def lasting_disturbance(device: str, seconds: float = WATCH_SECONDS, tries: int = TRIES) -> str:
    """The same, if it is still there after ``tries`` watches."""
    while (why := disturbance(device, seconds)) and (tries := tries - 1):
        if device.startswith("cuda"):
            time.sleep(seconds)
    return why


def state(name: str, runs: Sequence[Result]) -> tuple[str, str, str]:
    """(parts done, runs done, title) of a campaign; of one that cannot be read, why."""
    try:
        campaign = load(recipes.find("campaigns", name))
        device = "cuda:0" if campaign.device == "cuda" else campaign.device
        parts = [on for on in campaign.on(device, price) if not on.part.more]
        progresses = [campaigns.part_progress(on, runs) for on in parts if not on.obstacle]
    except ValueError as error:  # one bad file of the user's must not hide the others
        return "", "", f"cannot be read: {error}"
    done, wanted = sum(progress.done for progress in progresses), sum(len(progress.wanted) for progress in progresses)
    finished = sum(not progress.left for progress in progresses)
    halted = len(parts) - len(progresses)
    note = f"; {halted} of the parts cannot run here, --plan says why" if halted else ""
    return f"{finished} of {len(parts)}", f"{done} of {wanted}", campaign.title + note


class CampaignRun:
    """A campaign in a ``session``. ``retry``: outcomes to run again; ``busy``: measure also while others use the
    machine; ``more``: with the parts beyond what it is for. Raises ``ValueError`` for another device."""

    def __init__(
        self, session: LocalMachine, campaign: Campaign, *, retry: str = "none", busy: bool = False, more: bool = False
    ) -> None:
        if session.device.partition(":")[0] != campaign.device:
            raise ValueError(
                f"the campaign {campaign.name} is of {campaign.device}, but the session's device is {session.device}; "
                f"make one with device={campaign.device!r}"
            )
        self._session, self._campaign = session, campaign
        self._retry, self._busy, self.more = parse_outcomes(retry), busy, more

    def parts(self, wanted: str | None = None) -> list[PartOn]:
        return chosen_parts(self._campaign, self._session.device, wanted, more=self.more)

    def runs(self) -> list[Result]:
        """Returns the stored runs of this machine, each repeat for itself; a file that cannot be read is reported."""
        runs = self._session.store.runs(self._session.machine)
        for problem in self._session.store.problems:
            self._session.say(f"not read: {problem}", "yellow")
        return runs

    def outlooks(self, wanted: str | None = None) -> tuple[list[Outlook], list[Result]]:
        """Returns the rest of the parts (:func:`chosen_parts`), and the stored runs that it follows from. Raises
        ``ValueError`` for a part in turns with a cell that cannot take them."""
        session, parts = self._session, self.parts(wanted)
        for on in parts:  # before anything is measured
            try:
                together.check(on.cells if on.part.turns else ())
            except ValueError as error:
                raise ValueError(f"part {on.part.name}: {error}") from None
        room, rates = plan.limits(session.device, session.disk_dir), session.rates_now
        runs = self.runs()
        return [campaigns.outlook(on, runs, rates, room, self._retry) for on in parts], runs

    def go(self, outlooks: Sequence[Outlook], budget: float | None = None) -> Summary:
        """Runs the parts that are left while ``budget`` seconds hold the next. Raises ``ValueError`` on a busy
        machine."""
        refuse_torchrun()
        self._session.refuse_dry()
        end, total = None if budget is None else time.monotonic() + budget, Summary()
        left = [outlook for outlook in outlooks if not outlook.is_done]
        if left:
            self._check_idle()
            seconds = parse_seconds(f"{self._campaign.name}: selftest", self._campaign.selftest)
            if seconds is not None:
                with keeping(self._session.store, lambda *_: None):
                    selftest_first(self._session, seconds)
        for number, outlook in enumerate(left):
            if number:
                self._check_idle()
            rest = None if end is None else end - time.monotonic()
            if rest is not None and outlook.left > rest:
                self._session.say(
                    f"stops before {outlook.on.part.name}, which needs {duration(outlook.left)} (predicted): "
                    f"{duration(max(0.0, rest))} of the budget are left", "yellow",
                )  # fmt: skip
                total.waiting += sum(len(later.progress.left) for later in left[number:])
                break
            summary = self._run_part(outlook, f"{number + 1} of {len(left)}", rest)
            total.results += summary.results
            total.unsaved += summary.unsaved
            total.lost_repeats += summary.lost_repeats
            total.waiting += summary.waiting
            total.interrupted = summary.interrupted
            if total.interrupted:
                break
        return total

    def closing(self, name: str) -> list[str]:
        """Lines on what is left of the campaign, named as ``name``, and how its results are shown and sent."""
        session, parts, runs = self._session, self.parts(), self.runs()
        waiting = [on.part.name for on in parts if on.obstacle or campaigns.part_progress(on, runs).left]
        skipped = sum(len(on.cells) - len(campaigns.fitting(on.cells, runs)) for on in parts)
        results = session.store.root
        option = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
        others = [] if session.disk_dir is None else ["--disk-dir", str(session.disk_dir)]
        others += ["--busy"] * self._busy + (["--retry", ",".join(sorted(self._retry))] if self._retry else [])
        again = f"zobench campaign {shlex.quote(name)}{option}{f' {shlex.join(others)}' if others else ''}"
        lines = [f"left: {', '.join(waiting)}; to go on: {again}{' --more' * self.more}"] if waiting else []
        if skipped:
            subject = "cell was skipped, as it" if skipped == 1 else "cells were skipped, as they"
            when = "when it was" if skipped == 1 else "when they were"
            lines.append(f"{skipped} {subject} did not fit {when} planned; --plan looks again")
        lines.append(f"all tables, figures and machines: zobench report{option} --out report")
        if hidden := len(self._campaign.parts) - len(parts):
            lines.append(f"{beyond(hidden)}: {again} --more")
        if not waiting:
            archive = shlex.quote(f"{session.machine}-{self._campaign.name}.tar.gz")
            folder = shlex.quote(str(results))
            lines.append(f"to send it: zobench results {folder} --pack {archive} (docs/campaigns.md)")
        return lines

    def _check_idle(self) -> None:
        """Raises ``ValueError`` if others use the machine, unless that was allowed."""
        if not self._busy and (why := lasting_disturbance(self._session.device)):
            raise ValueError(f"a campaign needs an idle machine, but {why}; wait for them, or add busy=True (--busy)")

    def _run_part(self, outlook: Outlook, which: str, budget: float | None) -> Summary:
        """Runs what is left of a part, and says what it came to."""
        part, count, say = outlook.on.part, len(outlook.progress.left), self._session.say
        say(f"\npart {which}, {part.name}: {part.reason}; {count} runs, {duration(outlook.left)} (predicted)", "bold")
        options = SweepOptions(
            timeout=self._campaign.timeout, retry=",".join(self._retry), part=part.changes,
            first_round=outlook.on.first, repeats=part.repeats, turns=part.turns,
        )  # fmt: skip
        begin = time.monotonic()
        summary = MatrixSweep(self._session, part.matrix, options).run_part(budget)
        say(f"{part.name}: cells {summary.counts} in {duration(time.monotonic() - begin)}", "bold")
        for reason in dict.fromkeys(summary.unsaved):
            say(f"not saved: {reason}", "red")
        return summary
