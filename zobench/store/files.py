"""The store of results: one JSON file per run, written atomically, read back forgivingly, shown as one data frame."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.machine.files import NO_LOCKS, REMEDY, locked, replace
from zobench.result import Outcome, Result
from zobench.result.repeats import folded, number_of
from zobench.runspec import FIELDS, RunSpec, provenance
from zobench.runspec.registries import METRICS
from zobench.store.measured import ALLOCATED_MEMORY, GPU_MEMORY
from zobench.store.reading import read

if TYPE_CHECKING:
    import pandas as pd

PAPER = "paper"
"""The folder beside the machines' folders that holds the papers' values; it holds no results."""

_MOST_PROBLEMS = 20
"""The most files that are named as unreadable, each in a line; of more only the number is."""
_LONGEST = 500
"""Characters of a problem: a file's own text can be part of it."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REMEDY = {
    **REMEDY,
    errno.EROFS: "choose a results folder on a writable disk",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "choose a results folder that you may write to"),
}


LOCK = ".lock"
"""File in the root that a sweep holds locked; the lock goes with its process."""


RESULT = "result.json"
"""The file of a fine-tuning run's result in the run's own folder, which no store holds."""
JOURNAL = ".journal"
"""Ending of the file beside a result that holds the journal of its run (:mod:`zobench.durable.journal`)."""


class StoreError(OSError):
    """A result could not be written; the message is one line with the file, the cause and the remedy."""


class NoLocksError(StoreError):
    """The store can be written, but its file system has no working locks, as NFS may not have."""


class BusyError(OSError):
    """Another sweep writes into this store."""


def _refused(error: OSError, text: str) -> StoreError:
    return StoreError(error.errno, f"{text}; {_REMEDY.get(error.errno or 0, 'choose another results folder')}")


