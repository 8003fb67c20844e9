"""This machine as a sweep finds it: what it is, its rates, its plans, and its store under a lock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.execute.plan import Plan
    from zobench.predict import Rates
    from zobench.result import Result
    from zobench.runspec import RunSpec
    from zobench.store import Store


class Here:
    """This machine as a sweep into ``store`` finds it. Says on ``errors`` what it is, and how its rates were got: they
    are measured when a cell is to run for which none are known, and never in a ``dry`` run."""

    def __init__(
        self, store: Store, device: str, why: str, disk_dir: Path | None, errors: Console, *, dry: bool = False
    ) -> None:
        from zobench.measure.environment import fingerprint_without_torch

        facts = fingerprint_without_torch()
        self.machine: str = facts["machine"]
        self._store, self._device, self._disk_dir, self._errors = store, device, disk_dir, errors
        self._told: set[str] = set()
        self._dry = dry
        self._introduction = f"{why}; machine {self.machine} ({facts['description']})"

    def say(self, text: str, style: str = "dim") -> None:
        """Prints ``text``, if there is one."""
        from zobench.cli.console import alarm

        if text:
            screen = self._errors if style == "dim" else alarm(self._errors)
            screen.print(text, style=style, markup=False, soft_wrap=True)

    @cached_property
    def rates(self) -> dict[str, Any]:
        """The machine's rates, measured where nobody has kept them."""
        from zobench.execute.rates import calibration

        self._introduce()
        with self._errors.status("measuring this machine's rates, once"):
            rates = calibration(self._store.root, self.machine, self._device, self._disk_dir)
        for note in rates["notes"]:
            if note.startswith(("not kept", "slower")):
                self.say(f"warning: this machine's rates were {note}", "yellow")
        return rates

    def _introduce(self) -> None:
        """Says which machine it is, once."""
        told, self._introduction = self._introduction, ""
        self.say(told)

    @cached_property
    def _knows(self) -> bool:
        """Whether the machine's rates are known without measuring."""
        from zobench.execute.rates import are_known

        return are_known(self._store.root, self.machine, self._device, self._disk_dir)

    @property
    def own_rates(self) -> Rates:
        """The same for the predictor."""
        from zobench import predict

        return predict.Rates.of(self.rates)

    @property
    def rates_now(self) -> Rates | None:
        """The same; None in a dry run on a machine whose rates nobody has measured."""
        return None if self._dry and not self._knows else self.own_rates

    def known(self) -> dict[str, Result]:
        """The results of this machine by their hash, less those of plug-ins that were changed since."""
        from zobench.store import is_current

        return {result.spec.hash: result for result in self._store.load(self.machine) if is_current(result)}

    @cached_property
    def narrow(self) -> str | None:
        """The 16-bit type that this machine is fastest in; None if it is faster in 32 bits."""
        from zobench import predict

        if self._dry and not self._knows:
            self.say("dtype: bf16 stands for the 16-bit type in which this machine is fastest, which was not measured")
            return "bf16"
        chosen, told = predict.fastest_narrow(self.own_rates)
        self.say(told)
        return chosen

    def plan(self, cells: Sequence[RunSpec], retry: Collection[str], note: str, number: int = 0) -> Plan:
        """The plan of ``cells`` for the round of that number, after the ``note`` on them; what is stored and cannot be
        read is said."""
        from zobench.cli.console import waiting
        from zobench.execute import plan

        self._introduce()
        self.say(note)
        where = (cells, self._store, self.machine, self._device, retry, self._disk_dir)
        what, planned = f"planning {len(cells)} cells", None
        if not (self._knows or "rates" in vars(self)):
            with waiting(self._errors, what):
                planned = plan.unpriced(*where, number)
        if planned is None or not (self._dry or all(step.action != "run" for step in planned.steps)):
            rates = self.rates
            with waiting(self._errors, what):
                planned = plan.here(*where, rates, number)
        for problem in self._store.problems:
            if problem not in self._told:  # a protocol is planned twice
                self.say(f"not read: {problem}", "yellow")
        self._told |= set(self._store.problems)
        return planned


@contextmanager
def keeping(store: Store, errors: Console) -> Iterator[None]:
    """Locks ``store`` against other sweeps inside the block; warns if results cannot be written there."""
    from zobench.cli.console import alarm
    from zobench.store import NoLocksError, StoreError

    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            told = f"warning: nothing will be kept: {error.strerror}"
            if isinstance(error, NoLocksError):
                told = f"warning: results are kept, but nothing keeps a second sweep out: {error.strerror}"
            alarm(errors).print(told, style="yellow", markup=False, soft_wrap=True)
        yield
