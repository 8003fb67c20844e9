"""What fits where, from the file ``fits.csv`` that ``python -m tools.fits --write`` makes and the report draws.

Each row is the best that ``zobench plan`` finds for a model on a GPU with a given host: tokens per second, predicted.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zobench.cost import hardware

DATA = Path(__file__).with_suffix(".csv")
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
    return [f"{CAUTIOUS} {gpu}: {caution}." for gpu in gpus if (caution := hardware.load(gpu).caution)]