class Store:
    """Results under ``root/<machine>/``, one file per run. ``problems`` lists the files that could not be read.

    A cell that was repeated has a file for each round: ``NAME-HASH.json``, ``NAME-HASH-r1.json`` and so on.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.problems: list[str] = []
        self._untold = 0

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second sweep out meanwhile. Raises :class:`BusyError` if one writes here already,
        :class:`NoLocksError` if none could be kept out, and :class:`StoreError` if nothing can be written here."""
        with contextlib.ExitStack() as locks:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                locks.enter_context(locked(self.root / LOCK, wait=False))
            except BlockingIOError:
                raise BusyError(
                    f"{self.root} must have one writer, but another sweep uses it; wait, or name another --results"
                ) from None
            except OSError as error:
                if error.errno in NO_LOCKS:
                    raise NoLocksError(
                        error.errno, f"{self.root} must be on a disk with working locks, but got {error.strerror!r}; "
                        "choose a results folder on another"
                    ) from None  # fmt: skip
                raise _refused(error, f"{self.root} must be writable, but got {error.strerror!r}") from None
            yield

    def path(self, spec: RunSpec, machine: str, number: int = 0) -> Path:
        """Where a result is kept, ``number`` being its round's. The hash separates what cleaning makes equal."""
        name = "-".join((spec.model[:80], spec.engine, spec.dtype, spec.hash, *([f"r{number}"] if number else [])))
        clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")
        return self.root / _machine_folder(machine) / f"{clean}.json"

    def save(self, result: Result, journal: Path | None = None) -> Path:
        """Write ``result`` so that a crash at any moment leaves either the old file or the new one, whole; and beside
        it the journal whose SHA-256 it has, if there is one, and no other. ``journal``: of another store, to be copied.

        Raises :class:`StoreError` if the disk refuses (full, read-only, not permitted).
        """
        key = result.spec, machine_of(result), number_of(result)
        path, before = self.path(*key), self._kept(*key)
        kept, draft = path.with_suffix(JOURNAL), self.draft(*key[:2])
        text = text_of(without_place(result))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if journal is not None and journal.exists():
                shutil.copyfile(journal, draft)
            if not kept.exists() and _is_of(draft, result):  # else it waits, and is found there, until the result is in
                draft.replace(kept)
            replace(path, text.encode())
            if before != path:
                before.unlink(missing_ok=True)
            for file in (draft, before.with_suffix(JOURNAL), kept):
                if _is_of(file, result):
                    file.replace(kept)
                else:  # of an earlier run of this cell, or of one whose result was never stored
                    file.unlink(missing_ok=True)
        except OSError as error:
            cause = error.strerror or str(error)
            raise _refused(error, f"a result must be writable, but got {cause!r} for {path}") from error
        return path

    def draft(self, spec: RunSpec, machine: str) -> Path:
        """Where the journal of a run of ``spec`` on ``machine`` waits until its result is saved (:meth:`save`)."""
        return self.root / f".{machine}-{spec.hash}{JOURNAL}"

    def journal(self, result: Result) -> Path:
        """Where the journal of the stored ``result`` is: beside it, or where it waited if :meth:`save` was killed."""
        draft = self.draft(result.spec, machine_of(result))
        kept = self._kept(result.spec, machine_of(result), number_of(result)).with_suffix(JOURNAL)
        return draft if _is_of(draft, result) and not _is_of(kept, result) else kept

    def find(self, spec: RunSpec, machine: str, number: int = 0) -> Result | None:
        """The stored result of exactly this resolved ``spec`` in round ``number``; None without a readable one."""
        path = self._kept(spec, machine, number)
        return self.read(path) if path.exists() else None

    def _kept(self, spec: RunSpec, machine: str, number: int) -> Path:
        """:meth:`path`, or the file of the same run under the name that its model was shown by then, as a folder's may
        have another."""
        path = self.path(spec, machine, number)
        if path.exists() or not spec.config_hash:
            return path
        _, _, ending = path.name.rpartition(spec.hash)
        return next(iter(sorted(path.parent.glob(f"*-{spec.engine}-{spec.dtype}-{spec.hash}{ending}"))), path)

    def load(self, machine: str | None = None) -> list[Result]:
        """One result of each cell, of one machine or of all, with its repeats; renews ``problems``."""
        runs = self.runs(machine)
        return folded(runs) if any(map(number_of, runs)) else runs

    def runs(self, machine: str | None = None) -> list[Result]:
        """All readable results in path order, each repeat for itself, of one machine or of all; renews ``problems``.
        The collector of cycles pauses: results have none, and looking for them in thousands takes half the time of a
        load."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            return list(self.each(machine))
        finally:
            if enabled:
                gc.enable()

    def each(self, machine: str | None = None) -> Iterator[Result]:
        """The results of :meth:`runs`, one after another: only one of them need be in memory."""
        self.problems, self._untold = [], 0
        for path in self.paths(machine):
            if (result := self.read(path)) is not None:
                yield result

    def paths(self, machine: str | None = None) -> list[Path]:
        """The files that should hold results, in order, of one machine or of all."""
        pattern = f"{_machine_folder(machine)}/*.json" if machine is not None else "*/*.json"
        folders = self.root.glob(pattern)  # also finds hidden ones, such as that of the machine's rates
        return sorted(path for path in folders if path.parent.name != PAPER and path.parent.name[0] != ".")

    def read(self, path: Path) -> Result | None:
        """The result in ``path``, a file of this store; None, and a line in ``problems``, if it cannot be believed."""
        return self.believed(path, lambda: read(path))

    def believed(self, path: Path, reading: Callable[[], Result]) -> Result | None:
        """Returns the result of ``reading`` if it is the one that belongs into the file ``path`` of this store; None,
        and a line in ``problems``, if not or if it raises ``OSError`` or ``ValueError``."""
        try:
            result = reading()
            if path.name == RESULT:
                raise ValueError("it is of the run in this folder; the results that commands list are in --results")
            if machine_of(result) != path.parent.name:
                raise ValueError(
                    f"it was measured on {machine_of(result)!r}, but lies in the folder of another machine; move it to "
                    f"{self.root / machine_of(result)}"
                )
            if self.path(result.spec, machine_of(result), number_of(result)) != path:
                raise ValueError("its name does not belong to the spec inside; was it renamed or edited?")
        except (OSError, ValueError) as error:
            self.add_problem(f"{path}: {' '.join(str(error)[:_LONGEST].split())}")
            return None
        return result

    def add_problem(self, problem: str) -> None:
        """Adds a line to ``problems``; of many, their number."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(printable(problem))
        else:
            self._untold += 1
            self.problems[_MOST_PROBLEMS:] = [f"{self.root}: {self._untold:,} more files"]


def opened(path: Path) -> tuple[Store, str | None]:
    """The store in the folder ``path``, and None; of a machine's folder in a store that store, and the machine."""
    store = Store(path)
    if store.paths() or not any(path.glob("*.json")):
        return store, None
    return Store(path.resolve().parent), path.resolve().name


