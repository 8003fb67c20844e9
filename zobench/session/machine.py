"""A store and this machine, as sweeps and campaigns find them: its rates, plans, lock, selftest, cells of a matrix."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from zobench import cost
from zobench.cost import Rates
from zobench.cost.budget import price
from zobench.cost.footprint import limited
from zobench.execute import plan
from zobench.execute.monitor import Monitor
from zobench.execute.plan import Plan
from zobench.execute.rates import are_known, calibration
from zobench.machine.device import choose_device
from zobench.machine.files import replace
from zobench.machine.texts import duration, json_of
from zobench.measure.environment import fingerprint_without_torch
from zobench.recipes import matrix
from zobench.recipes.matrix import Matrix
from zobench.result import Result
from zobench.runspec import RunSpec, check_value, size_text
from zobench.selftest import run
from zobench.session.inputs import check_folder, check_out, check_results
from zobench.store import NoLocksError, Store, StoreError, is_current


class LocalMachine:
    """This machine and a ``store`` of results, for sweeps on ``device`` (auto, cpu, cuda, cuda:N). ``disk_dir``: of the
    disk tier. ``monitor`` says what machine this is, and how its rates were got: measured when a cell needs them, never
    in a ``dry`` session. Raises ``ValueError`` for folders that are none, and for a device that is not here."""

    def __init__(
        self, store: Store, device: str = "auto", *, disk_dir: str | Path | None = None, monitor: Monitor | None = None,
        dry: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(store, Store):
            raise ValueError(f"`store` must be a Store, but got {store!r}; write Store({str(store)!r})")
        self.disk_dir = None if disk_dir is None else Path(disk_dir)
        check_folder("disk_dir", self.disk_dir)
        check_results(store.root)
        if not dry:
            check_out("results", store.root)
        self.store, self.monitor = store, monitor or Monitor()
        with self.monitor.waiting("loading PyTorch"):
            self.device, why = choose_device(device)
        facts = fingerprint_without_torch()
        self.machine = facts.machine
        self._unreadable: set[str] = set()
        self._dry = dry
        self._introduction = f"{why}; machine {self.machine} ({facts.description})"

    def say(self, text: str, style: str = "dim") -> None:
        self.monitor.say(text, style)

    def refuse_dry(self) -> None:
        """Raises ``ValueError`` in a dry session, before anything is measured."""
        if self._dry:
            raise ValueError("a session with dry=True measures nothing, but is to run cells; make one without it")

    @cached_property
    def rates(self) -> dict[str, Any]:
        """The machine's rates, measured where nobody has kept them."""
        self._introduce()
        with self.monitor.busy("measuring this machine's rates, once"):
            rates = calibration(self.store.root, self.machine, self.device, self.disk_dir)
        for note in rates["notes"]:
            if note.startswith(("not kept", "slower")):
                self.say(f"warning: this machine's rates were {note}", "yellow")
        return rates

    def _introduce(self) -> None:
        introduction, self._introduction = self._introduction, ""
        self.say(introduction)

    @cached_property
    def _has_rates(self) -> bool:
        return are_known(self.store.root, self.machine, self.device, self.disk_dir)

    @property
    def rates_now(self) -> Rates | None:
        """The rates, as predictions take them; None in a dry session on a machine whose rates nobody has measured."""
        return None if self._dry and not self._has_rates else Rates.of(self.rates)

    def priced_rates(self) -> Rates:
        """The rates that price a budget in seconds. Raises ``ValueError`` in a dry session that has none."""
        if self.rates_now is None:
            raise ValueError(
                "a budget in seconds needs the rates of this machine, but nobody has measured them; plan after a run"
            )
        return self.rates_now

    def results(self) -> dict[str, Result]:
        """The results of this machine by their hash, less those of plug-ins that were changed since."""
        return {result.spec.hash: result for result in self.store.load(self.machine) if is_current(result)}

    @cached_property
    def narrow(self) -> str | None:
        """The 16-bit type that this machine is fastest in; None if it is faster in 32 bits."""
        if self._dry and not self._has_rates:
            self.say("dtype: bf16 stands for the 16-bit type in which this machine is fastest, which was not measured")
            return "bf16"
        chosen, why = cost.fastest_narrow(Rates.of(self.rates))
        self.say(why)
        return chosen

    def plan(self, cells: Sequence[RunSpec], retry: Collection[str] = (), note: str = "", number: int = 0) -> Plan:
        """The plan of ``cells`` for round ``number``, after the ``note`` on them. ``retry``: outcomes to run again."""
        self._introduce()
        self.say(note)
        arguments = (cells, self.store, self.machine, self.device, retry, self.disk_dir)
        activity, planned = f"planning {len(cells)} cells", None
        if not (self._has_rates or "rates" in vars(self)):
            with self.monitor.waiting(activity):
                planned = plan.for_machine(*arguments, None, number)
        if planned is None or not (self._dry or all(step.action != "run" for step in planned.steps)):
            rates = self.rates
            with self.monitor.waiting(activity):
                planned = plan.for_machine(*arguments, rates, number)
        for problem in self.store.problems:
            if problem not in self._unreadable:  # a protocol is planned twice
                self.say(f"not read: {problem}", "yellow")
        self._unreadable |= set(self.store.problems)
        return planned


