"""What fits where: ``python -m zobench.predict.fits`` prints the tables of docs/fits.md, ``--write`` puts them
there and into ``fits.csv``, which the report draws.

Each cell is the best that ``zobench plan`` finds for a model on a GPU with a given host: tokens per second, predicted.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zobench.predict import hardware
from zobench.predict.choices import Place, choices

PAGE = Path(__file__).parents[2] / "docs" / "fits.md"
DATA = Path(__file__).with_suffix(".csv")
BEGIN = "<!-- fits: begin -->\n"
MODELS = ("OPT-1.3B", "OPT-6.7B", "LLaMA2-7B", "Qwen3-8B", "OPT-13B", "OPT-30B", "Qwen3-32B", "OPT-66B", "OPT-175B")
GPUS = ("t4", "rtx-3090", "rtx-4090", "rtx-5090", "v100", "l40s", "a100-80gb-sxm", "h100-sxm", "h200", "b200", "mi300x")
HOSTS = (64, 512)
"""Gigabytes of host memory."""
STREAMED = "*"
"""Marks a model of which blocks are streamed, because it does not fit whole."""
CAUTIOUS = "†"
"""Marks a GPU on which zobench may not run."""
NONE = "·"
"""Where no setting fits."""


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
        return NONE if self.rate is None else f"~{self.rate:.0f}{STREAMED * self.streamed}"


def fit(model: str, gpu: str, host: int) -> Fit:
    """Predicted anew."""
    best = choices({"model": model, "dtype": "fp16"}, Place(gpu=hardware.load(gpu), host=host * 1e9))[0]
    known = best.prediction
    rate = None if best.lacks else round(known.tokens_per_second)
    return Fit(model, gpu, host, rate, known.share, rate is not None and bool(known.host_bytes))


def stored() -> list[Fit]:
    """Those of the committed file."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Fit(row["model"], row["gpu"], int(row["host"]), float(row["rate"]) if row["rate"] else None,
                float(row["share"]), row["streamed"] == "True")
            for row in csv.DictReader(file)
        ]  # fmt: skip


def heading(gpu: str) -> str:
    """The GPU's name, marked if its file has a caution."""
    return gpu + CAUTIOUS * bool(hardware.load(gpu).caution)


def cautions(gpus: Sequence[str] = GPUS) -> list[str]:
    """A line for each GPU that is marked."""
    return [f"{CAUTIOUS} {gpu}: {told}." for gpu in gpus if (told := hardware.load(gpu).caution)]


def table(host: int, fits: Sequence[Fit]) -> str:
    """One table in Markdown, with its notes."""
    texts = {(one.model, one.gpu): one.text for one in fits if one.host == host}
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
        writer.writerows(dataclasses.astuple(one) for one in fits)


if __name__ == "__main__":
    main()
