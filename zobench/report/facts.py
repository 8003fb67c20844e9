"""Facts: a table of a paper that holds no measurements, beside what zobench itself says of the same: its registry of
models, or the peak memory that its formulas predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from zobench import models
from zobench.cost.footprint import memory
from zobench.machine.reader import read
from zobench.report.sheet import Sheet, of_lines
from zobench.report.table import check_different, name_of
from zobench.runspec import RunSpec, suggestion


def _setting(name: str, *keys: str) -> int:
    """The first of ``keys`` that a model's configuration has: families name the same thing differently."""
    settings = models.get(name).settings(None, None)
    return int(next(settings[key] for key in keys if key in settings))


FACTS: dict[str, Callable[[str], int]] = {
    "layers": lambda name: models.get(name).layers,
    "heads": lambda name: _setting(name, "num_attention_heads"),
    "width": lambda name: models.get(name).hidden,
    "ffn": lambda name: _setting(name, "ffn_dim", "intermediate_size"),
    "vocabulary": lambda name: models.get(name).vocab,
    "positions": lambda name: models.get(name).max_positions,
    "parameters": models.parameter_count,
}
"""The facts of a model in the registry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One row: what the paper prints in each column, which model of the registry it is about, or "", and in what the
    run differs whose memory is predicted beside it (empty: none is)."""

    header: str
    model: str = ""
    paper: tuple[str, ...]
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FactColumn:
    """``fact``: one of :data:`FACTS`, or "" of a column that only the paper has."""

    header: str
    fact: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FactTable:
    """``header``: that of the rows; ``run``: what all runs of the rows have in common."""

    name: str
    kind: str
    title: str
    paper: str
    artifact: str
    caption: str = ""
    header: str = "Model"
    columns: tuple[FactColumn, ...]
    rows: tuple[Fact, ...]
    run: Mapping[str, Any] = field(default_factory=dict)
    runner: ClassVar[str] = ""
    is_figure: ClassVar[bool] = False


def parse(data: Mapping[str, Any]) -> FactTable:
    """The facts in ``data``; ``ValueError`` for a key or a name that is not known."""
    facts = read(FactTable, data, "the table", name=name_of("", data))
    for fact in (column.fact for column in facts.columns if column.fact):
        if fact not in FACTS:
            raise ValueError(f"unknown fact {fact!r}; {suggestion(fact, FACTS)}")
    check_different("column", [column.header for column in facts.columns])
    for row in facts.rows:
        if row.run:
            RunSpec.from_dict({**facts.run, **row.run})
        if len(row.paper) != len(facts.columns):
            raise ValueError(f"`paper` must have one text per column, but {row.header!r} has {len(row.paper)}")
        if row.model:
            models.get(row.model)
    return facts


def sheets(facts: FactTable) -> list[Sheet]:
    """Returns the facts that the paper prints, and those that the registry holds of the same models."""
    papers = f"paper ({facts.paper} {facts.artifact})"
    shown = [_sheet(facts, "paper", papers, lambda row: row.paper, facts.caption)]
    if any(column.fact for column in facts.columns):
        source = "zobench's registry of models, from which every cell of these models is built"
        shown.append(_sheet(facts, "registry", source, lambda row: [_registered(row, c) for c in facts.columns]))
    if any(row.run for row in facts.rows):
        memories = replace(facts, columns=(FactColumn(header="Peak memory (GB)"),), title=f"{facts.title}, evaluated")
        spec = RunSpec.from_dict({**facts.run})
        about = f"{spec.model}, batch {spec.batch_size}, {spec.seq_len} tokens; 1 GB here is {2**30} bytes."
        source = "predicted by zobench's formulas for its own engine on a CUDA device"
        shown.append(_sheet(memories, "predicted", source, lambda row: [_predicted(facts.run, row.run)], about))
    return shown


def _predicted(base: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    return f"{memory(RunSpec.from_dict({**base, **run}).resolve('cuda'))[0] / 2**30:.1f}" if run else ""


def _registered(row: Fact, column: FactColumn) -> str:
    return str(FACTS[column.fact](row.model)) if row.model and column.fact else ""


def _sheet(facts: FactTable, kind: str, source: str, texts: Callable[[Fact], Sequence[str]], remark: str = "") -> Sheet:
    return of_lines(
        facts.header, [column.header for column in facts.columns], [(row.header, texts(row)) for row in facts.rows],
        label=f"{facts.name}-{kind}", title=facts.title, source=source, remarks=[remark],
    )  # fmt: skip
