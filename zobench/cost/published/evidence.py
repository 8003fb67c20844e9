"""The evidence in the papers' values: which repeat a fitted one, which physics or another value contradicts."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zobench.cost import hardware
from zobench.cost.hardware import Gpu
from zobench.recipes.reference import Reference

Row = Mapping[str, str]
FITTED = ("zo2", "table1")
"""(paper, artifact) whose throughput is fitted."""
ANCHORS = ("OPT-1.3B", "OPT-13B")
"""Models whose MeZO cells of DistZO2's table 1 give a second GPU its own two constants."""
COPY = "zo-offloading-iclr25"
"""The paper whose costs are another's word for word, or ZO2's table 5."""
OLD_PAPERS = ("zo-offloading-neurips24", COPY)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Rows of a table whose columns have one of the values of ``where``, and why their values cannot be right."""

    paper: str
    artifact: str
    where: Mapping[str, Collection[str]]
    reason: str

    def holds(self, row: Row) -> bool:
        """Whether ``row`` is one of them."""
        same = row["paper"] == self.paper and row["artifact"] == self.artifact
        return same and all(row[key] in values for key, values in self.where.items())


_LARGE = ("OPT-66B", "OPT-175B")
CONTRADICTIONS = (
    Contradiction(
        "zo2", "table3", {"switch": ("no_fused_update",), "model": _LARGE},
        "the second trip would take 46 and 62 GB/s each way on a link of 31.5",
    ),
    Contradiction(
        "zo2", "table3", {"switch": ("no_reusable_memory",), "model": _LARGE},
        "allocating a block would take 0.7 and 1.6 s, against 0.01 to 0.06 s up to OPT-13B",
    ),
    Contradiction(
        "zo2", "table3", {"switch": ("no_overlap",), "model": _LARGE},
        "serial copies at 12.5 and 12.7 GB/s, where OPT-13B and OPT-30B reach 8.7 and 5.7 in the same program",
    ),
    Contradiction(
        "zo2", "table3", {"switch": ("no_overlap",), "model": ("OPT-30B",)},
        "serial copies at 5.7 GB/s, half of what larger and smaller models reach; slower than without reusable memory",
    ),
    Contradiction(
        "zo2", "table5", {"autocast": ("fp16",), "wire_dtype": ("fp32",), "model": ("OPT-13B",)},
        "561 tokens/s, but 678 with bf16, which moves and computes as much; other wires are faster with fp16",
    ),
    Contradiction(
        "distzo2", "table4", {"setting": ("ddp",)},
        "three times slower than with the signs shared out, which takes the same products; table 3 has them alike",
    ),
    Contradiction(
        "distzo2", "table7", {"gpus": ("4",), "seq_len": ("1024", "4096", "8192")},
        "a step of 1024 tokens takes longer than one of 2048, and one of 4096 2.4 times as long",
    ),
    Contradiction(
        "distzo2", "table7", {"setting": ("pertp",), "seq_len": ("1024",), "model": ("OPT-13B",)},
        "half the tokens take 0.97 of the step of 2048",
    ),
)  # fmt: skip
"""Each chosen for a reason that needs no predictor, after the tables had been seen."""


def papers_gpus(*, anchored: bool) -> Mapping[str, Gpu]:
    """The papers' GPUs by their names, in the papers' hosts: the H20, a card of PCIe 5, was in one of PCIe 4."""
    a100, h20 = hardware.load("a100-80gb-sxm"), hardware.load("h20", anchored=anchored)
    return {"A100-80GB": a100, "H20-96GB": h20.behind(4, 16)}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that ``share`` of ``values`` lies, with linear interpolation, as NumPy has it, which takes
    long to import."""
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def contradiction(row: Row) -> str:
    """Why the value of ``row`` cannot be right, or "" if nothing is known against it."""
    return next((entry.reason for entry in CONTRADICTIONS if entry.holds(row)), "")


def rows(metric: str, unit: str, status: Collection[str] = ("ok",)) -> Iterator[Row]:
    """The papers' values of ``metric`` in ``unit``, in the order of the file."""
    for row in _reference():
        if (row["metric"], row["unit"]) == (metric, unit) and row["status"] in status:
            yield row


@functools.cache
def _reference() -> tuple[Row, ...]:
    return Reference.load().rows


@functools.cache
def allocations() -> tuple[tuple[Row, Row], ...]:
    """(a cell without reusable memory, that without overlap) of each model of ZO2's table 3, where nothing contradicts
    either of them: what the seconds of an allocation are fitted on."""
    table = [row for row in rows("throughput", "tokens/s") if (row["paper"], row["artifact"]) == ("zo2", "table3")]
    cells = {(row["model"], row["switch"]): row for row in table if not contradiction(row)}
    fresh = {model: row for (model, how), row in cells.items() if how == "no_reusable_memory"}
    return tuple((row, cells[model, "no_overlap"]) for model, row in fresh.items() if (model, "no_overlap") in cells)


def repeats(row: Row) -> bool:
    """Whether the value of ``row`` is, by the papers' own words or to the digit, a fitted one or another's copy."""
    paper, artifact = row["paper"], row["artifact"]
    usual = row["batch_size"] == "1" and row["seq_len"] == "2048"
    if paper in OLD_PAPERS:
        if paper == COPY or artifact == "table2":  # as in ZO2's table 3
            return True
        return row["value"] in _fitted_values().get((row["model"], row["method"], row["dtype"]), ())
    if paper == "zo2":
        fitted = not row["switch"] or any(row is fresh for fresh, _ in allocations())
        again = {"table1": True, "table3": fitted, "table6": usual, "table7": usual}
    else:
        in_table1 = row["method"] != "mezo" and row["setting"] != "ddp(inner)+pertp(outer)"
        again = {
            "table3": row["batch_size"] == "4" and in_table1, "table5": row["gpus"] == "2",
            "table7": row["seq_len"] == "2048",
        }  # fmt: skip
    return again.get(artifact, False)


def gave_group(row: Row) -> bool:
    """Whether the memory of ``row`` is what :data:`zobench.cost.published.GROUP_BYTES` is fitted on."""
    cell = row["paper"], row["artifact"], row["metric"], row["model"], row["setting"]
    return cell == ("distzo2", "table1", "gpu_memory", "OPT-13B", "pertp")


def is_anchor(row: Row) -> bool:
    """Whether ``row`` is one of the two cells that anchor a second GPU."""
    table = row["paper"] == "distzo2" and row["artifact"] == "table1" and row["method"] == "mezo"
    return table and row["model"] in ANCHORS and row["metric"] == "throughput"


@functools.cache
def _fitted_values() -> dict[tuple[str, str, str], set[str]]:
    values: dict[tuple[str, str, str], set[str]] = {}
    for row in rows("throughput", "tokens/s"):
        if (row["paper"], row["artifact"]) == FITTED:
            values.setdefault((row["model"], row["method"], row["dtype"]), set()).add(row["value"])
    return values
