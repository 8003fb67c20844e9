"""Grids: the hyper-parameters that a search tries, and a run's defaults where none are given (``grids.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.machine.texts import toml_in, toml_of
from zobench.runspec import DECLARED, METHODS, check_key, check_value, flat

SEARCHED = (
    "lr", "eps", "batch_size", "steps", "weight_decay", "queries", "momentum", "sparsity", "zo_layers", "lr_schedule",
    "definition", "options",
)  # fmt: skip
"""The fields that may differ inside a search: the rest decides which data, model and method are compared, or where they
run."""
BATCH = 16
"""ZO-Bench's, section 4."""
EVALUATIONS = 20
"""How often a run is evaluated on dev where ``eval_every`` is not given."""


@dataclass(frozen=True, slots=True)
class SearchGrid:
    """A grid of hyper-parameters. ``axes``: field to the values to try, in all combinations; ``source``: where from."""

    axes: dict[str, list[Any]]
    source: str

    @property
    def text(self) -> str:
        """``lr 1e-06, 1e-07; eps 0.001 (ZO-Bench)``."""
        axes = "; ".join(f"{key} {', '.join(map(str, values))}" for key, values in self.axes.items())
        return f"{axes} ({self.source})"


def shipped(method: str, scheme: str) -> SearchGrid:
    """The grid of ``grids.toml`` for a method and a scheme, without fields that the method does not use. Raises
    ``ValueError`` for a scheme that the method does not take."""
    for key, value in (("method", method), ("scheme", scheme)):
        check_value(key, value)
    kind = METHODS.get(method)
    grids = toml_of(Path(__file__).with_name("grids.toml"))[kind.grid]
    if scheme not in grids:
        schemes = ", ".join(grids)
        raise ValueError(f"`method={method}` needs scheme={schemes}, but got scheme={scheme}; use scheme={schemes}")
    body = grids[scheme]
    source = str(body.pop("source"))
    return SearchGrid({key: values for key, values in body.items() if key not in kind.unused}, source)


def load(path: Path) -> SearchGrid:
    """A user's grid: a TOML file of lists, ``lr = [1e-6, 1e-7]``. Raises ``ValueError``, one line with the file."""
    try:
        with toml_in(path) as body:
            return SearchGrid(checked(body), path.name)
    except OSError as error:
        raise ValueError(f"`--grid` must be a file, but {path} cannot be read ({error.strerror}); check it") from error


def checked(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """``axes`` with every value of its field's type. Raises ``ValueError`` for a field that no search can vary."""
    varied = {}
    for key, values in flat(axes).items():
        check_key(key)
        if key.partition(".")[0] not in SEARCHED:
            raise ValueError(f"`{key}` must be the same in a whole search, but is varied; vary {', '.join(SEARCHED)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"`{key}` must be a list of values, but got {values!r}; write {key} = [...]")
        varied[key] = list(dict.fromkeys(check_value(key, value) for value in values))
    if not varied:
        raise ValueError("a grid must vary something, but is empty; write lr = [1e-6, 1e-7]")
    return varied


def asked(values: Mapping[str, Any]) -> tuple[str, str]:
    """The method and the scheme of a run of ``values``."""
    method, scheme = (str(values.get(key, DECLARED[key].default)) for key in ("method", "scheme"))
    return method, scheme


def defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """(defaults of the fields that ``values`` lacks, from ZO-Bench and the first of each list of the grid; a line that
    names them and their sources)."""
    method, scheme = asked(values)
    grid = shipped(method, scheme)
    usual = {key: listed[0] for key, listed in grid.axes.items()}
    usual |= {"steps": METHODS.get(method).steps, "batch_size": BATCH}
    steps = int(values.get("steps", usual["steps"]))
    usual["eval_every"] = max(1, steps // EVALUATIONS)
    count = steps // usual["eval_every"]
    missing = {key: value for key, value in usual.items() if key not in values}
    origins = dict.fromkeys(grid.axes, grid.source) | {"eval_every": f"for {count} evaluation{'s' * (count != 1)}"}
    groups: dict[str, list[str]] = {}
    for key, value in missing.items():
        groups.setdefault(origins.get(key, "ZO-Bench"), []).append(f"{key}={value}")
    text = ", ".join(f"{', '.join(words)} ({origin})" for origin, words in groups.items())
    return missing, f"not given, so taken: {text}" if text else ""
