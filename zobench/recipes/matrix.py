"""Matrices: a TOML file under runners/ becomes a list of RunSpecs, the product of its axes with include and exclude."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench import models
from zobench.machine.reader import checked
from zobench.machine.texts import toml_in
from zobench.recipes import protocol as protocols
from zobench.recipes.protocol import Contest, Price
from zobench.runspec import SEQ_LEN, RunSpec, check_key, flat, value_in
from zobench.runspec.constraints import check_recorded

PART_KEYS = ("base", "axes", "variants", "include", "exclude")
"""The keys of a matrix that a device, or a part of a campaign, may have otherwise."""
_KEYS = ("title", "tables", "selftest", "budget", "repeats", "until", "on", *PART_KEYS)
_PROTOCOL_KEYS = ("title", "tables", "selftest", "budget", "base", "on", "protocol", "methods")
"""The keys of a file with a ``[protocol]``, whose methods are the same on every device."""
SHAPES: Mapping[str, Any] = {
    **dict.fromkeys(("title", "selftest", "budget", "until"), str), "repeats": int, "tables": list[str],
    **dict.fromkeys(("base", "axes", "on", "cpu", "cuda", "protocol"), dict),
    **dict.fromkeys(("variants", "include", "exclude", "methods"), list[dict[str, Any]]),
}  # fmt: skip
"""The type of each key, as :func:`zobench.machine.reader.checked` takes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """The matrix of a runner file for one kind of device: its cells, most valuable first, and tables to print."""

    title: str
    tables: tuple[str, ...]
    budget: str | None
    selftest: str | None
    """How long the selftest may take with which a sweep of it begins; None: it begins without one."""
    cells: tuple[RunSpec, ...]
    repeats: int | None = None
    """Rounds in which every cell is run, each time in a fresh process; None: it does not say."""
    until: str | None = None
    """How narrow each median's interval must be for fewer of them, as ``2%``."""
    notes: tuple[str, ...] = ()
    """Cautions for readers of the file: rules of ``[[exclude]]`` that leave nothing out, and cells that are doubled."""
    contest: Contest | None = None
    """The contest of a protocol, whose ``cells`` are its tuning runs; their results say which runs come after them."""


MOST_CELLS = 5_000
"""Cells of a matrix: planning more takes long, and measuring them weeks."""

NARROW = "fastest 16-bit"
"""As a ``dtype``: whichever 16-bit type this machine multiplies fastest."""


def unpriced(unit: str, spec: RunSpec) -> tuple[float, float]:
    """Raises ``ValueError``: where nobody can say what a step costs."""
    raise ValueError(f"a budget in {unit} must be priced, but nobody here can; run it by `zobench sweep`")


def load(
    path: Path, device: str, changes: Mapping[str, Any] | None = None,
    narrow: Callable[[], str | None] = lambda: "bf16", price: Price = unpriced, part: Mapping[str, Any] | None = None,
) -> Matrix:  # fmt: skip
    """The matrix in ``path`` as it runs on ``device`` ("cpu", "cuda", "cuda:0"), with ``changes`` made to every cell.

    A list in ``[[variants]]`` or ``[[include]]`` stands for one of them per value, the product of all its lists.
    ``[on.cpu]`` and ``[on.cuda]`` hold what differs there, ``part`` what differs in a part of a campaign. Cells that
    would run the same computation appear once. A cell that has all values of a rule of ``[[exclude]]`` (after
    ``changes``, defaults included) is left out. An option of a plug-in is given, varied and excluded as
    ``options.NAME``. ``narrow`` is asked for what NARROW stands for, or None: then its cells are left out. A file with
    a ``[protocol]`` (:mod:`zobench.recipes.protocol`) holds ``[[methods]]``, of which a ``part`` may name some;
    ``price`` says what a step costs. Raises ``ValueError``, one line that names the file, for an unknown key or an
    impossible value.
    """
    for key in changes or {}:
        check_key(key)
    with toml_in(path) as file:
        body, chosen = _body(file, device), dict(part or {})
        headers = chosen.pop("methods", None)
        _check(chosen, ("base",) if "protocol" in body else PART_KEYS, "a part of a campaign")
        body = _overlay(body, chosen)
        contest = _contest(body, device, dict(changes or {}), price, headers) if "protocol" in body else None
        if headers is not None and contest is None:
            raise ValueError("`methods` of a part choose those of a protocol, but the file has none; leave it out")
        stated = list(contest.cells if contest else _cells(body, device, dict(changes or {}), narrow))
        cells: dict[str, RunSpec] = {}
        for cell in stated:
            check_recorded(cell)
            cells.setdefault(cell.hash, cell)  # one model may be there under two paths
        _check_names(cells.values())
        if not cells:
            raise ValueError("a matrix must hold a cell, but this has none; give [axes], [[variants]] or [[include]]")
        notes = () if changes or part else _notes(path.name, file, len(stated), len(cells))
    return Matrix(
        title=body.get("title", path.stem),
        tables=tuple(body.get("tables", ())),
        cells=tuple(cells.values()),
        notes=notes,
        contest=contest,
        **{key: body.get(key) for key in ("budget", "selftest", "repeats", "until")},
    )


