"""The engine's vocabulary: a point to evaluate, a journal entry to replay, and the engine's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zobench.spec import suggestion


@dataclass(frozen=True, slots=True)
class Point:
    """Weights ``W + scale * z(seed)``. ``Point(None, 0.0)`` is W itself, as evaluation needs it."""

    seed: int | None = None
    scale: float = 0.0

    def __post_init__(self) -> None:
        if self.seed is None and self.scale != 0.0:
            raise ValueError(f"a point without a seed must have scale 0, but got scale={self.scale}; give it a seed")


BASE = Point()
"""The unperturbed weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One update, ``W -= lr * (g * z(seed) + weight_decay * W)``: all that is ever stored of it (MeZO, algorithm 1)."""

    step: int
    seed: int
    g: float
    lr: float
    weight_decay: float = 0.0


def transitions(here: Point, there: Point) -> list[tuple[int, float]]:
    """The moves ``W += delta * z(seed)`` that lead from one point to another, as (seed, delta).

    For MeZO's pair (s, +eps), (s, -eps) and back to W this yields +eps, -2 eps, +eps, the published sequence.
    """
    if here.seed == there.seed and here.seed is not None:
        moves = [(here.seed, there.scale - here.scale)]
    else:
        moves = [(p.seed, c) for p, c in ((here, -here.scale), (there, there.scale)) if p.seed is not None]
    return [(seed, delta) for seed, delta in moves if delta != 0.0]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Where the weights live and which of ZO2's mechanisms are on (ZO2, sections 5.2, D.2, D.3).

    ``placement``: "resident" keeps all blocks on the device (MeZO); "offload" streams them through ``slots``.
    ``tier``: where offloaded blocks rest: "pinned" or "pageable" host memory, or "disk" (direct I/O in ``disk_dir``).
    ``shared_blocks``: this many host blocks serve all layers in turn, so that time and device memory of a model larger
    than the host can be measured; its losses mean nothing. ``logits_bytes`` bounds the float32 logits held at once.
    """

    placement: str = "offload"
    tier: str = "pageable"
    device: str = "cpu"
    slots: int = 3
    overlap: bool = True
    reusable_memory: bool = True
    fused_update: bool = True
    shared_blocks: int | None = None
    disk_dir: Path | None = None
    logits_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for name, allowed in (("placement", ("resident", "offload")), ("tier", ("pinned", "pageable", "disk"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(allowed)}, but got {value!r}; {suggestion(value, allowed)}"
                )
        if self.slots < 1:
            raise ValueError(f"`slots >= 1` must hold, but got slots={self.slots}; use slots=3")
        if self.tier == "pinned" and self.placement == "offload" and not self.device.startswith("cuda"):
            raise ValueError(f"`tier=pinned` needs a CUDA device, but got device={self.device}; use tier=pageable")
        if self.shared_blocks is not None and self.shared_blocks < self.slots:
            raise ValueError(
                f"`shared_blocks >= slots` must hold, but got shared_blocks={self.shared_blocks}, slots={self.slots}; "
                "share at least as many blocks as there are slots"
            )
