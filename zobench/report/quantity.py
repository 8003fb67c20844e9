"""The quantities that a table can show: where each comes from, its base unit, and the unit that the papers print."""

from __future__ import annotations

from dataclasses import dataclass

from zobench.result import Result
from zobench.store import metrics


@dataclass(frozen=True, slots=True)
class Quantity:
    """``key`` of :func:`zobench.store.metrics`; one ``shown_unit`` is ``scale`` of ``base_unit``.

    A ``share`` is relative by itself: no ratios are shown, and no paper reports it. ``absent``: what stands where an
    ok result has none, and what that means.
    """

    key: str
    base_unit: str
    shown_unit: str
    scale: float
    about: str = ""
    share: bool = False
    absent: tuple[str, str] = ("n/a", "this machine cannot measure it")

    def of(self, result: Result) -> float | None:
        """The measured value in the base unit, or None if this result has none."""
        return metrics(result).get(self.key)


QUANTITIES = {
    "gpu_memory": Quantity(
        "device_peak_bytes",
        "bytes",
        "MB",
        2**20,
        "1 MB here is 1048576 bytes, as nvidia-smi counts and the papers print.",
    ),
    "throughput": Quantity("throughput", "tokens/s", "tokens/s", 1),
    "floor": Quantity(
        "floor_share",
        "1",
        "%",
        0.01,
        "Floor: the least time that this machine's measured rates allow for a step, over the time it took.",
        share=True,
        absent=("—", "the machine's rates were not stored with the result"),
    ),
    "update_survival": Quantity(
        "update_survival",
        "1",
        "%",
        0.01,
        "Update kept: how much of the intended updates is in the weights after rounding.",
        share=True,
        absent=("—", "it was not asked for (survival=true)"),
    ),
}
"""Named as in the ``metric`` column of the papers' values."""

LEAST_DIGITS = 3


def rounded(value: float, form: str) -> str:
    """``value`` in the format ``form``, with more digits where that leaves fewer than three: 1955, 3.42, 0.0731."""
    text = format(value, form)
    digits = sum(character.isdigit() for character in text.lstrip("-0."))
    if value == 0 or digits >= LEAST_DIGITS:
        return text
    return f"{value:#.{LEAST_DIGITS}g}".rstrip(".")
