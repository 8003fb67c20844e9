"""Sets the predictor beside the papers' values that it was not fitted to: ``python -m tools.validation`` prints the
tables of docs/predictions.md; ``--write`` puts them there, and the errors that predictions give as their range into
``zobench/cost/errors.toml``."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zobench.cost.gpu import ERRORS
from zobench.cost.published import MIB, cell_of, evidence
from zobench.cost.published.evidence import Row, papers_gpus
from zobench.cost.published.memory import device_bytes
from zobench.cost.published.seconds import throughput
from zobench.recipes.reference import PAPERS

PAGE = Path(__file__).parents[1] / "docs" / "predictions.md"
BEGIN, END = "<!-- validation: begin -->\n", "<!-- validation: end -->\n"
HELD_OUT_MEMORY = ("table6", "table7", "table8")
"""Tables of ZO2 whose memory was not looked at for the driver's share."""


@dataclass(frozen=True, slots=True)
class Error:
    """Of one value: predicted / reported - 1."""

    row: Row
    share: float

    @property
    def table(self) -> tuple[str, str]:
        """(paper, artifact)."""
        return self.row["paper"], self.row["artifact"]

    @property
    def contradicted(self) -> str:
        """Why the reported value cannot be right, or ""."""
        return evidence.contradiction(self.row)


@dataclass(frozen=True, slots=True)
class Spread:
    """How large errors are, as shares: ``p90`` is exceeded by a tenth of them; ``bias`` is the median with its sign."""

    count: int
    median: float
    p90: float
    worst: float
    bias: float

    @classmethod
    def of(cls, errors: Iterable[Error]) -> Spread:
        """Of at least one error."""
        shares = [error.share for error in errors]
        sizes = sorted(map(abs, shares))
        p90 = evidence.quantile(sizes, 0.9)
        return cls(len(sizes), statistics.median(sizes), p90, sizes[-1], statistics.median(shares))


def throughput_errors(gpu: str, *, anchored: bool = False) -> list[Error]:
    """Of all values of throughput on the papers' ``gpu`` that no fitted or anchoring one repeats."""
    gpus = papers_gpus(anchored=anchored)
    return [
        Error(row, throughput(cell_of(row), gpus[gpu]) / float(row["value"]) - 1)
        for row in evidence.rows("throughput", "tokens/s")
        if row["gpu"] == gpu and not evidence.repeats(row) and not (anchored and evidence.is_anchor(row))
    ]


def memory_errors() -> list[Error]:
    """Of all values of device memory but copies."""
    return [
        Error(row, device_bytes(cell_of(row)) / MIB / float(row["value"]) - 1)
        for row in evidence.rows("gpu_memory", "MB")
        if row["paper"] != evidence.COPY and (row["artifact"] == "table1" or not evidence.repeats(row))
        if not evidence.gave_group(row)
    ]


def held_out(errors: Iterable[Error]) -> list[Error]:
    """Those of memory that nothing was chosen by: ZO2's tables 6, 7 and 8."""
    return [error for error in errors if error.table[0] == "zo2" and error.table[1] in HELD_OUT_MEMORY]


def consistent(errors: Iterable[Error]) -> list[Error]:
    """Those of values that nothing contradicts."""
    return [error for error in errors if not error.contradicted]


def out_of_memory() -> list[tuple[Row, bool]]:
    """Every cell with a value of device memory or a dash for it, and whether it is predicted to be out of memory.
    One paper's are another's word for word and count once."""
    gpus = papers_gpus(anchored=False)
    return [
        (row, device_bytes(cell_of(row)) > gpus[row["gpu"]].memory)
        for row in evidence.rows("gpu_memory", "MB", ("ok", "oom"))
        if row["paper"] != evidence.COPY
    ]


