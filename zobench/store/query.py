"""Which stored runs are wanted: conditions on their fields, their order, and an export."""

from __future__ import annotations

import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zobench import models
from zobench.machine import files
from zobench.machine.texts import csv_of
from zobench.result import Outcome, Result
from zobench.runspec import FIELDS, METHODS, check_choice, check_value, labels, parse_value, suggestion
from zobench.runspec.fields import FileField
from zobench.store import Store, first_sweep, frame, machine_of, printable
from zobench.store.reading import read

KEYS = (*FIELDS, "outcome", "machine")
"""The keys that a condition can be about."""
EXPORTS = (".csv", ".parquet")
_HASH = re.compile(r"[0-9a-f]{4,12}")
_ENDING = re.compile(r"-([0-9a-f]{12})(?:-r(\d+))?$")
_DIGITS = 4
"""Digits of a fingerprint that distinguish models of one name."""

Conditions = Mapping[str, frozenset[Any]]
Key = TypeVar("Key", str, tuple[str, ...])


def conditions(texts: Iterable[str]) -> Conditions:
    """Field to allowed values of ``KEY=VALUE`` texts; a field that is named twice may have either value.

    Raises ``ValueError`` for an unknown field, and for a value that the field cannot have.
    """
    allowed: dict[str, frozenset[Any]] = {}
    for text in texts:
        key, sign, value = (word.strip() for word in text.partition("="))
        if not sign:
            raise ValueError(f"`--where` needs KEY=VALUE, but got {text!r}; for example --where model=OPT-125M")
        if key not in (keys := _options() if key.startswith("options.") else KEYS):
            raise ValueError(f"unknown key {key!r}; {suggestion(key, keys)}")
        allowed[key] = allowed.get(key, frozenset()) | {_wanted(key, value)}
    return allowed


def select(results: Iterable[Result], where: Conditions) -> list[Result]:
    return [
        result for result in results if all(not values.isdisjoint(_has(result, key)) for key, values in where.items())
    ]


def grouped(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    """Key -> its results, in the order of the keys."""
    ordered_results = sorted(results, key=key)
    return {value: list(group) for value, group in itertools.groupby(ordered_results, key=key)}


def usual_order(results: Iterable[Result]) -> list[Result]:
    """The results by machine, model, tier, dtype, batch, tokens, then by their labels."""
    listed = list(results)
    label_of = dict(zip(map(id, listed), labels([result.spec for result in listed]), strict=True))
    fields = operator.attrgetter("model", "engine", "tier", "dtype", "batch_size", "seq_len")
    return sorted(listed, key=lambda result: (machine_of(result), *fields(result.spec), label_of[id(result)]))


def distinct_names(results: Iterable[Result]) -> Mapping[str, str]:
    """The hash of each run, to its model's name; where another model among ``results`` has that name too, with the
    first digits of its weights' fingerprint, or else of its configuration's: ``mine@8aa7``."""
    specs = [result.spec for result in results]
    kinds: dict[tuple[str, str], set[str]] = {}
    for spec in specs:
        for fingerprint in ("config_hash", "weights_hash"):  # random weights have no fingerprint, and are of any
            hashes = kinds.setdefault((spec.model.casefold(), fingerprint), set())
            hashes |= {spec.value(fingerprint)} - {""}
    ambiguous = {name for (name, _), hashes in kinds.items() if len(hashes) > 1}
    tags = {spec.hash: f"@{(spec.weights_hash or spec.config_hash)[:_DIGITS]}" for spec in specs}
    return {spec.hash: spec.model + tags[spec.hash] * (spec.model.casefold() in ambiguous) for spec in specs}


def named_run(run: str, root: Path) -> Result:
    """The result in file ``run``, or the one in the store ``root`` whose hash begins so.

    Raises ``ValueError`` if there is none, more than one, or the file is no result.
    """
    if os.path.isfile(run):  # also of a text too long for a path
        try:
            return read(Path(run))
        except ValueError as error:
            raise ValueError(printable(f"{run}: {error}")) from None
    if not _HASH.fullmatch(run):
        raise ValueError(
            f"RUN must be a result file or 4 to 12 digits of a run's hash, but got {run!r}; see `zobench results`"
        )
    store = Store(root)
    matching = _first_rounds(store, run)
    if len(matching) > 1:
        raise ValueError(f"{run!r} must name one run, but got {', '.join(map(str, matching))}; name the file")
    result = store.read(matching[0]) if matching else None
    if result is None:
        missing = f"no run in {root} begins so" if store.paths() else f"{root} has no results: {first_sweep(root)}"
        problem = "; ".join(store.problems) or missing
        raise ValueError(f"{run!r} must name a run, but got none: {problem}; see `zobench results {root}`")
    return result


def _first_rounds(store: Store, run: str) -> list[Path]:
    """The files of the cells whose hash begins with ``run``, of each the earliest round that is there."""
    rounds: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for path in store.paths():
        if (ending := _ENDING.search(path.stem)) and ending[1].startswith(run):
            rounds.setdefault((path.parent.name, ending[1]), []).append((int(ending[2] or 0), path))
    return [min(files)[1] for files in rounds.values()]


def export(results: Sequence[Result], path: Path) -> None:
    """Writes all columns of the results' data frame to ``path``, whole or not at all: CSV or Parquet by its ending."""
    check_export(path)
    table = frame(results)
    if path.suffix == ".csv":
        data = csv_of(table).encode()
    else:  # a number or inf: a Parquet column has one type
        data = table.astype({"writeback_every": str}).to_parquet(index=False)
    files.replace(path, data)


def check_export(path: Path) -> None:
    """Raises ``ValueError`` for another ending of ``path``, ``ImportError`` for Parquet without its package."""
    if path.suffix not in EXPORTS:
        raise ValueError(f"`--out` must end in {' or '.join(EXPORTS)}, but got {str(path)!r}; name it runs.csv")
    if path.suffix == ".parquet":
        files.check_extras("a Parquet file", ("pyarrow",))


def _options() -> list[str]:
    """Returns the options that a condition can be about: those of all methods, plug-ins too."""
    return sorted({f"options.{name}" for method in METHODS for name in method.options})


def _wanted(key: str, text: str) -> Any:
    if key == "outcome":
        check_choice(key, text, map(str, Outcome))
    if key in ("outcome", "machine") or (key == "task" and not text.endswith(FileField.suffix)):
        return text
    value = check_value(key, parse_value(key, text))
    return models.shown_name(value).casefold() if key == "model" else value


def _has(result: Result, key: str) -> tuple[Any, ...]:
    """Returns the values of ``key`` with which a condition gets ``result``; of a task of one's own also its name."""
    if key == "task":
        return result.spec.task, result.spec.task_name
    if key == "machine":
        return (machine_of(result),)
    if key == "model":
        return (result.spec.model.casefold(),)
    return (str(result.outcome),) if key == "outcome" else (result.spec.value(key),)


def shortened(hashes: Sequence[str]) -> list[str]:
    """The hashes, shortened to as few digits (at least 7) as keep them different."""
    different = len(set(hashes))
    length = next(n for n in range(7, 13) if len({text[:n] for text in hashes}) == different)
    return [text[:length] for text in hashes]
