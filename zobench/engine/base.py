"""The engine's vocabulary: a point to evaluate, a journal entry to replay, and the engine's configuration."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zobench.runspec import check_choice
from zobench.runspec.kinds import AUTOCASTS, ENGINES, GRANULARITIES, NOISES, TIERS, WIRES


@dataclass(frozen=True, slots=True)
class Point:
    """Weights ``W + scale * z(seed)``. ``Point(None, 0.0)`` is W itself, as evaluation needs it.

    ``part``: only this part of the model is moved (``Engine.parts`` says how many there are); None moves all of it.
    ``subspace``: of a direction of low rank, the seed of what it shares with others
    (:mod:`zobench.engine.directions.factors`); None: it shares nothing. Other directions have none.
    """

    seed: int | None = None
    scale: float = 0.0
    part: int | None = None
    subspace: int | None = None

    def __post_init__(self) -> None:
        if self.seed is None and self.scale != 0.0:
            raise ValueError(f"a point without a seed must have scale 0, but got scale={self.scale}; give it a seed")


def check_part(part: int | None, parts: int) -> None:
    """Raises ``ValueError`` unless ``part`` is None or one of the model's ``parts``."""
    if part is not None and not 0 <= part < parts:
        raise ValueError(
            f"`part` must be one of the engine's parts, 0 to {parts - 1}, but got {part}; None is the whole model"
            if parts else f"`part` must be None where an engine moves no part alone, but got {part}; build an Engine"
        )  # fmt: skip


TILE_BYTES = 64 << 20
"""Bytes of a row tile of a linear layer (granularity=tile)."""
HEAD_BYTES = 16 << 20
"""Bytes of the vocabulary rows of the head that are perturbed at once (counter noise)."""
BASE = Point()
"""The unperturbed weights."""


