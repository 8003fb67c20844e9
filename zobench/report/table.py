"""Table: how one table of a paper is laid out, read strictly from a TOML file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from zobench.machine.texts import toml_of
from zobench.recipes.reference import COLUMNS
from zobench.report import toml
from zobench.report.toml import Where, check
from zobench.runspec import FIELDS, RunSpec, check_value, named, suggestion
from zobench.runspec.registries import METRICS


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """The results that satisfy ``where``, and which of the paper's values they are (None: the paper has none).

    An ``extra`` row is not in the paper's table; it is shown only if it was measured. ``over``: a field such as seed:
    the row shows the mean of the results that differ in it alone, with the least and the most. ``text``: the paper's
    words for it, in a column that holds no numbers.
    """

    header: str
    where: Where
    reference: Mapping[str, str] | None
    extra: bool = False
    over: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn:
    """Which results belong under ``header``, and which of the paper's values they are compared with, if any.

    An ``extra`` column is not in the paper's table: it is shown only if it was measured, and no claim is about it.
    ``predicted``: what was not measured is predicted, as in a table of the papers. ``quantity``: what is shown in place
    of the metric that the paper calls it, in the same units. ``level``: it is the same in every row, so that its
    conditions hold in place of a row's on the same field. ``minus``: it shows what stands in the first of these columns
    less what stands in the second, which may be a row: then what that row has in the first.
    """

    header: str
    where: Where
    reference: Mapping[str, str] | None
    extra: bool = False
    predicted: bool = False
    quantity: str = ""
    level: bool = False
    minus: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A quantity as a group of columns; ``better`` is "lower" or "higher", ``format`` a Python format like ``.0f``.

    ``unit`` is the printed one, one of the quantity's units. ``interval``: whether each value's is shown beside it.
    """

    name: str
    header: str
    format: str
    better: str
    unit: str
    interval: bool = False

    @property
    def scale(self) -> float:
        """Base units in one printed unit."""
        return float(METRICS.get(self.name).units[self.unit])


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a paper says of its table: ``metric`` of the first header over that of the second lies within the bounds.

    The headers are two columns (the ratio is taken in every row) or two rows (in every column); ``only`` names the rows
    or columns that are meant, all if it is empty.
    """

    text: str
    metric: str
    ratio: tuple[str, str]
    at_least: float | None
    at_most: float | None
    only: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table: metrics x columns across, rows down. Ratios are taken against the column, or the row, ``baseline``.

    ``groups``: under which common headings the columns stand, those of the "metrics" or of the "columns".
    ``paper`` is "" for a table that no paper has; ``runner`` the matrix that measures it; ``reference`` conditions on
    all of the paper's values; ``text_header`` the heading of the rows' texts, "" without any.
    """

    name: str
    title: str
    paper: str
    artifact: str
    runner: str
    caption: str
    baseline: str
    groups: str
    where: Where
    reference: Mapping[str, str]
    row_header: str
    text_header: str
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    is_figure: ClassVar[bool] = False


FREE = named(lambda field: field.free)
"""Fields that may have any value unless a table names them; all others have their usual value unless it names them."""
USUAL: Where = {field: (value,) for field, value in RunSpec(model="any").to_dict().items() if field not in FREE}

WORDS = ("title", "paper", "artifact", "runner", "caption", "baseline")
GROUPS = ("metrics", "columns")
BODY = {"where": dict, "reference": dict, "rows": dict, "columns": list, "metrics": list, "claims": list}


