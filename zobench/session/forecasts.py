"""The target of a prediction, as a command is given it: a GPU that need not be in this machine, its slot, runs on it,
its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zobench.cost import hardware
from zobench.cost.gpu import Costs, Prediction
from zobench.cost.hardware import Gpu
from zobench.cost.hardware.measured import anchor
from zobench.result import Result
from zobench.store.reading import read
from zobench.store.trace import events


def gpus(name: str, link: str | None, anchors: Sequence[Path], say: Callable[[str], None]) -> list[Gpu]:
    """All GPUs, or the one called ``name``, in a slot ``link``, fitted to the runs in the files ``anchors``, of which
    ``say`` is told what that came to. Raises ``ValueError`` for what none of them can be."""
    if anchors and name == "all":
        raise ValueError("`--anchor` must be of one GPU, but got --gpu all; name the one that it ran on")
    cards = [hardware.load(card) for card in (hardware.names() if name == "all" else [name])]
    if link is not None:
        generation, _, lanes = link.partition("x")
        if generation not in map(str, hardware.LANE_BYTES) or lanes not in ("1", "2", "4", "8", "16"):
            raise ValueError(f"`--link` must be a generation and a number of lanes, but got {link!r}; write 4x16")
        cards = [card.behind(int(generation), int(lanes)) for card in cards]
    return [_fitted(card, anchors, say) for card in cards] if anchors else cards


def _fitted(gpu: Gpu, anchors: Sequence[Path], say: Callable[[str], None]) -> Gpu:
    results = [_result(path) for path in anchors]
    anchored = anchor(gpu, results)
    pairs = zip(results, anchored.errors, strict=True)
    missed = ", ".join(f"{run.spec.label} {100 * error:+.1f} %" for run, error in pairs)
    wide = "" if anchored.gpu.errors == "anchored" else "; not met well enough for a narrower range"
    say(f"{gpu.name} fitted to {missed} (predicted against measured){wide}")
    return anchored.gpu


def _result(path: Path) -> Result:
    try:
        return read(path)
    except ValueError as error:
        raise ValueError(f"`--anchor` must be a stored result, but {path} is none: {error}") from error


def timeline(prediction: Prediction, disk: float) -> dict[str, Any]:
    """A step of what is predicted with a disk of ``disk`` bytes a second, for ui.perfetto.dev. Raises ``ValueError``
    where nothing is streamed: a timeline is of transfers."""
    spec, card = prediction.spec, prediction.gpu
    operations = Costs(spec, card, disk).timeline()
    if not operations:
        raise ValueError(
            f"`--trace` needs streamed blocks, but the best is {spec.label}; add --set engine=offload "
            "--set resident_blocks=0"
        )
    about = {
        "source": "predicted", "gpu": card.name, "cell": spec.label, "spec": spec.to_dict(),
        "step_seconds": prediction.step_seconds, "stall_seconds": prediction.stall, "bound": prediction.bound,
    }  # fmt: skip
    return events(f"{spec.label} on {card.name}, predicted", operations, about)
