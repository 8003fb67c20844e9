"""The store of results: one JSON file per run, written atomically, read back forgivingly, shown as one data frame."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zobench import predict
from zobench.result import Outcome, Result
from zobench.spec import FIELDS, RunSpec

if TYPE_CHECKING:
    import pandas as pd

PAPER = "paper"
"""The folder beside the machines' folders that holds the papers' values; it holds no results."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KINDS: dict[str, type] = {
    "reason": str,
    "environment": dict,
    "samples": dict,
    "warmup": dict,
    "memory": dict,
    "warnings": list,
    "skipped_updates": int,
}
_REMEDY = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EROFS: "choose a results folder on a writable disk",
    errno.EACCES: "choose a results folder that you may write to",
    errno.EPERM: "choose a results folder that you may write to",
}


LOCK = ".lock"
"""File in the root that a sweep holds locked; the lock goes with its process."""


class StoreError(OSError):
    """A result could not be written; the message is one line with the file, the cause and the remedy."""


class BusyError(OSError):
    """Another sweep writes into this store."""


class Store:
    """Results under ``root/<machine>/``, one file per run. ``problems`` lists the files that could not be read."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.problems: list[str] = []

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second sweep out meanwhile. Raises :class:`BusyError` if one writes here already, and
        :class:`StoreError` if nothing can be written here."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / LOCK).open("w")
        except OSError as error:
            remedy = _REMEDY.get(error.errno or 0, "choose another results folder")
            raise StoreError(
                error.errno, f"{self.root} must be writable, but got {error.strerror!r}; {remedy}"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"{self.root} must have one writer, but another sweep uses it; name another --results"
                ) from None
            yield

    def path(self, spec: RunSpec, machine: str) -> Path:
        """Where the result of ``spec`` on ``machine`` is kept. The hash tells apart what cleaning makes equal."""
        name = "-".join((spec.model[:80], spec.engine, spec.dtype, spec.hash))
        clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")
        return self.root / _machine_folder(machine) / f"{clean}.json"

    def save(self, result: Result) -> Path:
        """Write ``result`` so that a crash at any moment leaves either the old file or the new one, whole.

        Raises :class:`StoreError` if the disk refuses (full, read-only, not permitted).
        """
        path = self.path(result.spec, machine_of(result))
        text = json.dumps(result.to_dict(), sort_keys=True, indent=1, allow_nan=False) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, text.encode())
        except OSError as error:
            cause = error.strerror or str(error)
            remedy = _REMEDY.get(error.errno or 0, "choose another results folder")
            raise StoreError(
                error.errno, f"a result must be writable, but got {cause!r} for {path}; {remedy}"
            ) from error
        return path

    def find(self, spec: RunSpec, machine: str) -> Result | None:
        """The stored result of exactly this (resolved) ``spec``, or None; an unreadable one counts as none."""
        path = self.path(spec, machine)
        return self._read(path) if path.exists() else None

    def load(self, machine: str | None = None) -> list[Result]:
        """All readable results in path order, of one machine or of all; renews ``problems``."""
        self.problems = []
        pattern = f"{_machine_folder(machine)}/*.json" if machine is not None else "*/*.json"
        folders = self.root.glob(pattern)  # also finds hidden ones, such as that of the machine's rates
        paths = sorted(path for path in folders if path.parent.name != PAPER and path.parent.name[0] != ".")
        return [result for path in paths if (result := self._read(path)) is not None]

    def _read(self, path: Path) -> Result | None:
        try:
            values = json.loads(path.read_bytes(), parse_constant=_no_constant)
            result = _checked(values)
            if machine_of(result) != path.parent.name:
                raise ValueError(f"it was measured on {machine_of(result)}, but lies in the folder of another machine")
            if self.path(result.spec, machine_of(result)) != path:
                raise ValueError("its name does not belong to the spec inside; was it renamed or edited?")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self.problems.append(f"{path}: {' '.join(str(error).split())}")
            return None
        return result


def machine_of(result: Result) -> str:
    """The short id of the machine that ``result`` was measured on; ``ValueError`` if it carries none."""
    machine = result.environment.get("machine")
    if not isinstance(machine, str):
        raise ValueError(f"`environment.machine` must be a short name, but got {machine!r}; for example cpu-2c-4f2a91")
    return machine


def metrics(result: Result) -> dict[str, float | None]:
    """What an ``ok`` result measured, in base units: seconds, tokens/s, bytes, shares. Empty for other outcomes."""
    if result.outcome is not Outcome.OK:
        return {}
    step = result.step_seconds
    return {
        "step_seconds": step,
        "throughput": result.tokens_per_step / step if step else None,
        "floor_share": predict.floor_share(result),
        "update_survival": next(iter(result.parts.get("update_survival", [])), None),
        "device_peak_bytes": None,
        "host_rss_peak_bytes": None,
        **result.memory,
    }


def frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per result: the spec's fields, ``outcome``, ``reason``, ``machine``, and its :func:`metrics`."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("a data frame needs pandas, but it is not installed; pip install 'zobench[report]'") from None

    rows = [
        {
            **result.spec.to_dict(),
            "spec_hash": result.spec.hash,
            "machine": machine_of(result),
            "outcome": str(result.outcome),
            "reason": result.reason,
            "tokens_per_step": result.tokens_per_step,
            **metrics(result),
        }
        for result in results
    ]
    fixed = [*FIELDS, "spec_hash", "machine", "outcome", "reason", "tokens_per_step", "step_seconds", "throughput"]
    fixed += ["floor_share", "update_survival", "device_peak_bytes", "host_rss_peak_bytes"]
    rest = sorted({key for row in rows for key in row} - set(fixed))
    return pd.DataFrame(rows, columns=fixed + rest)


def _machine_folder(machine: str) -> str:
    if not _PLAIN.fullmatch(machine) or machine.lower() == PAPER:
        raise ValueError(
            f"`machine` must be a short name of letters, digits, '.', '_' and '-' (not {PAPER!r}), "
            f"but got {machine!r}; for example cpu-2c-4f2a91"
        )
    return machine


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` in one step that survives power loss: write beside it, sync, rename, sync the folder."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what stopped the write is the error worth reporting
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _checked(values: Any) -> Result:
    """``values`` as a Result, after checking the parts that every reader relies on."""
    if not isinstance(values, dict) or not isinstance(values.get("spec", {}), dict):
        raise ValueError("this file is not a zobench result")
    result = Result.from_dict(values)
    for name, kind in _KINDS.items():
        if not isinstance(getattr(result, name), kind):
            raise ValueError(f"`{name}` must be of type {kind.__name__}, but is not; this file is not a zobench result")
    lists = [*result.samples.values(), *result.warmup.values(), list(result.memory.values())]
    for numbers in lists:
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
            raise ValueError("`samples`, `warmup` and `memory` must hold finite numbers or null, but do not")
    return result


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value))
