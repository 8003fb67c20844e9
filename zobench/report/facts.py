"""Facts: a table of a paper that holds no measurements, beside what zobench itself says of the same: its registry of
models, or the peak memory that its formulas predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zobench import models
from zobench.predict.footprint import memory
from zobench.report import toml
from zobench.report.sheet import Sheet, of_frame
from zobench.report.toml import check
from zobench.runspec import RunSpec, suggestion


def _config(*keys: str) -> Callable[[str], int]:
    """The first of ``keys`` that a model's configuration has: families name the same thing differently."""

    def of(name: str) -> int:
        settings = models.get(name).settings(None, None)
        return int(next(settings[key] for key in keys if key in settings))

    return of


FACTS: dict[str, Callable[[str], int]] = {
    "layers": lambda name: models.get(name).layers,
    "heads": _config("num_attention_heads"),
    "width": lambda name: models.get(name).hidden,
    "ffn": _config("ffn_dim", "intermediate_size"),
    "vocabulary": lambda name: models.get(name).vocab,
    "positions": lambda name: models.get(name).max_positions,
    "parameters": models.parameter_count,
}
"""What the registry knows of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One row: what the paper prints in each column, which model of the registry it is about, or "", and in what the
    run differs whose memory is predicted beside it (empty: none is)."""

    header: str
    model: str
    paper: tuple[str, ...]
    run: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """``columns``: (header, one of ``FACTS`` or ""); ``base``: what all runs of the rows have in common."""

    name: str
    title: str
    paper: str
    artifact: str
    caption: str
    row_header: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Fact, ...]
    base: Mapping[str, Any]
    runner: str = ""
    is_figure: ClassVar[bool] = False


def parse(data: Mapping[str, Any]) -> Facts:
    """The facts in ``data``; ``ValueError`` for a key or a name that is not known."""
    words = dict.fromkeys(("kind", "title", "paper", "artifact"), str)
    check("the table", data, {**words, "columns": list, "rows": list}, {"caption": str, "header": str, "run": dict})
    for column in data["columns"]:
        check("[[columns]]", column, {"header": str}, {"fact": str})
        if column.get("fact", "layers") not in FACTS:
            raise ValueError(f"unknown fact {column['fact']!r}; {suggestion(column['fact'], FACTS)}")
    columns = tuple((column["header"], column.get("fact", "")) for column in data["columns"])
    toml.different("column", [header for header, _ in columns])
    rows = tuple(_row(item, len(columns), data.get("run", {})) for item in data["rows"])
    return Facts(
        name=f"{data['paper']}/{data['artifact']}", title=data["title"], paper=data["paper"], artifact=data["artifact"],
        caption=data.get("caption", ""), row_header=data.get("header", "Model"), columns=columns, rows=rows,
        base=data.get("run", {}),
    )  # fmt: skip


def _row(data: Mapping[str, Any], width: int, base: Mapping[str, Any]) -> Fact:
    check("[[rows]]", data, {"header": str, "paper": list}, {"model": str, "run": dict})
    if "run" in data:
        RunSpec.from_dict({**base, **data["run"]})
    if len(data["paper"]) != width:
        raise ValueError(f"`paper` must have one text per column, but {data['header']!r} has {len(data['paper'])}")
    if model := data.get("model", ""):
        models.get(model)
    return Fact(header=data["header"], model=model, paper=tuple(map(str, data["paper"])), run=data.get("run", {}))


def sheets(facts: Facts) -> list[Sheet]:
    """What the paper prints, and what the registry holds of the same models."""
    remarks = [facts.caption] if facts.caption else []
    shown = [_sheet(facts, "paper", f"paper ({facts.paper} {facts.artifact})", lambda row, k: row.paper[k], remarks)]
    if any(fact for _, fact in facts.columns):
        source = "zobench's registry of models, from which every cell of these models is built"
        shown.append(_sheet(facts, "registry", source, lambda row, k: _registered(row.model, facts.columns[k][1]), []))
    if any(row.run for row in facts.rows):
        memories = replace(facts, columns=(("Peak memory (GB)", ""),), title=f"{facts.title}, evaluated")
        spec = RunSpec.from_dict({**facts.base})
        about = [f"{spec.model}, batch {spec.batch_size}, {spec.seq_len} tokens; 1 GB here is {2**30} bytes."]
        source = "predicted by zobench's formulas for its own engine on a CUDA device"
        shown.append(_sheet(memories, "predicted", source, lambda row, k: _predicted(facts.base, row.run), about))
    return shown


def _predicted(base: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    if not run:
        return "·"
    return f"{memory(RunSpec.from_dict({**base, **run}).resolve('cuda'))[0] / 2**30:.1f}"


def _registered(model: str, fact: str) -> str:
    return str(FACTS[fact](model)) if model and fact else "·"


def _sheet(facts: Facts, kind: str, source: str, text: Callable[[Fact, int], str], remarks: list[str]) -> Sheet:
    import pandas as pd

    body = [[text(row, k) for k in range(len(facts.columns))] for row in facts.rows]
    index = pd.Index([row.header for row in facts.rows], name=facts.row_header)
    frame = pd.DataFrame(body, index=index, columns=[header for header, _ in facts.columns])
    return of_frame(frame, label=f"{facts.name}-{kind}", title=facts.title, source=source, remarks=remarks)