NO_STATE_YET, KEEPS_VECTOR_STATE = -1.0, -2.0
"""An :class:`Entry`'s ``extra`` where a rule in factors keeps state (:mod:`zobench.engine.directions.factor_rules`):
the state is that of no step yet; the state of vectors goes on, and that of matrices begins again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One update, ``W -= lr * (g * z(seed) + weight_decay * W)``: all that is ever stored of it (MeZO, algorithm 1).

    ``part``: the only part of the model that it moves; None moves all of it. ``subspace``: as a point's. With a rule
    other than SGD's, all entries of one step are one update: the rule takes the sum of their g * z
    (:mod:`zobench.engine.updates.rules`). ``extra``: a second number that a rule which shapes directions needs of the
    step (:mod:`zobench.engine.directions.shapes`), or one in factors (:mod:`zobench.engine.directions.factor_rules`).
    """

    step: int
    seed: int
    g: float
    lr: float
    weight_decay: float = 0.0
    part: int | None = None
    subspace: int | None = None
    extra: float = 0.0

    def check(self, parts: int) -> None:
        """Raises ``ValueError`` if a factor is not finite, or if ``part`` is none of the model's ``parts``."""
        for name in ("g", "lr", "weight_decay", "extra"):
            if not math.isfinite(value := getattr(self, name)):
                raise ValueError(f"`{name}` of an entry must be finite, but got {value}; skip this step's update")
        check_part(self.part, parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRecord:
    """One pass over the model that moved its weights through ``points`` and back, or an evaluation, which has none;
    and the ``entries`` that were committed after it. Those of a run, in order, are all that happened to its weights.
    """

    points: tuple[Point, ...] = ()
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a unit's weights at rest have come: ``passes`` of the run it went through, with the first
    ``applied`` entries of the journal in them. ``part``: see :class:`~zobench.engine.weights.blocks.Unit`."""

    passes: int = 0
    applied: int = 0
    part: int = -1


def transitions(start: Point, end: Point) -> list[tuple[int, float]]:
    """The moves ``W += delta * z(seed)`` that lead from one point to another, as (seed, delta).

    For MeZO's pair (s, +eps), (s, -eps) and back to W this yields +eps, -2 eps, +eps, the published sequence.
    """
    if start.seed == end.seed and start.seed is not None:
        moves = [(start.seed, end.scale - start.scale)]
    else:
        moves = [(p.seed, c) for p, c in ((start, -start.scale), (end, end.scale)) if p.seed is not None]
    return [(seed, delta) for seed, delta in moves if delta != 0.0]


_CHOICES: Mapping[str, Collection[str]] = {
    "placement": ENGINES,
    "tier": [name for name, tier in TIERS.items() if tier.is_streamed],
    "noise": NOISES,
    "granularity": GRANULARITIES,
    "wire": WIRES,
    "autocast": AUTOCASTS,
}
"""A spec's words, without those that are gone when it is resolved."""


CONSOLIDATE_AFTER = 256
"""Steps whose updates a journal holds with writeback_every=inf; a checkpoint's blocks then get a copy on the disk."""
CUDA_CONSOLIDATE_AFTER = 16
"""The steps on a CUDA device with a tier of its own: a draw costs more there than what crosses the link in its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Where the weights live, and which mechanisms are on. The defaults are ZO2 as published (ZO2 5.2, D.2, D.3).

    ``placement``: "resident" keeps all blocks on the device (MeZO); "offload" streams them through ``slots``.
    ``tier``: where offloaded blocks rest: "pinned" or "pageable" host memory, "disk" (direct I/O in ``disk_dir``), or
    "checkpoint" (the safetensors files that the weights come from, which are never written).
    ``noise``: "torch" with MeZO's in-place arithmetic, "stored" with the same z in memory, or "counter", which makes
    W + c z fresh from an untouched W.
    ``granularity``: what a slot holds: a block, a linear layer, or a tile of its rows. ``writeback_every``: steps
    between two write-backs of a unit, or "inf": only after ``consolidate_after`` steps. ``wire``: format at rest and on
    the link. ``autocast``: precision of the products. ``resident_blocks`` of the blocks stay on the device.
    ``compile``: torch.compile of the blocks' forward, once for all of them. ``packed``: the rows of a batch with
    choices are computed as one, without padding (:mod:`zobench.engine.passes.packing`). ``accumulate``: micro-batches
    that a batch is cut into, one pass over the model for each. ``attention``: (longest row, kernel) in rising order,
    the kernels of :mod:`zobench.engine.passes.attention`; empty: the model's own attention.
    ``out_of_place``: with torch noise too W + c z is written into memory of its own, one draw of z for each point, and
    W moves by updates alone: what a rank with one sign of the perturbation needs (DistZO2, section 4.2).
    ``shared_blocks``: this many host blocks serve all layers in turn, so that time and device memory of a model larger
    than the host can be measured; its losses mean nothing. ``logits_bytes`` bounds the float32 logits held at once.
    """

    placement: str = "offload"
    tier: str = "pageable"
    device: str = "cpu"
    noise: str = "torch"
    granularity: str = "block"
    slots: int = 3
    resident_blocks: int = 0
    writeback_every: int | str = 1
    consolidate_after: int | None = None
    wire: str = "none"
    autocast: str = "none"
    overlap: bool = True
    reusable_memory: bool = True
    fused_update: bool = True
    compile: bool = False
    packed: bool = False
    accumulate: int = 1
    attention: tuple[tuple[int, str], ...] = ()
    out_of_place: bool = False
    shared_blocks: int | None = None
    disk_dir: Path | None = None
    logits_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        for is_broken, text in _rules(self):
            if is_broken:
                raise ValueError(text)

    @property
    def streams(self) -> bool:
        """Whether blocks rest in a tier; else all of them stay on the device."""
        return ENGINES[self.placement].is_streamed

    @property
    def keep_steps(self) -> float:
        """After how many steps pending entries are written into the weights at rest."""
        if not isinstance(self.writeback_every, str):
            return self.writeback_every
        if self.consolidate_after is not None:
            return self.consolidate_after
        written = self.device.startswith("cuda") and TIERS[self.tier].is_filled
        return CUDA_CONSOLIDATE_AFTER if written else CONSOLIDATE_AFTER


def _rules(config: EngineConfig) -> Iterator[tuple[bool, str]]:
    """Yields the rules that fields obey alone and together: (whether the rule is broken, the error's text)."""
    every, wire, tier = config.writeback_every, WIRES[config.wire], TIERS[config.tier]
    yield config.slots < 1, f"`slots >= 1` must hold, but got slots={config.slots}; use slots=3"
    yield (
        every != "inf" and not (isinstance(every, int) and every >= 1),
        f'`writeback_every` must be at least 1 or "inf", but got {every!r}; use writeback_every=1, as published',
    )
    for name, least in (("resident_blocks", 0), ("accumulate", 1), ("consolidate_after", 1), ("logits_bytes", 1)):
        value = getattr(config, name)
        broken = value is not None and value < least
        yield broken, f"`{name} >= {least}` must hold, but got {value}; use its default"
    yield (
        AUTOCASTS[config.autocast].is_tf32 and config.device == "cpu",
        "`autocast=tf32` needs a CUDA device, but got device=cpu; use autocast=bf16",
    )
    yield (
        config.compile and not GRANULARITIES[config.granularity].is_block,
        f"`compile` needs granularity=block, but got granularity={config.granularity}: what is compiled is a block's "
        "forward; use compile=false",
    )
    yield (
        tier.is_pinned and config.streams and not config.device.startswith("cuda"),
        f"`tier=pinned` needs a CUDA device, but got device={config.device}; use tier=pageable",
    )
    yield (
        config.shared_blocks is not None and config.shared_blocks < config.slots,
        f"`shared_blocks >= slots` must hold, but got shared_blocks={config.shared_blocks}, slots={config.slots}; "
        "share at least as many blocks as there are slots",
    )
    yield (
        not config.streams and bool(wire.is_packed or config.resident_blocks or config.shared_blocks),
        "`wire`, `resident_blocks` and `shared_blocks` need placement=offload, but got placement=resident; a resident "
        "model has nothing in a tier",
    )
    yield (
        config.consolidate_after is not None and every != "inf",
        f"`consolidate_after` needs writeback_every=inf, but got writeback_every={every}; leave one of them out",
    )
    yield (
        not tier.is_filled and (every != "inf" or wire.is_packed),
        "`tier=checkpoint` needs writeback_every=inf and wire=none, because it is read as it lies, but got "
        f"writeback_every={every}, wire={config.wire}; use tier=disk",
    )
    yield (
        not config.fused_update and every != 1,
        f"`fused_update=False` needs writeback_every=1, but got {every}: its second round of transfers writes every "
        "step; use fused_update=True",
    )
    yield (
        wire.is_read_only and every != "inf",
        f"`wire={config.wire}` needs writeback_every=inf, because an update is far below a step of its grid, but got "
        f"writeback_every={every}; use writeback_every=inf",
    )
    yield (
        NOISES[config.noise].in_place and not (GRANULARITIES[config.granularity].is_block and every == 1),
        "`granularity` and `writeback_every` other than block and 1 need noise=counter, but got noise=torch, "
        f"granularity={config.granularity}, writeback_every={every}; torch noise moves the weights themselves, block "
        "by block: use noise=counter",
    )


def rows_per_chunk(vocabulary: int, logits_bytes: int) -> int:
    """Tokens whose float32 logits fit ``logits_bytes``: a multiple of 64 where that is possible, at least 1."""
    rows = logits_bytes // (4 * vocabulary)
    return max(rows // 64 * 64, min(rows, 64), 1)