def ranges() -> str:
    """The file of errors that predictions give as their range."""
    memory = memory_errors()
    alone = [error for error in memory if error.table == ("distzo2", "table1") and error.row["gpus"] == "1"]
    groups = {
        "fitted": (throughput_errors("A100-80GB"), held_out(memory)),
        "anchored": (throughput_errors("H20-96GB", anchored=True), alone),
        "other": (throughput_errors("H20-96GB"), alone),
    }
    text = "# Nine of ten held-out values are within: python -m tools.validation --write\n"
    for name, (seconds, nbytes) in groups.items():
        text += f"\n[{name}]\nthroughput = {Spread.of(consistent(seconds)).p90:.3f}\n"
        text += f"memory = {Spread.of(nbytes).p90:.3f}\n"
    return text


def page() -> str:
    """The tables of docs/predictions.md."""
    a100, h20, anchored = (
        throughput_errors("A100-80GB"), throughput_errors("H20-96GB"), throughput_errors("H20-96GB", anchored=True)
    )  # fmt: skip
    parts = [
        _section("Throughput, A100, fitted on ZO2's table 1", a100),
        _section("Throughput, H20, from its data sheet", h20),
        _section("Throughput, H20, with two anchors", anchored),
        _section("Device memory", memory_errors(), of_memory=True),
        "\n".join(_dashes()) + "\n",
        "\n".join(_contradicted([*a100, *anchored])) + "\n",
    ]
    return "\n".join(parts)


def _section(title: str, errors: Sequence[Error], of_memory: bool = False) -> str:
    tables = list(dict.fromkeys(error.table for error in errors))
    lines = [f"### {title}", "", "| | n | median % | p90 % | worst % | bias % | consistent: n | median % | p90 % |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for paper, artifact in tables:
        errors_of_table = [error for error in errors if error.table == (paper, artifact)]
        lines.append(_line(f"{PAPERS[paper]}, {artifact.replace('table', 'table ')}", errors_of_table))
    if of_memory:
        lines.append(_line("**ZO2, held out: tables 6, 7, 8**", held_out(errors)))
    else:
        lines.append(_line("**all**", errors))
    return "\n".join(lines) + "\n"


def _line(name: str, errors: Sequence[Error]) -> str:
    every, rest = Spread.of(errors), consistent(errors)
    some = Spread.of(rest) if rest else None
    text = f"{some.count} | {_percent(some.median)} | {_percent(some.p90)}" if some else "0 | | "
    numbers = (every.median, every.p90, every.worst)
    return f"| {name} | {every.count} | {' | '.join(map(_percent, numbers))} | {100 * every.bias:+.1f} | {text} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _dashes() -> Iterator[str]:
    cells = out_of_memory()
    dashes = [(row, oom) for row, oom in cells if row["status"] == "oom"]
    false = sum(oom for row, oom in cells if row["status"] == "ok")
    yield "### Out of memory"
    yield ""
    yield (
        f"Of {len(dashes)} cells that the papers give as `-`, {sum(oom for _, oom in dashes)} are predicted out of "
        f"memory; of the {len(cells) - len(dashes)} that ran, {false}."
    )


def _contradicted(errors: Sequence[Error]) -> Iterator[str]:
    yield "### Values that physics or another value contradicts"
    yield ""
    yield "| table | values | reason | predicted / reported |"
    yield "|---|---|---|---|"
    for group in evidence.CONTRADICTIONS:
        held = [error for error in errors if group.holds(error.row)]
        where = ", ".join("/".join(values) for values in group.where.values())
        low, high = (edge(1 + error.share for error in held) for edge in (min, max))
        ratio = f"{low:.2f}" if len(held) == 1 else f"{low:.2f} to {high:.2f}"
        place = f"{PAPERS[group.paper]}, {group.artifact.replace('table', 'table ')}: {where}"
        yield f"| {place} | {len(held)} | {group.reason} | {ratio} |"


def main() -> None:
    """Prints the page's tables, or with ``--write`` writes them and the ranges."""
    if sys.argv[1:] == ["--write"]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{page()}{END}{rest.partition(END)[2]}", encoding="utf-8")
        ERRORS.write_text(ranges(), encoding="utf-8")
    else:
        print(page())


if __name__ == "__main__":
    main()
