"""The report's page of what fits where: models and GPUs as a heat map of predicted tokens per second, and as tables."""

from __future__ import annotations

from collections.abc import Sequence

from zobench.cost import fits
from zobench.cost.fits import Fit
from zobench.report.book import Artifact
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.sheet import CellText, Sheet, of_frame

NAME, TITLE = "what_fits_where", "What fits where: models and GPUs that nobody ran here"
SOURCE = "predicted, not measured: fp16, one sequence of 2048 tokens, one GPU in a slot of its own PCIe generation"
UNFIT = "does not fit"


def artifact() -> Artifact:
    """From the file that docs/fits.md is written with."""
    import pandas as pd

    stored = fits.stored()
    shares = sorted({fit.share for fit in stored})
    within = " to ".join(f"{100 * share:.1f} %" for share in (shares[0], shares[-1]))
    marks = f"{fits.STREAMED}: blocks are streamed from host memory; {fits.NONE}: no setting fits."
    remarks = (
        "Tokens per second of the best settings that `zobench plan` finds for each.",
        f"Nine of ten held-out values of the papers' programs are within {within} of such predictions; zobench's own "
        "engine has never run on one of these GPUs (docs/predictions.md).",
        *fits.cautions(),
    )
    return Artifact(
        name=NAME, kind="figure", title=TITLE, paper="", runner="",
        sheets=tuple(_sheet(host, stored, (marks, *remarks)) for host in fits.HOSTS), frame=pd.read_csv(fits.DATA),
        charts=tuple(_chart(host, stored, remarks) for host in fits.HOSTS),
    )  # fmt: skip


def _chart(host: int, stored: Sequence[Fit], remarks: Sequence[str]) -> Chart:
    rates = {(fit.model, fit.gpu): fit.rate for fit in stored if fit.host == host}
    series = tuple(
        Series(label=model, marks=tuple(_mark(rates[model, gpu]) for gpu in fits.GPUS), paper=(None,) * len(fits.GPUS))
        for model in fits.MODELS
    )
    panel = Panel(
        y_label="tokens/s, predicted", positions=tuple(map(fits.heading, fits.GPUS)), series=series, log_y=True,
    )  # fmt: skip
    return Chart(
        name=f"{NAME}-{host}gb", kind="heatmap", title=f"What fits where with {host} GB of host memory", source=SOURCE,
        panels=(panel,), remarks=tuple(remarks),
    )  # fmt: skip


def _mark(rate: float | None) -> Mark:
    return Mark(failure=UNFIT, source="predicted") if rate is None else Mark(value=rate, source="predicted")


def _sheet(host: int, stored: Sequence[Fit], remarks: Sequence[str]) -> Sheet:
    import pandas as pd

    texts = pd.Series({(fit.model, fit.gpu): _text(fit.text) for fit in stored if fit.host == host})
    frame = texts.unstack().loc[list(fits.MODELS), list(fits.GPUS)].rename(columns=fits.heading).rename_axis("Model")
    title = f"What fits where with {host} GB of host memory"
    return of_frame(frame, label=f"{NAME}-{host}gb", title=title, source=SOURCE, heading="tokens/s", remarks=remarks)


def _text(text: str) -> CellText:
    return CellText(text=text, tone="blank" if text == fits.NONE else "predicted")
