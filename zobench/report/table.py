"""Table: how one table of a paper is laid out, read strictly from a TOML file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from zobench import models
from zobench.machine.reader import check_keys, checked, read
from zobench.machine.texts import toml_in
from zobench.recipes.reference import COLUMNS
from zobench.report.sheet import rounded
from zobench.result.quantity import Quantity
from zobench.runspec import FIELDS, RunSpec, check_key, check_value, named, suggestion
from zobench.runspec.registries import METRICS


def checked_conditions(key: str, section: str, data: Mapping[str, Any]) -> Mapping[str, tuple[Any, ...]]:
    """Conditions with every value checked as RunSpec would check it, so that a typing mistake cannot match nothing."""
    conditions = {}
    for name, value in data.items():
        check_key(name)
        if "." in name:
            field, _, part = name.partition(".")
            raise ValueError(f"`{key}` must be of whole fields, but got {name}; write {field} = {{ {part} = ... }}")
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values:
            raise ValueError(f"`{key}.{name}` must allow a value, but got [] in {section}; leave it out to allow all")
        allowed = (check_value(name, item) for item in values)
        conditions[name] = tuple(models.shown_name(item) if name == "model" else item for item in allowed)
    return conditions


def checked_reference(key: str, section: str, data: Mapping[str, Any]) -> Mapping[str, str]:
    """Checked conditions on columns of the papers' values, as text."""
    for column in data:
        if column not in COLUMNS:
            raise ValueError(f"unknown key {column!r} in `{key}` of {section}; {suggestion(column, COLUMNS)}")
    return {column: str(value) for column, value in data.items()}


Where = Annotated[Mapping[str, tuple[Any, ...]], checked_conditions]
"""Field of RunSpec -> the values that it may have, the preferred one first."""
Reported = Annotated[Mapping[str, str], checked_reference]
"""Column of the papers' values -> its value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The runs that satisfy ``where``, under a ``title``."""

    title: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """The results that satisfy ``where``, and which of the paper's values they are (None: the paper has none).

    An ``extra`` row is not in the paper's table; it is shown only if it was measured. ``over``: a field such as seed:
    the row shows the mean of the results that differ in it alone, with the least and the most. ``text``: the paper's
    words for it, in a column that holds no numbers.
    """

    header: str
    where: Where = field(default_factory=dict)
    reference: Reported | None = None
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
    where: Where = field(default_factory=dict)
    reference: Reported | None = None
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
    better: Literal["lower", "higher"]
    unit: str = ""
    interval: bool = False

    @property
    def quantity(self) -> Quantity:
        """The registered quantity of that name."""
        registered: Quantity = METRICS.get(self.name)
        return registered

    @property
    def scale(self) -> float:
        """Base units in one printed unit."""
        return float(self.quantity.units[self.unit])

    def text(self, value: float) -> str:
        """The text of ``value``, which is in base units, as the table prints it."""
        return rounded(value / self.scale, self.format)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim of a paper about its table: ``metric`` of the first header over that of the second lies within the
    bounds.

    The headers are two columns (the ratio is taken in every row, or in ``rows``) or two rows (in every column, or in
    ``columns``).
    """

    text: str
    metric: str
    ratio: tuple[str, str]
    at_least: float | None = None
    at_most: float | None = None
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def only(self) -> tuple[str, ...]:
        """The rows or columns that are meant, all if it is empty."""
        return self.rows or self.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table: metrics x columns across, rows down. Ratios are taken against the column, or the row, ``baseline``.

    ``groups``: under which common headings the columns stand, those of the "metrics" or of the "columns".
    ``paper`` is "" for a table that no paper has; ``runner`` the matrix that measures it; ``reference`` conditions on
    all of the paper's values; ``text_header`` the heading of the rows' texts, "" without any.
    """

    name: str
    title: str
    paper: str = ""
    artifact: str = ""
    runner: str = ""
    caption: str = ""
    baseline: str = ""
    groups: Literal["metrics", "columns"] = "metrics"
    where: Where = field(default_factory=dict)
    reference: Reported = field(default_factory=dict)
    row_header: str
    text_header: str
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...] = ()
    is_figure: ClassVar[bool] = False


FREE = named(lambda field: field.free)
"""Fields that may have any value unless a table names them; all others have their usual value unless it names them."""
USUAL: Where = {key: (value,) for key, value in RunSpec(model="any").to_dict().items() if key not in FREE}


_ROWS: Mapping[str, Any] = {"header": str, "text": str, "product": dict, "variants": tuple[TableRow, ...]}
"""The section ``[rows]``: ``variants``, and one more row for every combination of ``product``'s values."""


def load_table(path: Path) -> Table:
    """The table described by the TOML file at ``path``. Raises a one-line ``ValueError`` that names the mistake."""
    with toml_in(Path(path)) as data:
        return parse(Path(path).stem, data, "the table")


