"""A book of results with one sheet, chart and artifact, and the page that shows it."""

import dataclasses
from typing import Any

from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.contents import Artifact, ReportContents
from zobench.report.html import write
from zobench.report.sheet import CellText, ColumnGroup, Sheet, number
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

ATTACK = "</script></style><img src=x onerror=\"window.hacked='yes'\">'\u2028\u2029&amp;<!--"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 244.8 150">'
    '<style>*{stroke: red}</style><rect width="90" height="90" style="fill:blue"/></svg>'
)
MIB = 2**20


def result(model: str = "opt-tiny", *, machine: str = "box-1", **changes: Any) -> Result:
    spec = {name: changes.pop(name) for name in ("engine", "dtype", "seq_len", "seed") if name in changes}
    values = {
        "environment": Facts(machine=machine, description="Box, 2 cores", memory_limit_bytes=3 * 2**30),
        "samples": {"step_seconds": [0.5, 0.25, 0.375], "loss": [4.5, None, 4.25]},
        "warmup": {"step_seconds": [1.0], "loss": [4.75]},
        "memory": {"device_peak_bytes": 200 * MIB, "pinned_bytes": None},
        **changes,
    }
    return Result(
        spec=RunSpec(**{"model": model, "seq_len": 64, **spec}).resolve("cpu"), **{"outcome": Outcome.OK, **values}
    )


def entry(text: str, tone: str = "value", detail: str = "", *notes: str) -> CellText:
    return CellText(text=text, tone=tone, detail=detail, notes=notes)


def sheet(*rows: tuple[str, CellText, CellText], title: str = "Speed", word: str = "") -> Sheet:
    """Two columns under one heading; ``word`` is added to every text there is."""
    said = [(label + word, *(dataclasses.replace(e, text=e.text + word) for e in entries)) for label, *entries in rows]
    return number(
        Sheet(
            label="s",
            title=title + word,
            source="measured on box-1 (Box, 2 cores)" + word,
            row_header="Model" + word,
            rows=tuple(entry(label, "label") for label, *_ in said),
            groups=(
                ColumnGroup(
                    header=entry("Throughput (tokens/s) ↑" + word, "label"),
                    columns=(entry("MeZO (FP32)" + word, "label"), entry("ZO2 (FP32)" + word, "label")),
                    body=tuple(tuple(entries) for _, *entries in said),
                ),
            ),
            remarks=("Medians of five steps." + word,),
        )
    )


SPEEDS = sheet(
    ("A", entry("1,200"), entry("7", "reported")),
    ("B", entry("598", "value", "(x0.57)", "Measured on a CPU."), entry("8", "reported")),
    ("C", entry("-", "failure"), entry("9", "reported")),
    ("D", entry("needs 6 min", "failure"), entry("1", "reported")),
    ("E", entry("·", "blank"), entry("2", "reported")),
    ("F", entry("87.5"), entry("2", "reported")),
)


def chart(*, source: str = "measured", word: str = "") -> Chart:
    marks = (Mark(value=1.0, source=source),)
    series = (Series(label="ZO2" + word, marks=marks, paper=(2.0,)),)
    return Chart(
        name="zo2/figure3",
        kind="bars",
        title="Memory of four methods" + word,
        source="measured on box-1" + word,
        panels=(Panel(positions=("OPT-1.3B",), series=series),),
        remarks=("X: does not fit." + word,),
    )


def artifact(name: str = "zo2/table1", **changes: Any) -> Artifact:
    values = {"kind": "table", "title": "Speed of two engines", "paper": "zo2", "runner": "main"}
    return Artifact(**{"name": name, "sheets": (SPEEDS,), **values, **changes})


def book(results: tuple[Result, ...] | None = None, *, word: str = "", **changes: Any) -> ReportContents:
    """A small report with one of everything; ``word`` is added to every text."""
    figure = artifact("zo2/figure3", kind="figure", title="Memory" + word, charts=(chart(word=word),))
    shown = sheet(("A", entry("1", "value", f"(x2{word})", "A note." + word), entry("2")), word=word)
    extra = artifact("own_table", title="Own" + word, paper="", sheets=(shown,))
    values = {
        "title": "A report" + word,
        "summary": (sheet(("Claim", entry("holds"), entry("x0.5")), title="Claims", word=word),),
        "artifacts": (figure, artifact(), extra),
        "results": (result(word + "opt-tiny"), result("opt-125m", engine="offload")) if results is None else results,
        "problems": ("results/box-1/bad.json: not JSON" + word,),
    }
    return ReportContents(**{**values, **changes})


def page(shown: ReportContents | None = None, width: str = "244.8") -> str:
    return write(book() if shown is None else shown, {"zo2/figure3": [SVG.replace("244.8", width)]})
