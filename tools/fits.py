"""``python -m tools.fits`` prints the tables of docs/fits.md; ``--write`` puts them there and into
``zobench/report/fits.csv``, which the report draws."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from zobench.cost import hardware
from zobench.cost.choices import TargetMachine, choices
from zobench.report.fits import DATA, GPUS, HOSTS, MODELS, Fit, cautions, heading

PAGE = Path(__file__).parents[1] / "docs" / "fits.md"
BEGIN = "<!-- fits: begin -->\n"


def fit(model: str, gpu: str, host: int) -> Fit:
    """Predicted by the formulas as they are."""
    best = choices({"model": model, "dtype": "fp16"}, TargetMachine(gpu=hardware.load(gpu), host=host * 1e9))[0]
    prediction = best.prediction
    rate = None if best.lacks else round(prediction.tokens_per_second)
    return Fit(model, gpu, host, rate, prediction.share, rate is not None and bool(prediction.host_bytes))


def table(host: int, fits: Sequence[Fit]) -> str:
    """One table in Markdown, with its notes."""
    texts = {(fit.model, fit.gpu): fit.text for fit in fits if fit.host == host}
    lines = [
        f"### {host} GB of host memory",
        "",
        f"| | {' | '.join(map(heading, GPUS))} |",
        "|---|" + "---|" * len(GPUS),
    ]
    lines += [f"| {model} | {' | '.join(texts[model, gpu] for gpu in GPUS)} |" for model in MODELS]
    return "\n".join(lines) + "\n"


def page(fits: Sequence[Fit]) -> str:
    """The tables, and what the marks at GPUs mean."""
    return "\n".join([*(table(host, fits) for host in HOSTS), *(f"{line}\n" for line in cautions())])


def main() -> None:
    """Prints the tables, or with ``--write`` writes them into the page and the file."""
    fits = [fit(model, gpu, host) for host, model, gpu in itertools.product(HOSTS, MODELS, GPUS)]
    if sys.argv[1:] != ["--write"]:
        print(page(fits))
        return
    before = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(f"{before}{BEGIN}{page(fits)}", encoding="utf-8")
    with DATA.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(Fit))
        writer.writerows(dataclasses.astuple(row_fit) for row_fit in fits)


if __name__ == "__main__":
    main()
