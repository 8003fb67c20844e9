"""Cells that run side by side, each in a fresh process, and take their steps in turns: see zobench.measure.threads."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from zobench.execute.process import run_in_process, timed_out
from zobench.measure import threads
from zobench.measure.samples import crowded
from zobench.measure.threads import ChildPipes
from zobench.result import Result
from zobench.runspec import RunSpec

TICK = 0.1  # seconds between two calls of ``while_waiting``


def obstacle(spec: RunSpec) -> str:
    """Why ``spec`` cannot take turns with others, in a few words; "" if it can: then nothing of it goes on between two
    of its steps, in the turn of another, and its memory is told apart from theirs."""
    reasons = {
        "it is fine-tuned on a task": spec.task != "none",
        "another program takes its steps": spec.program != "zobench",
        "it has several ranks": spec.gpus > 1,
        "its checkpoints are written between two steps": spec.checkpoint != "none",
        "its transfers are measured alone after its steps": spec.parts,
        "processes on one GPU share its memory and its clocks": spec.device.startswith("cuda"),
    }
    return next((why for why, holds in reasons.items() if holds), "")


class _Stopped(BaseException):
    """The others were given up, so this cell's process is ended."""


class _Expired(BaseException):
    """This cell's process used up its own time, so it is ended."""


@dataclass(eq=False)
class _GiverPipes:
    """The giver's ends of a process's pipes. ``said``: its last word, "" while it is at work. ``left``: seconds that
    its turns may take from now on; ``is_expired``: they took longer."""

    pipes: ChildPipes
    gives: int
    hears: int
    left: float
    said: bytes = b""
    is_gone: bool = False
    is_expired: threading.Event = field(default_factory=threading.Event)

    def give(self) -> None:
        """Gives the turn, or lets the process go on that has no steps left."""
        self.said = b""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gives, b"!")

    def receive(self) -> None:
        """Takes what the process says; nothing more comes from one that has ended."""
        self.said = os.read(self.hears, 1)
        self.is_gone = not self.said


def _give_turns(givers: Sequence[_GiverPipes], order: random.Random, tick: Callable[[], None]) -> None:
    """Gives turns, one process at a time, in an ``order`` of each turn of all, until nobody asks any more."""
    _listen(givers, sum(giver.left for giver in givers), tick)  # they all begin at once, on the same cores
    while asking := [giver for giver in givers if giver.said == threads.ASKS]:
        order.shuffle(asking)
        for giver in asking:
            begin = time.monotonic()
            giver.give()
            _listen([giver], giver.left, tick)
            giver.left -= time.monotonic() - begin
    for giver in givers:
        giver.give()


def _listen(givers: Sequence[_GiverPipes], patience: float, tick: Callable[[], None]) -> None:
    """Returns once each of ``givers`` has said a word or is gone; one silent for ``patience`` seconds is ended."""
    silent = {giver.hears: giver for giver in givers if not giver.said and not giver.is_gone}
    end = time.monotonic() + patience
    while silent:
        heard = select.select(list(silent), [], [], TICK)[0]
        for ready in heard:
            silent.pop(ready).receive()
        if not heard:
            tick()
        if time.monotonic() >= end:
            for giver in silent.values():
                giver.is_expired.set()


def run_together(
    specs: Sequence[RunSpec], *, order: random.Random, slowdowns: Sequence[float] = (), timeout: float | None = None,
    disk_dir: Path | None = None, while_waiting: Callable[[], None] = lambda: None,
) -> list[Result]:  # fmt: skip
    """Measures ``specs`` side by side, each in a process of its own, their steps in turns that ``order`` shuffles.
    ``timeout``: seconds that the turns of each may take, and as many until all have begun; who takes longer is ended,
    and the others go on. The rest: see :func:`zobench.execute.process.run_in_process`. Raises ``ValueError`` for a spec
    that cannot take turns."""
    check(specs)
    chosen, stop, began = threads.chosen(), threading.Event(), time.time()
    neighbours = threads.Neighbours(children=True)

    def measured(spec: RunSpec, giver: _GiverPipes, slowdown: float) -> Result:
        def tick() -> None:
            if stop.is_set():
                raise _Stopped
            if giver.is_expired.is_set():
                raise _Expired

        try:
            bound = None if timeout is None else 2 * timeout * len(specs)  # until all have begun, and their turns
            return run_in_process(
                spec, timeout=bound, disk_dir=disk_dir, while_waiting=tick, slowdown=slowdown, pipes=giver.pipes
            )
        except _Expired:
            assert timeout is not None
            return timed_out(spec, timeout)
        finally:
            os.close(giver.pipes.given)
            os.close(giver.pipes.says)  # its end is heard at the other one

    shares = slowdowns or [0.0] * len(specs)
    seconds = math.inf if timeout is None else timeout
    with _giver_pipes(len(specs), chosen, seconds) as givers, ThreadPoolExecutor(len(specs)) as pool:
        cells = zip(specs, givers, shares, strict=True)
        running = [pool.submit(measured, spec, giver, share) for spec, giver, share in cells]
        try:
            _give_turns(givers, order, while_waiting)
            results = [each.result() for each in running]
            return _separated(results, began, neighbours.cores())
        finally:
            stop.set()


def check(specs: Sequence[RunSpec]) -> None:
    for spec in specs:
        if why := obstacle(spec):
            raise ValueError(
                f"`turns` needs cells that do nothing between two steps, but {spec.label} cannot wait: {why}; leave "
                "turns out"
            )


@contextlib.contextmanager
def _giver_pipes(count: int, chosen: threads.Threads | None, seconds: float) -> Iterator[list[_GiverPipes]]:
    givers: list[_GiverPipes] = []
    try:
        for _ in range(count):
            (given, gives), (hears, says) = os.pipe(), os.pipe()
            pipes = ChildPipes(given=given, says=says, threads=chosen)
            givers.append(_GiverPipes(pipes=pipes, gives=gives, hears=hears, left=seconds))
        yield givers
    finally:
        for giver in givers:
            os.close(giver.gives)
            os.close(giver.hears)


def _separated(results: Sequence[Result], began: float, others: float | None) -> list[Result]:
    """The results, with when the game ``began``. In place of what each saw stand the cores that ``others`` than all of
    them kept busy meanwhile; energy, which nobody can divide among them, has no value."""
    not_known = {"other_cpu_cores": others, "energy_joules": None, "mean_power_watts": None}
    separated: list[Result] = []
    for result in results:
        power = result.power and {**result.power, **not_known}
        warnings = [*result.warnings, *(crowded(others) if power else [])]
        separated.append(replace(result, power=power, warnings=warnings).with_facts(turns=began))
    return separated
