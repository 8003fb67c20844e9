"""Rows of the user's own: from JSON lines, CSV, plain text and Parquet files, or a dataset of the hub; in given sets or
split by a given seed."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zobench.data.tasks.read import lines_of, load, parquet
from zobench.machine.reader import checked

Row = Mapping[str, Any]
PARTS = {"train": "train", "dev": "dev", "test": "validation"}
"""Sets as the file calls them, and as a task does."""
FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "text",
    ".parquet": "parquet",
}  # fmt: skip
LONGEST_FIELD = 1 << 30
"""Characters of a field of a CSV file; Python's own limit, 131,072, is less than a long document."""
_KEYS = {
    **dict.fromkeys(("path", "train", "dev", "test", "hub", "config", "revision"), str), "split": dict,
    "format": Literal["csv", "json", "jsonl", "parquet", "text", "tsv"],
}  # fmt: skip
_HUB_ONLY, _FILES_ONLY = ("config", "revision"), ("format",)
_SPLIT = "split = { seed = 0, dev = 0.1, test = 0.1 }"


@dataclass(frozen=True, slots=True)
class RowSet:
    """One set: ``where`` it is from, and of each row where it stands and its columns."""

    where: str
    rows: Sequence[tuple[str, Row]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the first row."""
        return tuple(self.rows[0][1]) if self.rows else ()


@dataclass(frozen=True, slots=True)
class Sets:
    """The sets of a task: "train", perhaps "dev", and "validation". ``fingerprint``: of all that was read, in hex.
    ``facts``: how one file was split, for the result. ``unsplit``: the rows in the order of the files."""

    parts: dict[str, RowSet]
    unsplit: tuple[RowSet, ...]
    fingerprint: str
    facts: dict[str, Any]


def stamp(folder: Path, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the sizes and times of the files that the section ``data`` names: they change when a file does. Raises
    ``ValueError`` for a section that is not one of data."""
    _check(data)
    statuses = [(folder / path).stat() for path in _files(data).values() if (folder / path).is_file()]
    return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)