@contextmanager
def keeping(store: Store, say: Callable[[str, str], None]) -> Iterator[None]:
    """Locks ``store`` against other sweeps inside the block; warns if results cannot be written there."""
    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            warning = f"warning: nothing will be kept: {error.strerror}"
            if isinstance(error, NoLocksError):
                warning = f"warning: results are kept, but nothing keeps a second sweep out: {error.strerror}"
            say(warning, "yellow")
        yield


def selftest_first(session: LocalMachine, seconds: float) -> None:
    """Runs the selftest in about so many ``seconds``, shows its page and keeps its JSON beside the results, unless the
    session's device has passed it there. One that failed is no reason to measure nothing."""
    path = session.store.root / ".selftest" / f"{session.machine}-{session.device.replace(':', '')}.json"
    try:
        if json_of(path.read_bytes())["verdict"] == "ok":
            return session.say(f"selftest: ok before, see {path}")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError) as error:
        session.say(f"not read: {path} ({type(error).__name__}); the selftest runs again", "yellow")
    with session.monitor.busy("selftest, about " + duration(seconds)):
        verdict = run.selftest(session.device, seconds, run.CHECKS, disk_dir=session.disk_dir)
    session.say(verdict.page(), "yellow" if verdict.failed else "dim")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(verdict.to_dict(), indent=1, allow_nan=False).encode())
    except OSError as error:
        session.say(f"warning: the selftest's JSON was not kept: {error.strerror}", "yellow")


def matrix_cells(
    path: Path, device: str, values: dict[str, Any], narrow: Callable[[], str | None] = lambda: "bf16",
    rates: Callable[[], Rates] | None = None, part: Mapping[str, Any] | None = None,
) -> tuple[Matrix, tuple[RunSpec, ...], str]:  # fmt: skip
    """The matrix in ``path`` on ``device``, its cells changed by ``values``, and a note on ``device_memory``, which
    limits those that offload, or "". ``narrow`` and ``part``: see :func:`zobench.recipes.matrix.load`; ``rates``: this
    machine's, from which a budget in seconds is priced. Raises ``ValueError`` where no cell can be limited."""
    size = check_value("device_memory", values.get("device_memory", 0))
    changes = {key: value for key, value in values.items() if key != "device_memory" or not size}
    cells = matrix.load(path, device, changes, narrow, lambda unit, spec: price(unit, spec, rates), part)
    if size and cells.contest:
        raise ValueError(f"`device_memory` is not for the protocol {path.name}; leave it out")
    if not size:
        return cells, cells.cells, ""
    distinct = tuple(dict.fromkeys(limited(cell, size) for cell in cells.cells))
    limited_count = sum(cell.device_memory == size for cell in distinct)
    if not limited_count:
        raise ValueError(
            f"`device_memory` needs a cell with engine=offload and noise=counter, but {path.name} has none; "
            "leave it out, or add --set engine=offload --set noise=counter"
        )
    others = "; the others are resident or have torch noise, which leaves a planner no choice"
    note = f"device_memory={size_text(size)} holds for {limited_count} of {len(distinct)} cells"
    return cells, distinct, note + (others if limited_count < len(distinct) else "")
