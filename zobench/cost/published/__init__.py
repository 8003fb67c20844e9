"""The papers' programs, MeZO and ZO2 as published, on a virtual clock: for the papers' own columns, and to hold the
predictor against what they report. zobench's engine is another program (:mod:`zobench.cost.gpu`). No torch.

Here: a cell of the papers' tables as numbers, which program ran, on which model, with which settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zobench import models
from zobench.cost.gpu import bounds
from zobench.cost.hardware import Gpu
from zobench.models import Model
from zobench.runspec.kinds import WIDTHS

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperProgram:
    """The differences between the published programs.

    ``fused_attention``: no matrices of tokens x tokens. ``keeps_keys``: MeZO's forward fills a cache of keys and values
    that nobody reads. ``float32_loss``: logits are cast to float32. ``live_blocks``: on the device at once while one
    computes. ``pinned_limit``: bytes of host memory beyond which ZO2's copies behave as pageable ones.
    ``driver_bytes``: what NVML shows beyond torch's segments.
    """

    fused_attention: bool = False
    keeps_keys: bool = True
    float32_loss: bool = False
    live_blocks: int = 2
    pinned_limit: float = 256e9
    driver_bytes: int = 1310 * MIB


GROUP_BYTES = 1817 * MIB
"""The bytes that a rank's GPU holds for each group of ranks it exchanges with (PertP's pair, DDP's): fitted on one
value, OPT-13B with PertP in DistZO2's table 1. As large for OPT-1.3B as for OPT-30B, so it is neither weights nor
activations."""

_OLD = PaperProgram(live_blocks=4, driver_bytes=500 * MIB)
_ZO2 = PaperProgram()
_QWEN3 = PaperProgram(fused_attention=True, keeps_keys=False, float32_loss=True)
_DISTZO2 = PaperProgram(fused_attention=True, keeps_keys=False, pinned_limit=float("inf"), driver_bytes=100 * MIB)
PROGRAMS: Mapping[tuple[str, str], PaperProgram] = {
    ("zo-offloading-neurips24", "opt"): _OLD,
    ("zo-offloading-iclr25", "opt"): _OLD,
    ("zo2", "opt"): _ZO2,
    ("zo2", "qwen3"): _QWEN3,
    ("distzo2", "opt"): _DISTZO2,
    ("distzo2", "qwen3"): replace(_DISTZO2, float32_loss=True),
}
"""The papers' programs, by paper and model type. Structure is read from ZO2's public program; ``driver_bytes`` from the
tables' memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperCell:
    """``offloaded``: ZO2, else MeZO. ``wire``: of the link, "" as ``dtype``. ``shards``: among how many of the ``gpus``
    the batch is divided; ``forwards``: of a rank in a step, 1 where two ranks share the signs of the perturbation;
    ``groups``: of ranks that it exchanges with, one for the signs, one for the batch."""

    program: PaperProgram
    model: Model
    offloaded: bool
    dtype: str = "fp32"
    autocast: str = ""
    wire: str = ""
    overlap: bool = True
    reusable_memory: bool = True
    fused_update: bool = True
    batch: int = 1
    seq: int = 2048
    gpus: int = 1
    shards: float = 1
    forwards: int = 2
    groups: int = 0

    @property
    def precision(self) -> str:
        """The type in which products are computed."""
        return self.autocast or self.dtype

    @property
    def width(self) -> int:
        """Bytes of a weight on the device."""
        return WIDTHS[self.dtype]

    @property
    def wire_width(self) -> int:
        """Bytes of a weight on the link."""
        return WIDTHS[self.wire or self.dtype]

    @property
    def rows(self) -> float:
        """Sequences that a rank computes."""
        return self.batch / self.shards

    @property
    def outside(self) -> tuple[int, ...]:
        """Elements of the tensors outside the blocks as ZO2's tests build the models: the head is not tied, and no
        projection stands between OPT-350M's embedding and its blocks."""
        hidden, table = self.model.hidden, self.model.vocab * self.model.hidden
        positions = ((self.seq + 2) * hidden, hidden) if self.model.learned_positions else ()
        return (table, table, *positions, hidden)


def program_of(row: Mapping[str, str]) -> PaperProgram | None:
    """The program of a row of results/paper/reference.csv; None where none has a model."""
    return PROGRAMS.get((row["paper"], models.get(row["model"]).model_type))


def cell_of(row: Mapping[str, str]) -> PaperCell:
    """The cell of a row of results/paper/reference.csv."""
    model, program = models.get(row["model"]), program_of(row)
    assert program is not None, f"no program of {row['paper']} runs {row['model']}"
    if row["autocast"]:  # table 5's copies fit no rule that would make them pageable
        program = replace(program, pinned_limit=float("inf"))
    shared, gpus = set(re.findall("pertp|ddp", row["setting"])), int(row["gpus"] or 1)
    signs = 2 if "pertp" in shared else 1
    return PaperCell(
        program=program, model=model, offloaded=row["method"] != "mezo", dtype=row["dtype"], autocast=row["autocast"],
        wire=row["wire_dtype"], overlap=row["switch"] not in ("no_overlap", "no_reusable_memory"),
        reusable_memory=row["switch"] != "no_reusable_memory", fused_update=row["switch"] != "no_fused_update",
        batch=int(row["batch_size"]), seq=int(row["seq_len"]), gpus=gpus, forwards=2 // signs,
        shards=gpus / signs if "ddp" in shared else 1, groups=len(shared),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A predicted ``value`` in the base unit, None for out of memory, on ``gpu``. ``share``: the error that nine of ten
    held-out values stay within. ``of_engine``: of zobench's engine, not of the paper's program. ``notes``: what a
    reader must know of it."""

    value: float | None
    share: float
    gpu: Gpu
    of_engine: bool
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the value in nine of ten cases; None for out of memory."""
        if self.value is None:
            return None
        return bounds(self.value, self.share)
