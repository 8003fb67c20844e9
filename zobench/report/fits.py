"""The report's page of what fits where: models and GPUs as a heat map of predicted tokens per second, and as tables.

They are drawn from the file ``fits.csv`` that ``python -m tools.fits --write`` makes: each row is the best that
``zobench plan`` finds for a model on a GPU with a given host.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zobench.cost import hardware
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.contents import Artifact
from zobench.report.sheet import NO_VALUE, CellText, Sheet, of_lines

NAME, TITLE = "what_fits_where", "What fits where: models and GPUs that nobody ran here"
SOURCE = "predicted, not measured: fp16, one sequence of 2048 tokens, one GPU in a slot of its own PCIe generation"
UNFIT = "does not fit"
DATA = Path(__file__).with_suffix(".csv")
MODELS = ("OPT-1.3B", "OPT-6.7B", "LLaMA2-7B", "Qwen3-8B", "OPT-13B", "OPT-30B", "Qwen3-32B", "OPT-66B", "OPT-175B")
GPUS = ("t4", "rtx-3090", "rtx-4090", "rtx-5090", "v100", "l40s", "a100-80gb-sxm", "h100-sxm", "h200", "b200", "mi300x")
HOSTS = (64, 512)
"""Gigabytes of host memory."""
STREAMED = "*"
"""Marks a model of which blocks are streamed, because it does not fit whole."""
CAUTIOUS = "†"
"""Marks a GPU on which zobench may not run."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The best that was found for ``model`` on ``gpu`` with ``host`` gigabytes: tokens per second in fp16, one sequence
    of 2048 tokens, None where no setting fits; the error that nine of ten held-out values stay within, as a share;
    whether blocks are streamed."""

    model: str
    gpu: str
    host: int
    rate: float | None
    share: float
    streamed: bool

    @property
    def text(self) -> str:
        """``~847*``."""
        return NO_VALUE if self.rate is None else f"~{self.rate:.0f}{STREAMED * self.streamed}"


def stored() -> list[Fit]:
    """The fits in the committed file."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Fit(row["model"], row["gpu"], int(row["host"]), float(row["rate"]) if row["rate"] else None,
                float(row["share"]), row["streamed"] == "True")
            for row in csv.DictReader(file)
        ]  # fmt: skip


def heading(gpu: str) -> str:
    """The GPU's name, marked if its file has a caution."""
    return gpu + CAUTIOUS * bool(hardware.load(gpu).caution)


def cautions() -> list[str]:
    """A line for each GPU that is marked."""
    return [f"{CAUTIOUS} {gpu}: {caution}." for gpu in GPUS if (caution := hardware.load(gpu).caution)]


def artifact() -> Artifact:
    """From the file that docs/fits.md is written with."""
    import pandas as pd

    fits = stored()
    shares = sorted({fit.share for fit in fits})
    within = " to ".join(f"{100 * share:.1f} %" for share in (shares[0], shares[-1]))
    marks = f"{STREAMED}: blocks are streamed from host memory; {NO_VALUE}: no setting fits."
    remarks = (
        "Tokens per second of the best settings that `zobench plan` finds for each.",
        f"Nine of ten held-out values of the papers' programs are within {within} of such predictions; of these GPUs "
        "zobench's own engine has run on an H100 SXM alone (docs/predictions.md).",
        *cautions(),
    )
    return Artifact(
        name=NAME, kind="figure", title=TITLE, paper="", runner="",
        sheets=tuple(_sheet(host, fits, (marks, *remarks)) for host in HOSTS), frame=pd.read_csv(DATA),
        charts=tuple(_chart(host, fits, remarks) for host in HOSTS),
    )  # fmt: skip


def _chart(host: int, fits: Sequence[Fit], remarks: Sequence[str]) -> Chart:
    marks = {
        (fit.model, fit.gpu): Mark(value=fit.rate, failure=UNFIT if fit.rate is None else "", source="predicted")
        for fit in fits if fit.host == host
    }  # fmt: skip
    series = tuple(
        Series(label=model, marks=tuple(marks[model, gpu] for gpu in GPUS), paper=(None,) * len(GPUS))
        for model in MODELS
    )
    panel = Panel(y_label="tokens/s, predicted", positions=tuple(map(heading, GPUS)), series=series, log_y=True)
    return Chart(
        name=f"{NAME}-{host}gb", kind="heatmap", title=_title(host), source=SOURCE, panels=(panel,),
        remarks=tuple(remarks),
    )  # fmt: skip


def _sheet(host: int, fits: Sequence[Fit], remarks: Sequence[str]) -> Sheet:
    texts = {
        (fit.model, fit.gpu): CellText(text=fit.text, tone="blank" if fit.rate is None else "predicted")
        for fit in fits if fit.host == host
    }  # fmt: skip
    return of_lines(
        "Model", map(heading, GPUS), [(model, [texts[model, gpu] for gpu in GPUS]) for model in MODELS],
        label=f"{NAME}-{host}gb", title=_title(host), source=SOURCE, heading="tokens/s", remarks=remarks,
    )  # fmt: skip


def _title(host: int) -> str:
    return f"What fits where with {host} GB of host memory"
