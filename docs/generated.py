"""Writes the pages that come from the code: every table and figure, the commands, the fields, the names, the API.

They lie in docs/generated, which is not committed; ``docs/conf.py`` calls :func:`write` before each build.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import elements  # it lies beside this file, in a folder that conf.py puts on the path

if TYPE_CHECKING:
    from zobench.recipes.reference import Reference
    from zobench.report.contents import ReportContents
    from zobench.result import Result

ROOT = Path(__file__).parents[1]
OWN = "zobench"
"""The page of the tables and figures that no paper has."""


def write(folder: Path) -> None:
    """Writes all generated pages into ``folder``, which holds nothing else afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "figures").mkdir(parents=True)
    from zobench.recipes.reference import Reference
    from zobench.report.artifacts import gather
    from zobench.store import Store

    results, reference = Store(ROOT / "results" / "published").load(), Reference.load()
    report, filled = gather(results, (), reference, progress=lambda name, done, of: None)
    (folder / "verdicts.inc").write_text(verdicts(results, reference), encoding="utf-8")
    (folder / "coverage.inc").write_text(elements.text(results, filled, reference), encoding="utf-8")
    pages = {**dict(artifacts(report, folder / "figures")), "cli": commands(), "fields": fields(), "names": names()}
    pages["registered"] = registered()
    for name, text in {**pages, "api": api()}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def artifacts(contents: ReportContents, figures: Path) -> Iterator[tuple[str, str]]:
    """A page for each paper with its tables and figures, as ``contents`` has them. Draws into ``figures``."""
    from zobench.recipes.reference import PAPERS

    if contents.problems:
        raise RuntimeError("; ".join(contents.problems))
    titles: Mapping[str, str] = {short: f"Tables and figures of {name}" for short, name in PAPERS.items()}
    for paper in dict.fromkeys(artifact.paper for artifact in contents.artifacts):
        its = [artifact for artifact in contents.artifacts if artifact.paper == paper]
        title = titles.get(paper, "Tables and figures of zobench's own")
        stem = its[0].name.split("/")[0] if "/" in its[0].name else OWN
        yield f"tables-{stem}", "\n\n".join([f"# {title}", LEGEND, *(_artifact(one, figures) for one in its)]) + "\n"


def verdicts(results: Sequence[Result], reference: Reference) -> str:
    """The five papers' verdicts, by the published runs, after what their words mean."""
    from zobench.recipes.reference import PAPERS
    from zobench.report import verdict

    words = [f"- **{standing}**: {meaning}." for standing, meaning in verdict.MEANINGS.items()]
    pages = [verdict.as_markdown(paper, verdict.verdicts(paper, results, reference)) for paper in PAPERS]
    return "\n".join([*words, "", *pages])


LEGEND = (
    "Filled by `zobench` itself with the runs in `results/published`, of small CPU machines and an H100. Upright: "
    "measured there. *Italic with ~*: predicted. Columns of a paper: reported by it. "
    "[What the layers mean](../tables.md)."
)


def _artifact(artifact: Any, figures: Path) -> str:
    """One table or figure: what it shows, what measures it, its pictures, its numbers."""
    from zobench.report.figures import save
    from zobench.report.formats import markdown
    from zobench.report.publish import clean

    parts = [f"## {artifact.name}", f"{markdown.escape(artifact.title)}."]
    parts += [f"`zobench reproduce {artifact.name}` measures what this machine can."] if artifact.runner else []
    for chart in artifact.charts:
        if not chart.drawn:
            parts += map(markdown.escape, chart.lacking)
            continue
        (path,) = save(chart, figures / clean(chart.name).replace("/", "-"), ["svg"])
        told = " ".join(f"{artifact.title}, {chart.source}".split()).replace('"', "'")
        parts.append(f"```{{image}} figures/{path.name}\n:alt: {told}\n:class: figure\n:width: 100%\n```")
    parts += (
        [_layers(markdown.write(artifact.sheets).strip(), markdown.escape(artifact.title))] if artifact.sheets else []
    )
    return "\n\n".join(parts)