def parse(
    stem: str, data: Mapping[str, Any], section: str, sections: tuple[str, ...] = ("rows",), **given: Any
) -> Table:
    """The table in ``data``; ``stem`` names it if it is no paper's. ``section`` and ``given``: as of
    :func:`zobench.machine.reader.read`. ``sections``: the tables that the file may have beside the keys."""
    made = ("name", "text_header", "row_header", *given)
    check_keys(data, [*(item.name for item in fields(Table) if item.name not in made), *sections], section)
    rows = checked(data.get("rows", {}), _ROWS, "[rows]")
    product, variants, header = rows.get("product", {}), rows.get("variants", ()), rows.get("header", "")
    if not product and not variants:
        raise ValueError("`product` or `variants` must be given in [rows], but both are missing; add one")
    if not product and not header:
        raise ValueError('`header` must be given in [rows], but is missing; write header = "Model"')
    table = read(
        Table, {key: value for key, value in data.items() if key != "rows"}, section, name=name_of(stem, data),
        rows=(*variants, *_product(product)), text_header=rows.get("text", ""),
        row_header=header or ", ".join(key.replace("_", " ") for key in product).capitalize(), **given,
    )  # fmt: skip
    if bool(table.paper) != bool(table.artifact):
        raise ValueError("`paper` and `artifact` must be given both or neither, but one is missing; add it")
    table = replace(table, metrics=tuple(map(_metric, table.metrics)))
    _check_headers(table)
    _check_lines(table)
    return table


def name_of(stem: str, data: Mapping[str, Any]) -> str:
    """Returns the name of a recipe: ``zo2/table1`` if it is a paper's, else that of its file, ``stem``."""
    return f"{data['paper']}/{data.get('artifact')}" if data.get("paper") else stem


def check_different(what: str, headers: Sequence[str]) -> None:
    """Raises ``ValueError`` if two of ``headers`` are equal."""
    if len(set(headers)) < len(headers):
        raise ValueError(f"{what} headers must differ, but got {', '.join(headers)}; rename one")


def check_header(rule: str, header: str, headers: Sequence[str]) -> None:
    """Raises ``ValueError`` with the ``rule`` and the nearest of ``headers`` unless ``header`` is one of them."""
    if header not in headers:
        raise ValueError(f"{rule}, but got {header!r}; {suggestion(header, headers)}")


def check_bounds(text: str, low: float | None, high: float | None) -> None:
    """Raises ``ValueError`` if a claim has no bound, or the least above the most."""
    if low is None and high is None:
        raise ValueError(f"a claim must have a bound, but {text!r} has none; add at_least or at_most")
    if low is not None and high is not None and low > high:
        raise ValueError(f"`at_least <= at_most` must hold, but {text!r} has {low} and {high}; exchange them")


def _check_headers(table: Table) -> None:
    rows, columns = [row.header for row in table.rows], [column.header for column in table.columns]
    check_different("column", columns)
    check_different("row", rows)
    if table.baseline:
        check_header("`baseline` must be the header of a column or a row", table.baseline, [*columns, *rows])
    for first, second in (column.minus for column in table.columns if column.minus):
        check_header("`minus` needs a column's header, then a column's or a row's", first, columns)
        check_header("`minus` needs a column's header, then a column's or a row's", second, [*columns, *rows])
    for claim in table.claims:
        check_bounds(claim.text, claim.at_least, claim.at_most)
        along, across = (columns, rows) if claim.ratio[0] in columns else (rows, columns)
        for side in claim.ratio:
            check_header("a claim needs headers of this table", side, along)
        for line in claim.only:
            check_header("a claim needs headers of this table", line, across)
        if claim.metric not in (names := [metric.name for metric in table.metrics]):
            raise ValueError(f"a claim needs a metric of this table, but got {claim.metric!r}; use {', '.join(names)}")


def _check_lines(table: Table) -> None:
    """Raises ``ValueError`` for a row over no field, and a column that is extra or of a quantity and may not be."""
    for over in (row.over for row in table.rows if row.over):
        if over not in FIELDS:
            raise ValueError(f"unknown key {over!r} in `over`; {suggestion(over, FIELDS)}")
    for column in table.columns:
        if column.extra and column.reference is not None:
            raise ValueError(f"an extra column must have no `reference`, but {column.header!r} has one; leave one out")
        if column.quantity and column.quantity not in METRICS.names():
            raise ValueError(f"unknown quantity {column.quantity!r}; {suggestion(column.quantity, METRICS.names())}")
        for metric in table.metrics if column.quantity else ():
            shown, meant = METRICS.get(column.quantity), metric.quantity
            if shown.units != meant.units:
                raise ValueError(
                    f"`quantity` must have the units of {metric.name}, {', '.join(meant.units)}, but {column.quantity} "
                    f"of column {column.header!r} has {', '.join(shown.units)}; name another metric"
                )


def _product(axes: Mapping[str, Any]) -> list[TableRow]:
    """One row per combination, the last field fastest; each field is a condition on the runs, the paper, or both."""
    for key, values in axes.items():
        if key not in FIELDS:
            raise ValueError(f"unknown key {key!r} in [rows.product]; {suggestion(key, FIELDS)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"`{key}` in [rows.product] must be a list of values, but got {values!r}")
    rows = []
    for values in itertools.product(*axes.values()) if axes else ():
        conditions = dict(zip(axes, values, strict=True))
        where = {key: (check_value(key, value),) for key, value in conditions.items()}
        reported = {key: str(value) for key, value in conditions.items() if key in COLUMNS}
        rows.append(TableRow(header=", ".join(map(str, values)), where=where, reference=reported))
    return rows


def _metric(metric: Metric) -> Metric:
    units = metric.quantity.units
    unit = metric.unit or next(iter(units))
    if unit not in units:
        raise ValueError(
            f"`unit` of {metric.name} must be one of {', '.join(units)}, but got {unit!r}; {suggestion(unit, units)}"
        )
    try:
        format(1.0, metric.format)
    except ValueError:
        raise ValueError(f"`format` must be a number format, but got {metric.format!r}; for example .0f") from None
    return replace(metric, unit=unit)
