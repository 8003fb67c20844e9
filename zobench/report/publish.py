"""Writes a report: one page, every table and figure in every format, the comparison, and a macro per number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zobench.machine.files import writing
from zobench.machine.texts import csv_of
from zobench.recipes.reference import Reference
from zobench.report import artifacts, figures, frames, html, opening
from zobench.report.contents import Artifact, ReportContents
from zobench.report.formats import latex, markdown
from zobench.report.summary import Filled
from zobench.result import Result

PAGE, SUMMARY, COMPARISON, NUMBERS = "index.html", "summary.md", "comparison.csv", "numbers.tex"
FIGURE, WHOLE = ("matplotlib",), ("jinja2", "matplotlib")
"""The packages without which no figure can be drawn, and no report written."""


def publish(
    results: Sequence[Result], problems: Sequence[str], out: Path, progress: artifacts.Progress
) -> ReportContents:
    """Writes everything below ``out`` and returns what was written as data; files of the same tables and figures that
    an earlier report left there, as of a machine that has no results any more, are removed. Raises ``OSError`` if the
    disk refuses."""
    contents, filled = artifacts.gather(results, problems, Reference.load(), progress)
    images: dict[str, list[str]] = {}
    undrawn, written = [], list[Path]()
    shown = [*contents.artifacts, *([opening.artifact(contents.opening)] if contents.opening else [])]
    count = len(shown)
    for i, artifact in enumerate(shown):
        progress(artifact.name, count + i, 2 * count)
        files = list[Path]()
        try:
            for file in write_artifact(artifact, out):
                files.append(file)
        except ValueError as error:  # one picture that cannot be drawn must not take the page with it
            undrawn.append(f"not drawn: {artifact.name}: {error}")
        else:
            images[artifact.name] = [path.read_text(encoding="utf-8") for path in files if path.suffix == ".svg"]
        written += files
    _remove_earlier(out, shown, written)
    try:
        _write(out, NUMBERS, latex.macros((item.table, item.grids) for item in filled))
    except ValueError as error:
        undrawn.append(f"not written: {NUMBERS}: {error}")
        (out / NUMBERS).unlink(missing_ok=True)
    contents = replace(contents, problems=(*contents.problems, *undrawn))
    progress(PAGE, 2 * count, 2 * count)
    _write(out, SUMMARY, markdown.write(contents.summary))
    _write(out, COMPARISON, comparison(filled))
    _write(out, PAGE, html.write(contents, images))
    return contents


def write_artifact(artifact: Artifact, out: Path) -> Iterator[Path]:
    """Writes the files of one table or figure, below ``out/tables`` or ``out/figures``, and yields each. Raises
    ``ValueError`` for a chart that cannot be drawn, after the text."""
    stem = f"{artifact.kind}s/{clean(artifact.name)}"
    if artifact.frame is not None:
        yield _write(out, f"{stem}.csv", csv_of(artifact.frame))
    if artifact.sheets:
        yield _write(out, f"{stem}.md", markdown.write(artifact.sheets))
        yield _write(out, f"{stem}.tex", latex.write(artifact.sheets))
    for chart in (chart for chart in artifact.charts if chart.drawn):
        yield from figures.save(chart, out / f"{artifact.kind}s" / clean(chart.name))


def _remove_earlier(out: Path, shown: Sequence[Artifact], written: Sequence[Path]) -> None:
    """Removes the files of tables and figures that an earlier report wrote, under their names or a machine's, unless
    they are ``written`` again. A picture of a report has all formats: a file without the others is the user's."""
    for artifact in shown:
        stem = out / f"{artifact.kind}s" / clean(artifact.name)
        names = re.compile(rf"{re.escape(stem.name)}(-.*)?\.svg")
        drawn = [path for path in stem.parent.glob("*.svg") if names.fullmatch(path.name)]
        pictures = [[path.with_suffix(ending) for ending in (".png", ".svg", ".pdf")] for path in drawn]
        earlier = [path for picture in pictures if all(map(Path.exists, picture)) for path in picture]
        earlier += [stem.with_name(stem.name + ending) for ending in (".csv", ".md", ".tex", ".png", ".svg", ".pdf")]
        for path in set(earlier) - set(written):
            path.unlink(missing_ok=True)


def clean(name: str) -> str:
    """``name`` as a path that stays inside: plain words, one level of folders."""
    words = [re.sub(r"[^A-Za-z0-9._-]+", "_", word).strip(".") for word in name.split("/")]
    return "/".join(word or "_" for word in words[-2:])


def _write(out: Path, name: str, text: str) -> Path:
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path):
        path.write_text(text, encoding="utf-8", newline="\n")
    return path


def comparison(filled: Sequence[Filled]) -> str:
    """Every reported value beside its measured one, in base units: one row per value and machine."""
    import pandas as pd

    every = pd.concat([frames.compared(frames.of_cells(item.table, item.grids)) for item in filled])
    return csv_of(every[list(_COMPARED)].rename(columns=_COMPARED))


_COMPARED = {
    **{name: name for name in ("table", "row", "column", "metric", "unit")},
    "value_paper": "reported", "value": "measured", "paper_ratio": "ratio", "reported_in_paper": "reported_in",
    "hardware_paper": "reported_on", "machine": "machine", "hardware": "measured_on", "floor_share": "floor_share",
    "spec_hash": "spec_hash", "deviations": "deviations",
}  # fmt: skip
"""Column of :func:`zobench.report.frames.compared` -> column of the comparison."""