def _layers(text: str, title: str) -> str:
    """Sheets whose headings say where their numbers are from, without the ``title`` that stands above already."""

    def heading(found: re.Match[str]) -> str:
        return f"### {found[2]}" if found[1] == title else f"### {found[1].removeprefix(f'{title}: ')}: {found[2]}"

    return re.sub(r"^### (.+)\n\n\*\*(.+)\*\*$", heading, text, flags=re.MULTILINE)


def commands() -> str:
    """What ``zobench --help`` and the help of every command say."""
    from typer.main import get_command

    from zobench.cli.common import app

    parts = ["# Commands", "What `zobench COMMAND --help` says.", _help(["--help"])]
    for words in _commands(get_command(app)):
        parts += [f"## zobench {' '.join(words)}", _help([*words, "--help"])]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, before: Sequence[str] = ()) -> Iterator[list[str]]:
    """The words of every command, those of groups of commands too."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield [*before, name]
            yield from _commands(command, [*before, name]) if hasattr(command, "commands") else ()


def _help(words: Sequence[str]) -> str:
    """A block with what ``zobench WORDS`` prints."""
    from zobench import cli

    printed = io.StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli.main(words)
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    if not printed.getvalue().strip():
        raise RuntimeError(f"zobench {' '.join(words)} printed nothing")
    return f"```text\n{printed.getvalue().strip()}\n```"


def registered() -> str:
    """What is predicted of GPUs that nobody has measured zobench on, as it was registered."""
    from zobench.cost import registered

    parts = [
        "# Registered predictions",
        "Predicted before anybody measured them, and never changed: a file each in `zobench/cost/registered`, with "
        "its day and SHA-256. `zobench results --merge-into` scores them when a run comes in "
        "([how](../predictions.md#registered-predictions)).",
    ]
    for body in registered.read_all():
        parts.append(f"## {body['gpu']}, {body['matrix']}")
        parts.append(
            f"Registered on {body['registered']} by zobench {body['zobench']}, SHA-256 `{body[registered.STAMP]}`."
        )
        rows = []
        for cell in body["cells"]:
            low, middle, high = cell["step_seconds"]
            seconds = f"~{middle:.3g} ({low:.3g} to {high:.3g})" if cell["fits"] else "out of memory"
            memory = f"~{cell['device_bytes'] / 1e9:.1f} ± {100 * cell['memory_share']:.0f} %"
            rows.append((cell["label"], seconds, memory))
        parts.append(_table(("cell", "seconds of a step", "GB on the device"), rows))
    return "\n\n".join(parts) + "\n"


def fields() -> str:
    """Every field of a RunSpec, as it is declared."""
    from zobench.runspec.fields import declared
    from zobench.runspec.run import RunSpec

    rows = []
    for name, known in declared(RunSpec).items():
        default = "" if known.required else known.write(known.default)
        values = ", ".join(f"`{word}`" for word in known.choices) or known.noun
        rows.append((f"`{name}`", known.about, f"`{default}`" if default else "", values))
    told = (
        "Every field of a run, as `zobench list fields` shows them: the keys of `--set KEY=VALUE`, of `[base]` and "
        "`[axes]` in a matrix, and the arguments of `zobench.RunSpec`. A value that cannot run is an error of one line."
    )
    return "\n\n".join(["# Fields", told, _table(("field", "what it is", "default", "values"), rows)]) + "\n"


def names() -> str:
    """What a field or a recipe can name: methods, schemes, tasks, metrics, models, programs, GPUs."""
    from zobench.cost import hardware
    from zobench.report.formats import markdown
    from zobench.runspec import registries

    methods = ((f"`{kind.name}`", markdown.escape(kind.as_written.formula)) for kind in registries.METHODS.builtin())
    schemes = ((f"`{kind.name}`", markdown.escape(kind.about)) for kind in registries.SCHEMES.builtin())
    tasks = ((f"`{task.name}`",) for task in registries.TASKS.builtin())
    metrics = ((f"`{one.name}`", one.base_unit, one.about) for one in registries.METRICS.builtin())
    models = ((f"`{one.name}`", one.hub_id, one.layers, one.hidden) for one in registries.MODELS.builtin())
    programs = ((f"`{one.name}`", markdown.escape(one.about)) for one in registries.PROGRAMS.builtin())
    gpus = ((f"`{name}`", hardware.load(name).name) for name in hardware.names())
    parts = [
        ("Methods", ("method", "one step"), methods),
        ("Schemes", ("scheme", "what is tuned"), schemes),
        ("Tasks", ("task",), tasks),
        ("Metrics", ("metric", "unit", "what it is"), metrics),
        ("Models", ("model", "on the hub", "layers", "width"), models),
        ("Programs", ("program", "what runs a cell"), programs),
        ("GPUs", ("`--gpu`", "name"), gpus),
    ]
    told = (
        "What `zobench list` shows of zobench itself. A [plug-in](../extending.md) adds methods, schemes, "
        "tasks, metrics, models and programs; a GPU of your own is [a file](../predictions.md#a-gpu-of-your-own)."
    )
    body = (text for title, header, rows in parts for text in (f"## {title}", _table(header, rows)))
    return "\n\n".join(["# Names", told, *body]) + "\n"


def api() -> str:
    """The public names of ``zobench``, from their docstrings."""
    import zobench

    parts = ["# API", API]
    for name in sorted({*zobench.__all__} - {"__version__", "models"}, key=str.lower):
        parts += [f"## zobench.{name}", _documented("zobench", name)]
    for module, its in OTHERS.items():
        parts += [f"## {module}", f"```{{eval-rst}}\n.. automodule:: {module}\n```"]
        parts += [_documented(module, name) for name in its]
    return "\n\n".join(parts) + "\n"


def _documented(module: str, name: str) -> str:
    """A class with its members (a suite's are its checks: without them), or a function."""
    one = getattr(importlib.import_module(module), name)
    form = "autoclass" if isinstance(one, type) else "autofunction"
    members = "   :members:\n" if isinstance(one, type) and module != "zobench.testing" else ""
    return f"```{{eval-rst}}\n.. {form}:: {module}.{name}\n{members}```"


API = (
    "What a program of yours may use: first what `dir(zobench)` shows, then what a [plug-in](../extending.md), a "
    "[run from Python](../python.md) or the [Trainer](../trainer.md) imports. Everything else may change from one "
    "version to the next without a word."
)
OTHERS: Mapping[str, Sequence[str]] = {
    "zobench.models": ("build", "Architecture", "Family"),
    "zobench.models.families": ("gated_block", "gated_kept", "gated_resident"),
    "zobench.training": ("RunStart", "StepReport", "Evaluation"),
    "zobench.recipes.matrix": ("load", "single"),
    "zobench.runspec.kinds": ("MethodKind", "SchemeKind", "Definition", "UpdateSize"),
    "zobench.methods": ("make", "rule"),
    "zobench.schemes.base": ("Scheme", "Adapter"),
    "zobench.methods.eggroll": ("EGGROLL",),
    "zobench.data.tasks.task": ("Task", "Example", "words"),
    "zobench.programs": ("Program",),
    "zobench.report.artifacts": ("frame",),
    "zobench.result": ("Outcome",),
    "zobench.result.quantity": ("Quantity",),
    "zobench.hf": ("ZOTrainer", "ZOMixin"),
    "zobench.testing": (
        "failures", "MethodConformance", "EngineConformance", "LocalEngineConformance", "GradientConformance",
        "TierConformance", "LanesConformance", "ProgramConformance",
    ),
}  # fmt: skip
"""Module -> its names that the pages' programs use; a test holds it against their blocks."""


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(entry).replace('|', chr(92) + '|') for entry in line)} |" for line in lines)