def load_table(path: Path) -> Table:
    """The table described by the TOML file at ``path``. Raises a one-line ``ValueError`` that names the mistake."""
    path = Path(path)
    try:
        data = toml_of(path)
        needed = ("title", "rows", "columns", "metrics")
        kinds: dict[str, Any] = {**dict.fromkeys((*WORDS, "groups"), str), **BODY}
        check("the table", data, {key: kinds[key] for key in needed}, kinds)
        return parse(path.stem, data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def parse(stem: str, data: Mapping[str, Any]) -> Table:
    """The table in ``data``, whose keys are checked; ``stem`` names it if it is no paper's."""
    if ("paper" in data) != ("artifact" in data):
        raise ValueError("`paper` and `artifact` must be given both or neither, but one is missing; add it")
    header, rows = _rows(data["rows"])
    columns = tuple(_column(item) for item in data["columns"])
    words = {word: data.get(word, "") for word in WORDS}
    if (groups := data.get("groups", GROUPS[0])) not in GROUPS:
        raise ValueError(f"`groups` must be one of {', '.join(GROUPS)}, but got {groups!r}; leave it out")
    table = Table(
        **words,
        name=f"{words['paper']}/{words['artifact']}" if words["paper"] else stem,
        groups=groups,
        where=toml.where("where", data.get("where", {})),
        reference=toml.reference(data.get("reference", {})),
        row_header=header,
        text_header=data["rows"].get("text", ""),
        rows=rows,
        columns=columns,
        metrics=tuple(_metric(item) for item in data["metrics"]),
        claims=tuple(_claim(item) for item in data.get("claims", [])),
    )
    _check_headers(table)
    _check_quantities(table)
    return table


def _check_headers(table: Table) -> None:
    rows, columns = [row.header for row in table.rows], [column.header for column in table.columns]
    toml.different("column", columns)
    toml.different("row", rows)
    if table.baseline and table.baseline not in (headers := [*columns, *rows]):
        raise ValueError(
            f"`baseline` must be the header of a column or a row, but got {table.baseline!r}; "
            f"{suggestion(table.baseline, headers)}"
        )
    for header in (header for column in table.columns for header in column.minus or ()):
        if header not in (headers := [*columns, *rows]):
            raise ValueError(f"`minus` needs headers of this table, but got {header!r}; {suggestion(header, headers)}")
    for claim in table.claims:
        along, across = (columns, rows) if claim.ratio[0] in columns else (rows, columns)
        for header, headers in (*((side, along) for side in claim.ratio), *((line, across) for line in claim.only)):
            if header not in headers:
                raise ValueError(
                    f"a claim needs headers of this table, but got {header!r}; {suggestion(header, headers)}"
                )
        if claim.metric not in (names := [metric.name for metric in table.metrics]):
            raise ValueError(f"a claim needs a metric of this table, but got {claim.metric!r}; use {', '.join(names)}")


def _check_quantities(table: Table) -> None:
    """Raises ``ValueError`` unless what a column shows in a metric's place has that metric's units."""
    for column in table.columns:
        for metric in table.metrics if column.quantity else ():
            shown, meant = METRICS.get(column.quantity), METRICS.get(metric.name)
            if shown.units != meant.units:
                raise ValueError(
                    f"`quantity` must have the units of {metric.name}, {', '.join(meant.units)}, but {column.quantity} "
                    f"of column {column.header!r} has {', '.join(shown.units)}; name another metric"
                )


def _rows(data: Mapping[str, Any]) -> tuple[str, tuple[TableRow, ...]]:
    """The heading of the rows and all rows: the variants, then the product."""
    check("[rows]", data, {}, {"header": str, "text": str, "product": dict, "variants": list})
    product, variants = data.get("product", {}), data.get("variants", [])
    if not product and not variants:
        raise ValueError("`product` or `variants` must be given in [rows], but both are missing")
    if not product and "header" not in data:
        raise ValueError("`header` must be given in [rows], but is missing; see the shipped tables for examples")
    header = data.get("header") or ", ".join(field.replace("_", " ") for field in product).capitalize()
    return header, (*(_variant(item) for item in variants), *_product(product))


def _variant(data: Mapping[str, Any]) -> TableRow:
    check("[[rows.variants]]", data, {"header": str}, _ROW)
    if (over := data.get("over", "")) and over not in FIELDS:
        raise ValueError(f"unknown key {over!r} in `over`; {suggestion(over, FIELDS)}")
    return TableRow(**{"reference": None, **data, **_conditions("rows.variants.where", data)})


def _conditions(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The checked ``where`` of a row or column, and its ``reference`` if it has one."""
    reference = {"reference": toml.reference(data["reference"])} if "reference" in data else {}
    return {"where": toml.where(name, data.get("where", {})), **reference}


_ROW = {"where": dict, "reference": dict, "extra": bool, "over": str, "text": str}


def _product(fields: Mapping[str, Any]) -> list[TableRow]:
    """One row per combination, the last field fastest; each field is a condition on the runs, the paper, or both."""
    for field, values in fields.items():
        if field not in FIELDS:
            raise ValueError(f"unknown key {field!r} in [rows.product]; {suggestion(field, FIELDS)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"`{field}` in [rows.product] must be a list of values, but got {values!r}")
    if not fields:
        return []
    rows = []
    for values in itertools.product(*fields.values()):
        conditions = dict(zip(fields, values, strict=True))
        checked = {field: (check_value(field, value),) for field, value in conditions.items()}
        reported = {field: str(value) for field, value in conditions.items() if field in COLUMNS}
        rows.append(TableRow(header=", ".join(map(str, values)), where=checked, reference=reported))
    return rows


def _column(data: Mapping[str, Any]) -> TableColumn:
    words: dict[str, Any] = {"where": dict, "reference": dict, "quantity": str, "minus": list}
    words |= dict.fromkeys(("predicted", "extra", "level"), bool)
    check("[[columns]]", data, {"header": str}, words)
    if data.get("extra") and "reference" in data:
        raise ValueError(f"an extra column must have no `reference`, but {data['header']!r} has one; leave one out")
    if (quantity := data.get("quantity", "")) and quantity not in METRICS.names():
        raise ValueError(f"unknown quantity {quantity!r}; {suggestion(quantity, METRICS.names())}")
    minus = {"minus": _minus(data["minus"])} if "minus" in data else {}
    return TableColumn(**{"reference": None, **data, **_conditions("columns.where", data), **minus})


def _minus(headers: list[Any]) -> tuple[str, str]:
    if len(headers) != 2:
        raise ValueError(f"`minus` must be two headers, but got {headers!r}; the second is subtracted")
    first, second = toml.texts("`minus`", headers)
    return first, second


def _metric(data: Mapping[str, Any]) -> Metric:
    needed = dict.fromkeys(("name", "header", "format", "better"), str)
    check("[[metrics]]", data, needed, {"unit": str, "interval": bool})
    name = data["name"]
    if name not in METRICS.names():
        raise ValueError(f"unknown metric {name!r}; {suggestion(name, METRICS.names())}")
    if data["better"] not in ("lower", "higher"):
        raise ValueError(f"`better` must be lower or higher, but got {data['better']!r}; lower suits memory and time")
    units = METRICS.get(name).units
    if (unit := data.get("unit", next(iter(units)))) not in units:
        raise ValueError(
            f"`unit` of {name} must be one of {', '.join(units)}, but got {unit!r}; {suggestion(unit, units)}"
        )
    try:
        format(1.0, data["format"])
    except ValueError:
        raise ValueError(f"`format` must be a number format, but got {data['format']!r}; for example .0f") from None
    return Metric(**{**data, "unit": unit})


def _claim(data: Mapping[str, Any]) -> Claim:
    numbers = {"at_least": toml.NUMBER, "at_most": toml.NUMBER}
    check("[[claims]]", data, {"text": str, "metric": str, "ratio": list}, {**numbers, "rows": list, "columns": list})
    if len(data["ratio"]) != 2:
        raise ValueError(f"`ratio` of a claim must be two headers, but got {data['ratio']!r}; the second is divided by")
    if not {"at_least", "at_most"} & set(data):
        raise ValueError(f"a claim must have a bound, but {data['text']!r} has none; add at_least or at_most")
    low, high = data.get("at_least"), data.get("at_most")
    if low is not None and high is not None and low > high:
        raise ValueError(f"`at_least <= at_most` must hold, but {data['text']!r} has {low} and {high}; exchange them")
    over, under = toml.texts("`ratio` of a claim", data["ratio"])
    only = toml.texts("`rows` or `columns` of a claim", data.get("rows", data.get("columns", [])))
    return Claim(text=data["text"], metric=data["metric"], ratio=(over, under), at_least=low, at_most=high, only=only)
