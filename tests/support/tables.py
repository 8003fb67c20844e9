"""Recipes of small tables and figures, results to fill and draw them with, and those that are published."""

import csv
import dataclasses
import functools
import io
from pathlib import Path
from typing import Any

from zobench import recipes
from zobench.recipes.reference import COLUMNS, Reference
from zobench.report import load_table, publish
from zobench.report.table import Table
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store

TINY = """
title = "Tiny"
paper = "p"
artifact = "t1"
caption = "Own engines."
baseline = "A"
[where]
seq_len = 100
[rows.product]
model = ["M1", "M2"]
[[rows.variants]]
header = "M0"
extra = true
where = { model = "M0" }
reference = { paper = "old", model = "M0" }
[[columns]]
header = "A"
where = { engine = "resident" }
reference = { method = "mezo", dtype = "fp32" }
[[columns]]
header = "B"
where = { engine = "offload", dtype = ["fp16", "bf16"] }
reference = { method = "zo2", dtype = "fp16" }
[[metrics]]
name = "gpu_memory"
header = "GPU Memory (MB)"
format = ".0f"
better = "lower"
[[metrics]]
name = "throughput"
header = "Throughput (tokens/s)"
format = ".0f"
better = "higher"
"""
CLAIMS = """
[[claims]]
text = "B needs at most half"
metric = "gpu_memory"
ratio = ["B", "A"]
at_most = 0.5
[[claims]]
text = "B is as fast in M1"
metric = "throughput"
ratio = ["B", "A"]
at_least = 0.9
rows = ["M1"]
[[claims]]
text = "M2 needs more than M1"
metric = "gpu_memory"
ratio = ["M2", "M1"]
at_least = 1.0
columns = ["B"]
"""
MIB = 2**20


def table_from(tmp_path: Path, text: str = TINY) -> Table:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return load_table(path)


def paper_row(**values: str) -> dict[str, str]:
    row = {"paper": "p", "artifact": "t1", "status": "ok", "gpus": "1", "gpu": "G-1"}
    return {**dict.fromkeys(COLUMNS, ""), **row, **values}


PAPER = Reference(
    tuple(
        paper_row(model=model, method=method, dtype=dtype, metric=metric, unit=unit, value=value, status=status)
        for model, method, dtype, metric, unit, value, status in [
            ("M1", "mezo", "fp32", "gpu_memory", "MB", "400", "ok"),
            ("M1", "zo2", "fp16", "gpu_memory", "MB", "100", "ok"),
            ("M1", "mezo", "fp32", "throughput", "tokens/s", "50", "ok"),
            ("M1", "zo2", "fp16", "throughput", "tokens/s", "80.5", "ok"),
            ("M2", "mezo", "fp32", "gpu_memory", "MB", "", "oom"),
            ("M2", "zo2", "fp16", "gpu_memory", "MB", "300", "ok"),
        ]
    )
)


def result(
    model: str,
    engine: str = "resident",
    dtype: str = "fp32",
    *,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
    memory: float | None = 200 * MIB,
    seconds: float = 1.0,
    machine: str = "box",
    device: str = "cuda",
    warnings: tuple[str, ...] = (),
    calibration: dict[str, Any] | None = None,
    survival: float | None = None,
    **spec: Any,
) -> Result:
    return Result(
        spec=RunSpec(**{"model": model, "engine": engine, "dtype": dtype, "seq_len": 100, **spec}).resolve(device),
        outcome=outcome,
        reason=reason,
        environment=Facts(machine=machine, description=f"1x {machine.upper()}", calibration=calibration),
        parts={} if survival is None else {"update_survival": [survival]},
        samples={"step_seconds": [seconds] * 3},
        memory={"device_peak_bytes": memory},  # type: ignore[dict-item]
        warnings=list(warnings),
    )


EVIL = "[red]x[/red] | a & b_c \\\\ $d$ {e} %f #g ~h ^i <j>\n\x1b[31mk :smile: *l* `m`"


def tuned(accuracy: float, *, dev_loss: float = 0.5, **changes: Any) -> Result:
    """A fine-tuning run as a sweep of the accuracy runner stores it."""
    values = {"model": "OPT-1.3B", "weights": "pretrained", "task": "sst2", "dtype": "fp16", "batch_size": 16}
    spec = RunSpec(**{**values, "steps": 20_000, "lr": 1e-6, **changes}).resolve("cuda")
    return Result(
        spec=spec,
        outcome=Outcome.OK,
        environment=Facts(machine="box", description="1x BOX"),
        evaluation={
            "start": {"step": 0, "loss": 0.7, "accuracy": 0.5, "count": 500},
            "best": {"step": 100, "loss": dev_loss, "accuracy": 0.9, "count": 500},
            "curve": [[0, 0.7, 0.5], [100, dev_loss, 0.9]],
            "test": {"step": 100, "loss": 0.4, "accuracy": accuracy, "count": 872},
            "majority": {"dev": 0.5, "test": 0.509},
            "definition": "the formula",
        },
    )


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


BARS = 'kind = "bars"\n' + TINY + "[axes]\nx = 'Model'\nlog_y = true\nlimit = { value = 1e9, label = '1 GB' }\n"
LINES = """
kind = "lines"
title = "By batch"
runner = "batch_size"
columns = [{ header = "MeZO", where = { engine = "resident" } }]
metrics = [{ name = "throughput", header = "Throughput (tokens/s)", format = ".0f", better = "higher" }]
[where]
seq_len = 100
[rows.product]
batch_size = [1, 4]
"""
TIMELINE = """
kind = "timeline"
title = "Steps"
paper = "p"
artifact = "f5"
runner = "ablation"
[where]
engine = "offload"
seq_len = 100
batch_size = [1, 2]
[[panels]]
title = "a. naive"
where = { overlap = false }
[[panels]]
title = "b. overlapped"
where = { overlap = true }
"""


def recorded(model: str, overlap: bool, shift: float = 5.0, **spec: Any) -> Result:
    rows = [["upload", "upload", 0, shift, shift + 1.0], ["compute", "compute", 0, shift + 1.0, shift + 3.0]]
    return dataclasses.replace(result(model, "offload", overlap=overlap, **spec), timeline=rows)


RESULTS = [
    result("M1", memory=200 * MIB),
    result("M2", batch_size=4),
    recorded("M1", False),
    recorded("M1", True, seconds=0.5),
]


@functools.cache
def published() -> tuple[Result, ...]:
    """The runs in results/published, which are read once in a process: all of them take a second."""
    return tuple(Store(recipes.folder("published")).load())


def written(results: list[Result], out: Path, problems: tuple[str, ...] = ()) -> dict[str, bytes]:
    publish.publish(results, problems, out, lambda *_: None)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