def read(folder: Path, data: Mapping[str, Any]) -> Sets:
    """The sets that the section ``data`` of a task's file names; paths are relative to ``folder``, where the file is.
    What the section says has been checked by :func:`stamp`.

    Raises ``ValueError`` for what cannot be read, and ``ImportError`` where that needs ``datasets``.
    """
    sources = _files(data)
    if "hub" in data:
        sources = {role: data[role] for role in PARTS if role in data}
        sources = sources or ({"train": "train"} if "split" in data else {"train": "train", "test": "test"})
    whole = {}
    digest = hashlib.sha256()
    for role, name in sources.items():
        if "hub" in data:
            rows = RowSet(f"{data['hub']} {name}", _from_hub(folder, data, name))
            digest.update(json.dumps([role, [row for _, row in rows.rows]], sort_keys=True, default=str).encode())
        else:
            path = folder / name
            rows = RowSet(name, list(_from_file(path, "path" if "path" in data else role, data.get("format", ""))))
            digest.update(f"{role}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
            if (kind := data.get("format")) and kind != FORMATS.get(path.suffix.lower()):  # it reads other rows of them
                digest.update(f"{kind}\n".encode())
        if not rows.rows:
            raise ValueError(f"{rows.where} must hold rows, but is empty; give a whole set")
        whole[role] = rows
    if "split" in data:
        (rows,) = whole.values()
        parts, facts = _split(rows, data["split"])
        return Sets(parts, (rows,), digest.hexdigest(), facts)
    parts = {PARTS[role]: rows for role, rows in whole.items()}
    return Sets(parts, tuple(parts.values()), digest.hexdigest(), {})


def read_file(path: Path) -> RowSet:
    """The rows of one file, in the format of its ending. Raises ``ValueError`` where there are none."""
    rows = RowSet(path.name, list(_from_file(path, "path", "")))
    if not rows.rows:
        raise ValueError(f"{path} must hold rows, but is empty; give a whole set")
    return rows


def _check(data: Mapping[str, Any]) -> None:
    checked(data, _KEYS, "[data]")
    if "hub" in data and "path" in data:
        raise ValueError("`data` must be in files or on the hub, but got both path and hub; leave one out")
    kind, strange = ("hub", _FILES_ONLY) if "hub" in data else ("files", _HUB_ONLY)
    if without := [key for key in strange if key in data]:
        raise ValueError(f"`data.{without[0]}` has no meaning for rows of {kind}, but is given; leave it out")
    sets = [role for role in PARTS if role in data]
    if ("path" in data) == bool(sets) and "hub" not in data:
        raise ValueError(
            f"`data` must have a path, or train and test, but got {', '.join(data) or 'nothing'}; write a path with "
            f"{_SPLIT}, or train and test"
        )
    if "split" in data and set(sets) - {"train"}:
        raise ValueError(f"`data.split` must split one file, but got {', '.join(sets)}; give path alone, or no split")
    if "split" not in data and not {"train", "test"} <= set(sets) and ("path" in data or sets):
        raise ValueError(f"`data` must have a set to test on, but has none; add {_SPLIT}, or give train and test")


def _files(data: Mapping[str, Any]) -> dict[str, str]:
    """The file of each set, by the set's name in the section."""
    roles = {"train": data["path"]} if "path" in data else {role: data[role] for role in PARTS if role in data}
    return {} if "hub" in data else roles


def _from_file(path: Path, key: str, named: str) -> Iterator[tuple[str, Row]]:
    if not path.is_file():
        raise ValueError(f"`data.{key}` must be a file, but there is no {path}; check it")
    kind = named or FORMATS.get(path.suffix.lower(), "")
    if not kind:
        raise ValueError(
            f"`data.format` must be given for {path.name}; use one of {', '.join(sorted(set(FORMATS.values())))}"
        )
    return _naming_file(path, _READERS[kind](path))


def _naming_file(path: Path, rows: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """The rows of a file, which is named where it cannot be read."""
    try:
        yield from rows
    except OSError as error:
        raise ValueError(f"{path} must be a file that can be read, but is not ({error.strerror}); check it") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: a data file must be UTF-8, but {error}; convert it") from error


def _records(path: Path, suffix: str) -> Iterator[tuple[str, Row]]:
    for row_name, record in lines_of(path, suffix):
        if not isinstance(record, Mapping):
            raise ValueError(f"{row_name}: a row must be an object with columns, but got {type(record).__name__}")
        yield row_name, record


def _table(path: Path, delimiter: str) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            csv.field_size_limit(LONGEST_FIELD)
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            names = reader.fieldnames or ()
            if twice := [name for name in names if list(names).count(name) > 1]:
                raise ValueError(
                    f"{path}:1: a header must name each column once, but has {twice[0]!r} twice; rename one"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(
                        f"{path}:{reader.line_num}: a line must have the header's {len(names)} fields; repair it"
                    )
                yield f"{path}:{reader.line_num}", row
        except csv.Error as error:
            raise ValueError(f"{path}:{reader.line_num}: a line must be CSV, but {error}; repair it") from error


def _plain(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if text := line.rstrip("\n"):
                yield f"{path}:{number}", {"text": text}


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    "jsonl": lambda path: _records(path, ".jsonl"), "json": lambda path: _records(path, ".json"),
    "csv": lambda path: _table(path, ","), "tsv": lambda path: _table(path, "\t"), "text": _plain,
    "parquet": lambda path: parquet([path]),
}  # fmt: skip


def _from_hub(folder: Path, data: Mapping[str, Any], split: str) -> list[tuple[str, Row]]:
    """The rows of a split of a dataset on the hub, or of one in a folder."""
    local, origin = folder / data["hub"], f"{data['hub']} {split}"
    name = str(local) if local.is_dir() else data["hub"]
    remedy = "check data.hub, data.config and data.revision"
    return list(load(origin, remedy, name, data.get("config"), revision=data.get("revision"), split=split))


def _split(rows: RowSet, given: Mapping[str, Any]) -> tuple[dict[str, RowSet], dict[str, Any]]:
    """One set cut in three by NumPy's legacy permutation of ``seed``: test first, then dev, the rest trains."""
    checked(given, {"seed": int, "dev": float, "test": float}, "[data.split]", ("seed", "test"))
    if not 0 <= given["seed"] < 1 << 32:
        raise ValueError(f"`data.split.seed` must be from 0 to 2**32 - 1, but got {given['seed']}; write seed = 0")
    import numpy as np  # not for whom a spec's name is enough

    count = len(rows.rows)
    sizes = {role: _size(role, given[role], count) for role in ("test", "dev") if role in given}
    if sum(sizes.values()) >= count:
        raise ValueError(f"`data.split` must leave rows to train on, but takes {sum(sizes.values())} of {count} rows")
    order = [int(i) for i in np.random.RandomState(given["seed"]).permutation(count)]
    numbers, first = {}, 0
    for role, size in sizes.items():
        numbers[role] = order[first : first + size]
        first += size
    numbers["train"] = order[first:]
    parts = {
        PARTS[role]: RowSet(f"{rows.where} ({role})", [rows.rows[i] for i in numbers[role]])
        for role in PARTS
        if role in numbers
    }
    return parts, {"file_split": {"seed": given["seed"], **{role: len(chosen) for role, chosen in numbers.items()}}}


def _size(role: str, value: Any, count: int) -> int:
    """Rows of a fraction, or a count."""
    size = round(value * count) if isinstance(value, float) and 0 < value < 1 else value
    if type(size) is not int or size < 1:
        raise ValueError(
            f"`data.split.{role}` must be a share between 0 and 1 or a number of rows, at least one, but got {value!r} "
            f"of {count} rows; write {role} = 0.1 or {role} = 100"
        )
    return size
