"""RunSpec: one cell of a matrix, frozen, validated, hashed from canonical JSON."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CHOICES: dict[str, tuple[str, ...]] = {
    "weights": ("random", "pretrained", "shared"),
    "engine": ("resident", "offload"),
    "tier": ("auto", "device", "pinned", "pageable", "disk"),
    "dtype": ("fp32", "fp16", "bf16"),
    "noise": ("torch",),
    "data": ("random", "ragged"),
}
"""The allowed values of every field that is a word from a list."""

SEQ_LEN = 2048
"""The papers' tokens per sequence."""

SWITCHES = ("overlap", "reusable_memory", "fused_update")
"""The ablation switches of ZO2 table 3; each removes exactly one thing."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Text naming the nearest of ``known`` to a mistyped ``word``: ``did you mean ...?`` or the whole list."""
    options = list(known)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), lowered, n=3, cutoff=0.55)
    if near:
        return "did you mean " + " or ".join(lowered[match] for match in near) + "?"
    return "use one of " + ", ".join(options)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """Everything that decides what one cell computes. Units: tokens, steps; lr and eps as in MeZO.

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
    noise: str = "torch"
    overlap: bool = True
    reusable_memory: bool = True
    fused_update: bool = True
    slots: int = 3
    device: str = "auto"
    data: str = "random"
    parts: bool = False

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, check_value(name, getattr(self, name)))
        if not self.model:
            raise ValueError("`model` must be a name, but got ''; see `zobench list models`")
        if self.device != "auto" and self.device.split(":")[0] not in ("cpu", "cuda"):
            raise ValueError(f"`device` must be auto, cpu, cuda or cuda:N, but got {self.device!r}; use device=auto")
        if self.weights_path and self.weights != "pretrained":
            raise ValueError(
                f"`weights_path` needs weights=pretrained, but got weights={self.weights}; add --set weights=pretrained"
            )
        if self.weights == "shared" and self.engine == "resident":
            raise ValueError(
                "`weights=shared` needs engine=offload, but got engine=resident; "
                "a resident model has no host blocks to share"
            )

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
        if self.engine == "resident":
            switches = dict.fromkeys(SWITCHES, True)
            return self.replace(device=device, tier="device", slots=3, parts=False, **switches)
        tier = self.tier if self.tier != "auto" else ("pinned" if device.startswith("cuda") else "disk")
        if tier == "device":
            raise ValueError(
                "`tier=device` needs engine=resident, but got engine=offload; use tier=pinned, pageable or disk"
            )
        if tier == "pinned" and not device.startswith("cuda"):
            raise ValueError("`tier=pinned` needs a CUDA device, but got device=cpu; use tier=pageable or tier=disk")
        return self.replace(device=device, tier=tier)

    def to_dict(self) -> dict[str, Any]:
        """Field name to value, JSON types only."""
        return dataclasses.asdict(self)

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
        """12 hexadecimal digits of the SHA-256 of the canonical JSON (sorted keys, no spaces)."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for people: ``OPT-125M offload/disk fp32 b1 s2048 no_overlap slots=2``."""
        place = self.engine if self.engine == "resident" or self.tier == "auto" else f"{self.engine}/{self.tier}"
        words = [self.model, place, self.dtype, f"b{self.batch_size}", f"s{self.seq_len}"]
        words += [f"no_{name}" for name in SWITCHES if not getattr(self, name)]
        words += [f"{name}={getattr(self, name)}" for name in _TOLD if getattr(self, name) != _example(name)]
        return " ".join(words)


_TOLD = ("weights", "tie_embeddings", "slots", "data", "seed", "lr", "eps", "weight_decay", "noise")
"""Fields that a label names where they are not at their default."""
_LOWEST: dict[str, float] = {
    "batch_size": 1, "seq_len": 2, "steps": 1, "warmup": 0, "seed": 0, "slots": 1, "lr": 0, "weight_decay": 0,
}  # fmt: skip
_HIGHEST = 2**31 - 1
"""Of every whole number: more than any run has, and no sum over it overflows."""
_REMEDY = {
    "eps": "MeZO uses eps=1e-3",
    "lr": "MeZO uses lr=1e-7 to 1e-5",
    "weight_decay": "MeZO uses weight_decay=0",
    "batch_size": "the papers use batch_size=1",
    "seq_len": "a causal loss needs two tokens; the papers use seq_len=2048",
    "steps": "ask for at least one measured step",
    "warmup": "use warmup=0 to measure from the first step",
    "seed": "seeds are 0, 1, 2, ...",
    "slots": "use slots=3 for one block uploading, one computing, one offloading",
}
_TYPES: dict[str, tuple[type, ...]] = {
    name: tuple(t for t in (typing.get_args(hint) or (hint,)) if isinstance(t, type))
    for name, hint in typing.get_type_hints(RunSpec).items()
}
FIELDS = tuple(_TYPES)
"""Names of all fields, in order."""


def check_key(key: str) -> None:
    """Raises ``ValueError`` naming the nearest fields if ``key`` is not a field of :class:`RunSpec`."""
    if key not in FIELDS:
        raise ValueError(f"unknown key {key!r}; {suggestion(key, FIELDS)}")


def check_value(key: str, value: Any) -> Any:
    """``value`` as field ``key`` holds it. Raises ``ValueError`` for a wrong type, an unknown word, or out of range."""
    value = _typed(key, value)
    allowed = CHOICES.get(key)
    if allowed is not None and value not in allowed:
        raise ValueError(
            f"`{key}` must be one of {', '.join(allowed)}, but got {value!r}; {suggestion(value, allowed)}"
        )
    remedy = _REMEDY.get(key, "")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{key}` must be finite, but got {value}; {remedy}")
    if key == "eps" and value <= 0:
        raise ValueError(f"`eps > 0` must hold, but got eps={value}; {remedy}")
    if key in _LOWEST and value < _LOWEST[key]:
        raise ValueError(f"`{key} >= {_LOWEST[key]}` must hold, but got {key}={value}; {remedy}")
    if isinstance(value, int) and value > _HIGHEST:
        raise ValueError(f"`{key} <= {_HIGHEST}` must hold, but got {key}={value}; {remedy}")
    return value + 0.0 if isinstance(value, float) else value  # -0.0 is 0.0, also in the hash


def parse_value(key: str, text: str) -> Any:
    """The value of ``--set key=text``: text read as the field's type (``true``, ``3``, ``1e-3``, ``auto``)."""
    check_key(key)
    allowed = _TYPES[key]
    lowered = text.strip().lower()
    if types.NoneType in allowed and lowered in ("none", "default"):
        return None
    if bool in allowed:
        yes, no = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
        if lowered not in yes + no:
            raise ValueError(f"`{key}` must be true or false, but got {text!r}; write {key}=true or {key}=false")
        return lowered in yes
    for kind, noun in ((int, "a whole number"), (float, "a number")):
        if kind in allowed:
            try:
                return kind(text)
            except ValueError:
                raise ValueError(
                    f"`{key}` must be {noun}, but got {text!r}; for example {key}={_example(key)}"
                ) from None
    return text.strip()


def _example(key: str) -> Any:
    return RunSpec.__dataclass_fields__[key].default if key != "model" else "OPT-125M"


def _typed(key: str, value: Any) -> Any:
    """``value`` if it has the field's type; an int where a float is expected becomes one."""
    allowed = _TYPES[key]
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else math.inf
    if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, allowed):
        names = " or ".join("none" if t is types.NoneType else t.__name__ for t in allowed)
        raise ValueError(f"`{key}` must be of type {names}, but got {value!r}; for example {key}={_example(key)!r}")
    return value
