"""Table: how one table of a paper is laid out, read strictly from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.report.quantity import QUANTITIES
from zobench.report.reference import COLUMNS
from zobench.spec import RunSpec, check_key, check_value, suggestion

Where = Mapping[str, tuple[Any, ...]]
"""Field of RunSpec -> the values that it may have, the preferred one first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The results that satisfy ``where``, under the label ``value``, and which of the paper's values they are.

    An ``extra`` row is not in the paper's table; it is shown only if it was measured.
    """

    value: Any
    where: Where
    reference: Mapping[str, str]
    extra: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Which results belong under ``header``, and which of the paper's values they are compared with, if any."""

    header: str
    where: Where
    reference: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A quantity as a group of columns; ``better`` is "lower" or "higher", ``format`` a Python format like ``.0f``."""

    name: str
    header: str
    format: str
    better: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table: metrics x columns across, rows down. Ratios are taken against the column, or the row, ``baseline``.

    ``paper`` is "" for a table that no paper has.
    """

    name: str
    title: str
    paper: str
    artifact: str
    caption: str
    baseline: str
    where: Where
    row_header: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    metrics: tuple[Metric, ...]


def load_table(path: Path) -> Table:
    """The table described by the TOML file at ``path``. Raises a one-line ``ValueError`` that names the mistake."""
    path = Path(path)
    try:
        return _table(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _table(name: str, data: Mapping[str, Any]) -> Table:
    words = ("title", "caption", "baseline")
    paper = ("paper", "artifact") if "paper" in data or "artifact" in data else ()
    _check(
        "the table",
        data,
        {**dict.fromkeys((*words, *paper), str), "rows": dict, "columns": list, "metrics": list},
        {"where": dict},
    )
    row_header, rows = _variants(data["rows"]) if "variants" in data["rows"] else _rows(data["rows"])
    columns = tuple(_column(item) for item in data["columns"])
    headers = [column.header for column in columns]
    labels = [*headers, *(str(row.value) for row in rows)]
    if data["baseline"] not in labels:
        raise ValueError(
            f"`baseline` must be the header of a column or a row, but got {data['baseline']!r}; "
            f"{suggestion(data['baseline'], labels)}"
        )
    if len(set(headers)) < len(headers):
        raise ValueError(f"column headers must differ, but got {', '.join(headers)}; rename one")
    return Table(
        name=name,
        **{word: data.get(word, "") for word in (*words, "paper", "artifact")},
        where=_where("where", data.get("where", {})),
        row_header=row_header,
        rows=rows,
        columns=columns,
        metrics=tuple(_metric(item) for item in data["metrics"]),
    )


def _rows(data: Mapping[str, Any]) -> tuple[str, tuple[Row, ...]]:
    _check("[rows]", data, {"field": str, "values": list}, {"extra": list})
    field = data["field"]
    check_key(field)
    if field not in COLUMNS:
        both = [column for column in COLUMNS if column in RunSpec.__dataclass_fields__]
        raise ValueError(
            f"`rows.field` must be in the papers' values too, but got {field!r}; {suggestion(field, both)}"
        )
    for item in data.get("extra", []):
        _check("[[rows.extra]]", item, {"value": object}, {"reference": dict})
    rows = [(item["value"], _reference(item.get("reference", {})), True) for item in data.get("extra", [])]
    rows += [(value, {}, False) for value in data["values"]]
    header = field.replace("_", " ").capitalize()
    return header, tuple(
        Row(
            value=value,
            where=_where("rows", {field: [value]}),
            reference={field: str(value), **reference},
            extra=extra,
        )
        for value, reference, extra in rows
    )


def _variants(data: Mapping[str, Any]) -> tuple[str, tuple[Row, ...]]:
    """Rows that each have conditions of their own; no paper has them."""
    _check("[rows]", data, {"header": str, "variants": list})
    for item in data["variants"]:
        _check("[[rows.variants]]", item, {"header": str, "where": dict})
    rows = tuple(
        Row(value=item["header"], where=_where("rows.variants.where", item["where"]), reference={})
        for item in data["variants"]
    )
    headers = [row.value for row in rows]
    if len(set(headers)) < len(headers):
        raise ValueError(f"row headers must differ, but got {', '.join(headers)}; rename one")
    return data["header"], rows


def _column(data: Mapping[str, Any]) -> Column:
    _check("[[columns]]", data, {"header": str, "where": dict}, {"reference": dict})
    reference = _reference(data.get("reference", {}))
    return Column(header=data["header"], where=_where("columns.where", data["where"]), reference=reference)


def _metric(data: Mapping[str, Any]) -> Metric:
    _check("[[metrics]]", data, dict.fromkeys(("name", "header", "format", "better"), str))
    if data["name"] not in QUANTITIES:
        raise ValueError(f"unknown metric {data['name']!r}; {suggestion(data['name'], QUANTITIES)}")
    if data["better"] not in ("lower", "higher"):
        raise ValueError(f"`better` must be lower or higher, but got {data['better']!r}; lower suits memory and time")
    try:
        format(1.0, data["format"])
    except ValueError:
        raise ValueError(f"`format` must be a number format, but got {data['format']!r}; for example .0f") from None
    return Metric(**data)


def _where(place: str, data: Mapping[str, Any]) -> Where:
    """Conditions with every value checked as RunSpec would check it, so that a typing mistake cannot match nothing."""
    where = {}
    for field, value in data.items():
        check_key(field)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values:
            raise ValueError(f"`{place}.{field}` must allow a value, but got []; leave it out to allow all")
        where[field] = tuple(check_value(field, item) for item in values)
    return where


def _reference(data: Mapping[str, Any]) -> Mapping[str, str]:
    for key in data:
        if key not in COLUMNS:
            raise ValueError(f"unknown key {key!r} in `reference`; {suggestion(key, COLUMNS)}")
    return {key: str(value) for key, value in data.items()}


def _check(place: str, data: Any, needed: Mapping[str, type], optional: Mapping[str, type] | None = None) -> None:
    """Raises ``ValueError`` unless ``data`` has all of ``needed``, perhaps some of ``optional``, and nothing else."""
    known = {**needed, **(optional or {})}
    if not isinstance(data, dict):
        raise ValueError(f"{place} must be a table of keys, but got {data!r}; its keys are {', '.join(known)}")
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {place}; {suggestion(key, known)}")
        if not isinstance(value, known[key]):
            raise ValueError(f"`{key}` in {place} must be of type {known[key].__name__}, but got {value!r}")
        if needed.get(key) in (str, list) and not value:
            raise ValueError(f"`{key}` in {place} must not be empty; give it a value or see the shipped tables")
    for key in needed:
        if key not in data:
            raise ValueError(f"`{key}` must be given in {place}, but is missing; see the shipped tables for examples")
