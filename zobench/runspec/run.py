"""RunSpec: one cell of a matrix, frozen, validated, hashed from canonical JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zobench.runspec.constraints import check_constraints
from zobench.runspec.values import check_key, check_value, default, fields, told
from zobench.runspec.words import SEQ_LEN, SWITCHES


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """Everything that decides what one cell computes. Units: tokens, steps, bytes; lr and eps as in MeZO.

    The defaults are the papers' configuration: MeZO's in-place arithmetic on torch's noise, a block per transfer,
    written back after every step. ``device_memory`` lets the planner choose granularity, slots and resident blocks.

    ``method`` to ``foreach`` are ZO-Bench's methods and their constants, ``scheme`` what is tuned. With a ``task`` the
    run is a fine-tuning run: ``seq_len`` bounds an example's tokens, ``shots`` examples per class train it (0:
    ``train_size`` and ``dev_size`` in all), and it is evaluated every ``eval_every`` steps (0: only at its end).

    ``gpus`` devices (on a CPU processes) on ``nodes`` machines share a step as ``parallel`` says (DistZO2); a batch of
    ``batch_size`` rows is theirs together. ``transfers``: whether each uploads whole blocks or a slice. ``checkpoint``:
    how the weights are saved after every ``checkpoint_every`` steps. ``program``: what runs the cell.
    Raises ``ValueError`` with the constraint, the value and the remedy for any value that cannot run.
    """

    model: str
    weights: str = "random"
    weights_path: str = ""
    tie_embeddings: bool | None = None
    engine: str = "resident"
    tier: str = "auto"
    dtype: str = "fp32"
    batch_size: int = 1
    seq_len: int = SEQ_LEN
    steps: int = 5
    warmup: int = 1
    seed: int = 0
    lr: float = 1e-7
    eps: float = 1e-3
    weight_decay: float = 0.0
    queries: int = 1
    noise: str = "torch"
    granularity: str = "block"
    writeback_every: int | str = 1
    wire: str = "none"
    autocast: str = "none"
    resident_blocks: int = 0
    device_memory: int = 0
    compile: bool = False
    overlap: bool = True
    reusable_memory: bool = True
    fused_update: bool = True
    slots: int = 3
    device: str = "auto"
    data: str = "random"
    parts: bool = False
    survival: bool = False
    method: str = "zo-sgd"
    definition: str = "as-written"
    momentum: float = 0.9
    sparsity: float = 0.0
    zo_layers: int = 0
    checkpointing: bool = False
    foreach: bool = True
    lr_schedule: str = "constant"
    scheme: str = "full"
    task: str = "none"
    aligned: bool = True
    shots: int = 0
    train_size: int = 1000
    dev_size: int = 500
    test_size: int = 1000
    eval_every: int = 0
    truncate: bool = False
    length_grouping: bool = False
    gpus: int = 1
    nodes: int = 1
    parallel: str = "none"
    transfers: str = "auto"
    checkpoint: str = "none"
    checkpoint_every: int = 0
    program: str = "zobench"

    def __post_init__(self) -> None:
        for name in fields():
            object.__setattr__(self, name, check_value(name, getattr(self, name)))
        if not self.model:
            raise ValueError("`model` must be a name, but got ''; see `zobench list models`")
        if self.weights_path and self.weights != "pretrained":
            raise ValueError(
                f"`weights_path` needs weights=pretrained, but got weights={self.weights}; add --set weights=pretrained"
            )
        check_constraints(self)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one batch, as the papers count them (both forwards read the same tokens)."""
        return self.batch_size * self.seq_len

    def replace(self, **changes: Any) -> RunSpec:
        """A copy with ``changes``, validated again."""
        return dataclasses.replace(self, **changes)

    def resolve(self, device: str) -> RunSpec:
        """The spec as it runs on ``device`` ("cpu" or "cuda..."): no "auto" left, fields without effect at rest.

        Two specs that would run the same computation resolve to the same spec, so to the same hash.
        """
        if self.gpus > 1 and device == "cuda:0":  # the choice for one process; each rank takes its own
            device = "cuda"
        if self.autocast == "tf32" and not device.startswith("cuda"):
            raise ValueError(
                "`autocast=tf32` needs a CUDA device, but got device=cpu; use autocast=bf16 or autocast=none"
            )
        if self.engine == "resident":
            switches = dict.fromkeys(SWITCHES, True)
            return self.replace(device=device, tier="device", slots=3, parts=False, **switches)
        tier = self.tier
        if tier == "auto":  # ranks share one copy in host memory, but no file
            tier = "pinned" if device.startswith("cuda") else "disk" if self.gpus == 1 else "pageable"
        if tier == "device":
            raise ValueError(
                "`tier=device` needs engine=resident, but got engine=offload; use tier=pinned, pageable or disk"
            )
        if tier == "pinned" and not device.startswith("cuda"):
            raise ValueError("`tier=pinned` needs a CUDA device, but got device=cpu; use tier=pageable or tier=disk")
        return self.replace(device=device, tier=tier)

    def to_dict(self) -> dict[str, Any]:
        """Field name to value, JSON types only."""
        return {name: getattr(self, name) for name in fields()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        """The inverse of :meth:`to_dict`; an unknown key is an error that names the nearest known ones."""
        for key in values:
            check_key(key)
        if "model" not in values:
            raise ValueError("`model` must be given, but got no model; see `zobench list models`")
        return cls(**values)

    @property
    def hash(self) -> str:
        """12 hexadecimal digits of the SHA-256 of the canonical JSON (sorted keys, no spaces).

        A field of ``_LATER`` is left out at its default, so that results from before it keep their names.
        """
        named = {key: value for key, value in self.to_dict().items() if key not in _LATER or value != default(key)}
        text = json.dumps(named, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for people: ``OPT-125M offload/disk fp32 b1 s2048 no_overlap slots=2 counter linear``."""
        place = self.engine if self.engine == "resident" or self.tier == "auto" else f"{self.engine}/{self.tier}"
        words = [self.model, place, self.dtype, f"b{self.batch_size}", f"s{self.seq_len}"]
        words += [f"no_{name}" for name in SWITCHES if not getattr(self, name)]
        words += [told(name, getattr(self, name)) for name in _TOLD if getattr(self, name) != default(name)]
        return " ".join(words)


_LATER = (
    "queries", "granularity", "writeback_every", "wire", "autocast", "resident_blocks", "device_memory", "compile",
    "survival", "method", "definition", "momentum", "sparsity", "zo_layers", "checkpointing", "foreach", "lr_schedule",
    "scheme", "task", "aligned", "shots", "train_size", "dev_size", "test_size", "eval_every", "truncate",
    "length_grouping", "gpus", "nodes", "parallel", "transfers", "checkpoint", "checkpoint_every",
    "program",
)  # fmt: skip
"""Fields that came after the first results were stored."""
_TOLD = (
    "weights", "tie_embeddings", "slots", "data", "seed", "lr", "eps", "weight_decay", "queries", "noise",
    "granularity", "writeback_every", "wire", "autocast", "resident_blocks", "device_memory", "compile", "survival",
    "method", "definition", "momentum", "sparsity", "zo_layers", "checkpointing", "foreach", "lr_schedule", "scheme",
    "task", "aligned", "shots", "train_size", "dev_size", "test_size", "truncate", "length_grouping",
    "gpus", "nodes", "parallel", "transfers", "checkpoint", "checkpoint_every",
    "program",
)  # fmt: skip
"""Fields that a label names where they are not at their default."""