def printable(text: str) -> str:
    """``text`` with every character that a terminal might obey replaced: names and reasons may come from anywhere."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def first_sweep(root: Path) -> str:
    """Returns the command that makes the first results in ``root``, as every command says of an empty folder."""
    return f"`zobench sweep smoke --results {shlex.quote(str(root))}` makes some"


def _is_of(journal: Path, result: Result) -> bool:
    """Whether there is a ``journal``, and of the run with this ``result``."""
    return journal.exists() and hashlib.sha256(journal.read_bytes()).hexdigest() == result.environment.journal_sha256


def text_of(result: Result) -> str:
    """``result`` as its file holds it."""
    return json.dumps(result.to_dict(), sort_keys=True, indent=1, allow_nan=False) + "\n"


def is_current(result: Result) -> bool:
    """Whether the plug-ins that ``result`` was made with, if any, are those that are installed now."""
    return bool((result.environment.plug_ins or {}) == provenance(result.spec).get("plug_ins", {}))


def machine_of(result: Result) -> str:
    """The short id of the machine that ``result`` was measured on; ``ValueError`` if it carries none."""
    if not result.environment.machine:
        raise ValueError("`environment.machine` must be a short name, but got None; for example cpu-2c-4f2a91")
    return result.environment.machine


def place_of(result: Result) -> str:
    """The place at which ``result`` was measured, for tables that must not mix places: the machine, and ``-cpu`` after
    it for runs on the CPU of a machine that has a GPU."""
    gpus = (result.environment.hardware or {}).get("gpus")
    return machine_of(result) + ("-cpu" if gpus and result.spec.device.startswith("cpu") else "")


def metrics(result: Result) -> dict[str, float | None]:
    """Returns the metrics of an ``ok`` result in base units: seconds, tokens/s, bytes, shares. Empty for other
    outcomes.

    ``device_peak_bytes`` is the allocator's, as in ``Result.memory``, where the papers' GPU memory is
    ``device_wide_peak_bytes``. A plug-in's metric is not among them: it is had by its name
    (``METRICS.get(name).of(result)``), as a table does.
    """
    if result.outcome is not Outcome.OK:
        return {}
    shown = [ALLOCATED_MEMORY if metric is GPU_MEMORY else metric for metric in METRICS.builtin()]
    return {**result.memory, **{metric.key: metric.of(result) for metric in shown if metric.key in COLUMNS}}


COLUMNS = (
    *FIELDS, "spec_hash", "machine", "outcome", "reason", "tokens_per_step", "step_seconds", "throughput",
    "floor_share", "predicted_step_seconds", "upload_rate", "offload_rate", "update_survival",
    "checkpoint_stall_seconds", "checkpoint_stall_share", "checkpoint_seconds", "accuracy", "start_accuracy",
    "dev_accuracy", "f1", "exact_match", "perplexity", "device_peak_bytes", "host_rss_peak_bytes",
    "energy_per_token_joules",
)  # fmt: skip
"""The columns of every data frame of results; further ones are named as the results' ``memory`` names them."""


def _row(result: Result) -> dict[str, Any]:
    """The spec's fields, ``spec_hash``, ``machine``, ``outcome``, ``reason``, ``tokens_per_step``, :func:`metrics`."""
    return {
        **metrics(result),  # first: no name in a file may take the place of a column of ours
        **result.spec.to_dict(),
        "options": str(result.spec.options),  # a text: columns of files hold no tables
        "spec_hash": result.spec.hash,
        "machine": machine_of(result),
        "outcome": str(result.outcome),
        "reason": result.reason,
        "tokens_per_step": result.tokens_per_step,
    }


def frame(results: Iterable[Result]) -> pd.DataFrame:
    """A row per result, a column per name: first those in which the results differ, then the others."""
    import pandas as pd

    rows = [_row(result) for result in results]
    rest = sorted({key for values in rows for key in values} - set(COLUMNS))
    table = pd.DataFrame(rows, columns=[*COLUMNS, *rest])
    return table[sorted(table.columns, key=lambda name: table[name].nunique(dropna=False) < 2)] if rows[1:] else table


def without_place(result: Result) -> Result:
    """``result`` without the folder of this machine in which its model lies, because results are shown to others."""
    if not Path(result.spec.model_path).is_absolute():  # a hub id says where others find it
        return result
    return replace_fields(result, spec=result.spec.replace(model_path=""))


def _machine_folder(machine: str) -> str:
    if not _PLAIN.fullmatch(machine) or machine.lower() == PAPER:
        raise ValueError(
            f"`machine` must be a short name of letters, digits, '.', '_' and '-' (not {PAPER!r}), "
            f"but got {machine!r}; for example cpu-2c-4f2a91"
        )
    return machine
