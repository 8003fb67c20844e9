"""What fits where: ``python -m zobench.predict.fits`` prints the tables of docs/fits.md, ``--write`` puts them there.

Each cell is the best that ``zobench plan`` finds for a model on a GPU with a given host: tokens per second, predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from zobench.predict import hardware
from zobench.predict.choices import Place, choices

PAGE = Path(__file__).parents[2] / "docs" / "fits.md"
BEGIN = "<!-- fits: begin -->\n"
MODELS = ("OPT-1.3B", "OPT-6.7B", "LLaMA2-7B", "Qwen3-8B", "OPT-13B", "OPT-30B", "Qwen3-32B", "OPT-66B", "OPT-175B")
GPUS = ("t4", "rtx-3090", "rtx-4090", "rtx-5090", "v100", "l40s", "a100-80gb-sxm", "h100-sxm", "h200", "b200", "mi300x")
HOSTS = (64, 512)
"""Gigabytes of host memory."""
STREAMED = "*"
"""Marks a model of which blocks are streamed, because it does not fit whole."""


def cell(model: str, gpu: str, host: int) -> str:
    """``~847*``: predicted tokens per second in fp16, or ``·`` where no setting fits."""
    best = choices({"model": model, "dtype": "fp16"}, Place(gpu=hardware.load(gpu), host=host * 1e9))[0]
    if best.lacks:
        return "·"
    rate = best.prediction.tokens_per_second
    return f"~{rate:.0f}{STREAMED if best.prediction.host_bytes else ''}"


def table(host: int, models: Sequence[str] = MODELS, gpus: Sequence[str] = GPUS) -> str:
    """One table in Markdown."""
    lines = [f"### {host} GB of host memory", "", f"| | {' | '.join(gpus)} |", "|---|" + "---|" * len(gpus)]
    lines += [f"| {model} | {' | '.join(cell(model, gpu, host) for gpu in gpus)} |" for model in models]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the tables, or with ``--write`` writes them into the page."""
    text = "\n".join(map(table, HOSTS))
    if sys.argv[1:] == ["--write"]:
        before = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
        PAGE.write_text(f"{before}{BEGIN}{text}", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