def _notes(name: str, file: Mapping[str, Any], stated: int, distinct: int) -> tuple[str, ...]:
    """A line for each rule of ``[[exclude]]`` in the ``file`` called ``name`` that leaves nothing out on a device of
    either kind, whichever 16-bit type NARROW stands for there; and one if fewer of the ``stated`` cells are
    ``distinct``."""
    met: dict[str, bool] = {}
    for body in (_body(file, kind) for kind in ("cpu", "cuda")):
        rules = _rules(body)
        rows = [{**values, **narrowed} for values in _rows(body, {}) for narrowed in _narrowed(values)] if rules else []
        for rule in rules:
            rule_text = ", ".join(f"{key}={value}" for key, value in rule.items())
            met[rule_text] = met.get(rule_text, False) or any(_meets(values, rule) for values in rows)
    doubled = (
        f"{name}: {stated} cells are {distinct} different computations, and each runs once; where cells differ only in "
        "a field without effect there, such as overlap of a resident model, they are one"
    )
    return tuple(
        f"{name}: the rule of [[exclude]] {rule_text} leaves nothing out; no cell has all of its values"
        for rule_text, is_met in met.items() if not is_met
    ) + ((doubled,) if distinct < stated else ())  # fmt: skip


def _narrowed(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"dtype": dtype} for dtype in ("fp16", "bf16")] if values.get("dtype") == NARROW else [{}]


def protocol_of(path: Path) -> protocols.Protocol | None:
    """The protocol that the file states, whatever device it runs on; None of a matrix without one."""
    with toml_in(path) as file:
        body = _body(file, "cpu")
        return _protocol(body) if "protocol" in body else None


