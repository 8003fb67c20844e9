"""The words that a shell completes: the names of matrices, tables, figures, models, tasks, methods, GPUs and fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zobench import recipes
from zobench.recipes.reference import PAPERS
from zobench.runspec import DECLARED
from zobench.runspec.registries import METHODS, MODELS, SCHEMES, TASKS

LISTS = (
    "models", "methods", "schemes", "matrices", "campaigns", "tables", "figures", "tasks", "metrics", "programs",
    "gpus", "fields",
)  # fmt: skip
"""The lists of `zobench list`."""


def _of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Completes ``names``, which are looked up when they are asked for, by the words that begin as what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def changes(incomplete: str) -> list[str]:
    """``KEY=`` of every field, and ``KEY=VALUE`` of one whose words are known."""
    key, sign, begun = incomplete.partition("=")
    if not sign:
        return [f"{name}=" for name in DECLARED if name.startswith(key)]
    choices = DECLARED[key].choices if key in DECLARED else ()
    return [f"{key}={word}" for word in choices if word.startswith(begun)]


def _gpus() -> Iterable[str]:
    from zobench.cost import hardware

    return (*hardware.names(), "all")


def _models() -> Iterable[str]:
    from zobench.models import published

    return (*MODELS.names(), *published.names())


matrices, tables = _of(lambda: recipes.names("runners")), _of(lambda: recipes.names("tables"))
figures = _of(lambda: recipes.names("plots"))
artifacts = _of(lambda: [*recipes.names("tables"), *recipes.names("plots")])
models, gpus, papers, lists = _of(_models), _of(_gpus), _of(lambda: PAPERS), _of(lambda: LISTS)
tasks, methods, schemes = _of(TASKS.names), _of(METHODS.names), _of(SCHEMES.names)
