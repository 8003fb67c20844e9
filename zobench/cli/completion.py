"""What a shell completes: the names of matrices, tables, figures, models, tasks, methods, GPUs and fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zobench import recipes
from zobench.recipes.reference import PAPERS
from zobench.runspec import DECLARED, registries
from zobench.runspec.registries import MODELS

Completer = Callable[[str], list[str]]
"""The words that begin as what was typed."""


LISTS = (
    "models", "methods", "schemes", "matrices", "campaigns", "tables", "figures", "tasks", "metrics", "programs",
    "gpus", "fields",
)  # fmt: skip
"""What `zobench list` can list."""


def _of(names: Callable[[], Iterable[str]]) -> Completer:
    """Completes ``names``, which are looked up when they are asked for."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _recipes(*kinds: str) -> Completer:
    def names() -> Iterable[str]:
        return [name for kind in kinds for name in recipes.names(kind)]

    return _of(names)


def _registered(noun: str) -> Completer:
    def names() -> Iterable[str]:
        return tuple(getattr(registries, noun.upper()).names())

    return _of(names)


def _gpus() -> Iterable[str]:
    from zobench.cost import hardware

    return (*hardware.names(), "all")


def changes(incomplete: str) -> list[str]:
    """``KEY=`` of every field, and ``KEY=VALUE`` of one whose words are known."""
    key, sign, begun = incomplete.partition("=")
    if not sign:
        return [f"{name}=" for name in DECLARED if name.startswith(key)]
    choices = DECLARED[key].choices if key in DECLARED else ()
    return [f"{key}={word}" for word in choices if word.startswith(begun)]


def _models() -> Iterable[str]:
    from zobench.models import published

    return (*MODELS.names(), *published.names())


matrices, tables, figures = _recipes("runners"), _recipes("tables"), _recipes("plots")
artifacts = _recipes("tables", "plots")
models = _of(_models)
tasks, methods, schemes = map(_registered, ("tasks", "methods", "schemes"))
gpus = _of(_gpus)
papers = _of(lambda: PAPERS)
lists = _of(lambda: LISTS)