def _body(file: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Returns the table of the file for ``device``; its keys are checked."""
    keys = _PROTOCOL_KEYS if "protocol" in file else _KEYS
    _check(file, keys, "the file")
    _check(file.get("on", {}), ("cpu", "cuda"), "[on]")
    for kind, section in file.get("on", {}).items():
        _check(section, [key for key in ("budget", *PART_KEYS) if key in keys], f"[on.{kind}]")
        stated = {key for method in file.get("methods", []) for key in flat(method)}
        if doubled := sorted(stated & flat(section.get("base", {})).keys()):  # a protocol's table reads no device's
            raise ValueError(
                f"`{doubled[0]}` of [on.{kind}.base] must not be a method's, but is; state it in [[methods]]"
            )
    return _overlay(file, file.get("on", {}).get(device.split(":")[0], {}))


def _check(body: Mapping[str, Any], keys: Iterable[str], section: str) -> None:
    checked(body, {key: SHAPES[key] for key in keys}, section)


def _protocol(body: Mapping[str, Any]) -> protocols.Protocol:
    return protocols.read(body["protocol"], body.get("methods", []), flat(body.get("base", {})))


def _contest(
    body: Mapping[str, Any], device: str, changes: dict[str, Any], price: Price, headers: Sequence[str] | None
) -> Contest:
    base, changes = flat(body.get("base", {})), flat(changes)
    for key in base:
        _check_field(key)
    return protocols.contest(
        _protocol(body), base, changes, _product, lambda values: with_length(values).resolve(device), price, headers
    )


def _check_names(cells: Iterable[RunSpec]) -> None:
    """Raises ``ValueError`` for two models of one name, which tables would show as one."""
    named: dict[tuple[str, str], RunSpec] = {}
    for cell in cells:
        for fingerprint in ("config_hash", "weights_hash"):
            first = named.setdefault((cell.model.casefold(), fingerprint), cell) if cell.value(fingerprint) else cell
            if first.value(fingerprint) != cell.value(fingerprint):
                raise ValueError(
                    f"models must have names of their own, but {first.model_path} and {cell.model_path} are both "
                    f'called {cell.model}; give each in [[variants]], one with name = "..."'
                )


def _overlay(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` with ``changes``: tables are merged key by key, everything else is replaced. What the changes' base says
    is no axis any more."""
    merged = dict(body)
    for key, value in changes.items():
        merged[key] = {**flat(body.get(key, {})), **flat(value)} if isinstance(value, dict) else value
    fixed = flat(changes.get("base", {})).keys()
    axes = flat(changes.get("axes", {})).keys()
    if "axes" in merged:
        merged["axes"] = {key: value for key, value in flat(merged["axes"]).items() if key not in fixed - axes}
    return merged


def _cells(
    body: Mapping[str, Any], device: str, changes: dict[str, Any], narrow: Callable[[], str | None]
) -> Iterable[RunSpec]:
    """The cells that no rule of ``[[exclude]]`` leaves out."""
    rules = _rules(body)
    for values in _rows(body, changes):
        if not values.get("model"):
            raise ValueError("`model` must be given, but no cell names one; add --set model=NAME or FOLDER")
        if values.get("dtype") == NARROW:
            values["dtype"] = narrow()
        if values.get("dtype", "") is None:
            continue
        if not any(_meets(values, rule) for rule in rules):
            yield with_length(values).resolve(device)


def _rows(body: Mapping[str, Any], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of all cells, also of those that a rule leaves out, with ``changes`` made to each."""
    base, axes = flat(body.get("base", {})), flat(body.get("axes", {}))
    varied, included = ([flat(row) for row in rows] for rows in (body.get("variants", [{}]), body.get("include", ())))
    for section in (base, axes, *varied, *included):
        for key in section:
            _check_field(key)
    for key, value in base.items():
        if isinstance(value, list):
            raise ValueError(f"`{key}` must be one value in [base], but got {value!r}; write its list in [axes]")
    for key, values in axes.items():
        if not isinstance(values, list):
            raise ValueError(f"axis {key!r} must be a list, but got {values!r}; write {key} = [{values!r}]")
    has_points = bool(axes or "variants" in body or "include" not in body)
    wanted = _count(axes) * sum(map(_count, varied)) * has_points + sum(map(_count, included))
    if wanted > MOST_CELLS:
        raise ValueError(
            f"a matrix must have at most {MOST_CELLS:,} cells, but this has {wanted:,} before any [[exclude]]; shorten "
            "its lists, or make several files"
        )
    points, variants = _product(axes), [row for row in varied for row in _product(row)]
    rows = [point | variant for point in points for variant in variants] if has_points else []
    rows += [row for item in included for row in _product(item)]
    return [{**base, **flat(row), **flat(changes)} for row in rows]


def _rules(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rules of ``[[exclude]]``, with values as a spec has them."""
    rules = [flat(rule) for rule in body.get("exclude", ())]
    for rule in rules:
        for key in rule:
            _check_field(key)
    if {} in rules:
        raise ValueError("a rule of [[exclude]] must name a field, but one is empty; it would exclude every cell")
    return [{key: _value(rule, key) for key in rule} for rule in rules]


def _meets(values: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(_value(values, key) == value for key, value in rule.items())


def _check_field(key: str) -> None:
    check_key(key)
    if key == "device":
        raise ValueError("`device` must not be in a matrix, but is; choose it with --device")


def _count(values: Mapping[str, Any]) -> int:
    """How many :func:`_product` makes."""
    return math.prod(len(value) for value in values.values() if isinstance(value, list))


def _product(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One of ``values`` for every combination of its lists' items, the last list fastest."""
    if (count := _count(values)) > MOST_CELLS:
        raise ValueError(f"a grid must have at most {MOST_CELLS:,} points, but this has {count:,}; shorten its lists")
    lists = [value if isinstance(value, list) else [value] for value in values.values()]
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*lists)]


def asked(values: Mapping[str, Any]) -> RunSpec:
    """One cell from field values, checked but for the device on which it will run; torch is not needed for it."""
    spec = models.identified(with_length(values))
    models.check(spec)
    check_recorded(spec)
    return spec


def single(values: Mapping[str, Any], device: str) -> RunSpec:
    """One cell from field values, checked and resolved for ``device``."""
    return asked(values).resolve(device)


def with_length(values: Mapping[str, Any]) -> RunSpec:
    """The spec of ``values``; a ``seq_len`` that is not given is the papers', or what the model has positions for."""
    spec = models.identified(RunSpec.from_dict(values))
    seq_len = spec.seq_len if "seq_len" in values else min(SEQ_LEN, models.of(spec).max_positions)
    return spec.replace(seq_len=seq_len)


def _value(values: Mapping[str, Any], key: str) -> Any:
    """The value that a spec of ``values`` has under ``key``; one that no spec can have is an error."""
    if key == "model":
        return models.identifying_name(str(values["model"])) if "model" in values else None
    if key == "seq_len" and key not in values:
        return with_length(values).seq_len
    return value_in(values, key)
