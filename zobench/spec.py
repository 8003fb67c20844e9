"""RunSpec: one cell of a matrix, frozen, validated, hashed from canonical JSON."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

CHOICES: dict[str, tuple[str, ...]] = {
    "weights": ("random", "pretrained", "shared"),
    "engine": ("resident", "offload"),
    "tier": ("auto", "device", "pinned", "pageable", "disk", "checkpoint"),
    "dtype": ("fp32", "fp16", "bf16"),
    "noise": ("torch", "counter"),
    "granularity": ("block", "linear", "tile"),
    "wire": ("none", "fp16", "bf16", "fp8"),
    "autocast": ("none", "fp16", "bf16", "tf32"),
    "data": ("random", "ragged"),
    "method": (
        "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
        "forward-grad", "hybrid", "fo-sgd", "fo-adam",
    ),
    "definition": ("as-written", "as-shipped"),
    "lr_schedule": ("constant", "linear", "cosine"),
    "scheme": ("full", "lora", "prefix", "prompt"),
    "task": ("none", "sst2", "rte", "cb", "boolq", "wsc", "wic", "multirc", "copa", "winogrande"),
}  # fmt: skip
"""The allowed values of every field that is a word from a list."""

FIRST_ORDER = ("fo-sgd", "fo-adam")
"""Methods that backpropagate through the whole model."""
BACKWARD = (*FIRST_ORDER, "hybrid")
"""Methods that backpropagate at all: their model is resident."""
STATEFUL = ("zo-sgd-mmt", "zo-adam")
"""Zeroth-order methods whose state, of the weights' shape, rests and travels with the weights."""
SHIPPED = ("zo-sgd-sign", "zo-adam", "zo-sgd-sparse")
"""Methods whose published program computes something else than its paper's formula (ZO-Bench, appendix A)."""

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
    """Everything that decides what one cell computes. Units: tokens, steps, bytes; lr and eps as in MeZO.

    The defaults are the papers' configuration: MeZO's in-place arithmetic on torch's noise, a block per transfer,
    written back after every step. ``device_memory`` lets the planner choose granularity, slots and resident blocks.

    ``method`` to ``foreach`` are ZO-Bench's methods and their constants, ``scheme`` what is tuned. With a ``task`` the
    run is a fine-tuning run: ``seq_len`` bounds an example's tokens, ``shots`` examples per class train it (0:
    ``train_size`` and ``dev_size`` in all), and it is evaluated every ``eval_every`` steps (0: only at its end).
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

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, check_value(name, getattr(self, name)))
        if not self.model:
            raise ValueError("`model` must be a name, but got ''; see `zobench list models`")
        if self.weights_path and self.weights != "pretrained":
            raise ValueError(
                f"`weights_path` needs weights=pretrained, but got weights={self.weights}; add --set weights=pretrained"
            )
        for rule in _RULES:
            rule.check(self)

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
        if self.autocast == "tf32" and not device.startswith("cuda"):
            raise ValueError(
                "`autocast=tf32` needs a CUDA device, but got device=cpu; use autocast=bf16 or autocast=none"
            )
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
        return {name: getattr(self, name) for name in FIELDS}

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
        told = {key: value for key, value in self.to_dict().items() if key not in _LATER or value != _example(key)}
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for people: ``OPT-125M offload/disk fp32 b1 s2048 no_overlap slots=2 counter linear``."""
        place = self.engine if self.engine == "resident" or self.tier == "auto" else f"{self.engine}/{self.tier}"
        words = [self.model, place, self.dtype, f"b{self.batch_size}", f"s{self.seq_len}"]
        words += [f"no_{name}" for name in SWITCHES if not getattr(self, name)]
        words += [_told(name, getattr(self, name)) for name in _TOLD if getattr(self, name) != _example(name)]
        return " ".join(words)


_LATER = (
    "queries", "granularity", "writeback_every", "wire", "autocast", "resident_blocks", "device_memory", "compile",
    "survival", "method", "definition", "momentum", "sparsity", "zo_layers", "checkpointing", "foreach", "lr_schedule",
    "scheme", "task", "aligned", "shots", "train_size", "dev_size", "test_size", "eval_every", "truncate",
    "length_grouping",
)  # fmt: skip
"""Fields that came after the first results were stored."""
_TOLD = (
    "weights", "tie_embeddings", "slots", "data", "seed", "lr", "eps", "weight_decay", "queries", "noise",
    "granularity", "writeback_every", "wire", "autocast", "resident_blocks", "device_memory", "compile", "survival",
    "method", "definition", "momentum", "sparsity", "zo_layers", "checkpointing", "foreach", "lr_schedule", "scheme",
    "task", "aligned", "shots", "train_size", "dev_size", "test_size", "truncate", "length_grouping",
)  # fmt: skip
"""Fields that a label names where they are not at their default."""
SIZES = ("device_memory",)
"""Fields in bytes, which text may give with a unit."""
_LOWEST: dict[str, float] = {
    "batch_size": 1, "seq_len": 2, "steps": 1, "warmup": 0, "seed": 0, "slots": 1, "lr": 0, "weight_decay": 0,
    "queries": 1, "writeback_every": 1, "resident_blocks": 0, "device_memory": 0, "momentum": 0, "sparsity": 0,
    "zo_layers": 0, "shots": 0, "train_size": 1, "dev_size": 1, "test_size": 1, "eval_every": 0,
}  # fmt: skip
_HIGHEST = 2**31 - 1
"""Of every whole number that counts something: more than any run has, and no sum over it overflows."""
_HIGHEST_SIZE = 2**63 - 1
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
    "queries": "the papers use queries=1",
    "writeback_every": "the papers use writeback_every=1; inf never writes a block back",
    "resident_blocks": "use resident_blocks=0 to stream every block",
    "device_memory": "use device_memory=0 for no limit",
    "momentum": "ZO-Bench uses momentum=0.9",
    "sparsity": "ZO-Bench uses sparsity=0.1 to 0.9",
    "zo_layers": "use zo_layers=0 for backpropagation through every layer",
    "shots": "use shots=16 or 512 per class, or 0 for train_size and dev_size",
    "train_size": "MeZO uses train_size=1000",
    "dev_size": "MeZO uses dev_size=500",
    "test_size": "MeZO uses test_size=1000",
    "eval_every": "use eval_every=0 to evaluate only at the end",
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """``field``, where it is one of ``values`` (none: not at its default), needs field ``needs`` to be ``value``, or
    one of them if that is a tuple."""

    field: str
    values: tuple[str, ...]
    needs: str
    value: Any
    remedy: str

    def check(self, spec: RunSpec) -> None:
        """Raises ``ValueError`` if ``spec`` breaks the rule."""
        own, other = getattr(spec, self.field), getattr(spec, self.needs)
        applies = own in self.values if self.values else own != _example(self.field)
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        if applies and other not in allowed:
            told = str(own).lower() if isinstance(own, bool) else size_text(own) if self.field in SIZES else own
            needed = " or ".join(map(str, allowed))
            raise ValueError(
                f"`{self.field}={told}` needs {self.needs}={needed}, but got {self.needs}={other}; {self.remedy}"
            )


_RULES = (
    _Rule("weights", ("shared",), "engine", "offload", "a resident model has no host blocks to share"),
    _Rule("granularity", (), "noise", "counter", "torch noise can only be drawn a block at a time; use noise=counter"),
    _Rule(
        "writeback_every", (), "noise", "counter",
        "torch noise perturbs the weights in place, so an update that is not written back cannot be exact; "
        "use noise=counter",
    ),
    _Rule("wire", (), "engine", "offload", "a resident model's weights do not travel; use engine=offload"),
    _Rule("wire", ("fp16", "bf16"), "dtype", "fp32", "a wire format must be narrower than dtype; use wire=fp8"),
    _Rule("autocast", (), "dtype", "fp32", "16-bit weights already compute in 16 bits; use dtype=fp32"),
    _Rule("tier", ("checkpoint",), "engine", "offload", "a resident model reads its checkpoint once; use tier=auto"),
    _Rule("tier", ("checkpoint",), "weights", "pretrained", "only they have a checkpoint; use weights=pretrained"),
    _Rule("tier", ("checkpoint",), "writeback_every", "inf", "a checkpoint is only read; use writeback_every=inf"),
    _Rule("tier", ("checkpoint",), "wire", "none", "the files' own format travels; use wire=none"),
    _Rule("resident_blocks", (), "engine", "offload", "a resident model keeps every block; use engine=offload"),
    _Rule("device_memory", (), "engine", "offload", "a resident model takes what it takes; use engine=offload"),
    _Rule("device_memory", (), "noise", "counter", "its planner may need parts of a block; use noise=counter"),
    _Rule("device_memory", (), "granularity", "block", "the planner chooses it; leave granularity out"),
    _Rule("device_memory", (), "slots", 3, "the planner chooses them; leave slots out"),
    _Rule("device_memory", (), "resident_blocks", 0, "the planner chooses them; leave resident_blocks out"),
    _Rule("device_memory", (), "compile", False, "the planner may cut blocks; use compile=false"),
    _Rule("compile", (), "granularity", "block", "what is compiled is a block's forward; use compile=false"),
    _Rule("survival", (), "noise", "counter", "only its z can be made again for a sample; use noise=counter"),
    _Rule("survival", (), "method", tuple(m for m in CHOICES["method"] if m not in (*STATEFUL, *BACKWARD)),
          "other updates are no sum of g * z; use survival=false"),
    _Rule(
        "fused_update", (), "writeback_every", 1,
        "without the fused update every update is written back at once; use writeback_every=1",
    ),
    _Rule("method", BACKWARD, "engine", "resident", "backpropagation needs every layer at once; use engine=resident"),
    _Rule("method", STATEFUL, "writeback_every", 1, "its state changes with every update; use writeback_every=1"),
    _Rule("method", STATEFUL, "wire", "none", "its state travels as it is; use wire=none"),
    _Rule("method", ("zo-sgd-cons", *FIRST_ORDER), "queries", 1, "it has one direction, or none; use queries=1"),
    _Rule("method", FIRST_ORDER, "noise", "torch", "it draws no noise; leave noise out"),
    _Rule("method", ("hybrid",), "noise", "torch", "its lower layers move as MeZO moves them; leave noise out"),
    _Rule("method", ("forward-grad", *BACKWARD), "compile", False, "only forwards are compiled; use compile=false"),
    _Rule("method", ("forward-grad",), "granularity", "block", "it needs whole blocks; use granularity=block"),
    _Rule("definition", ("as-shipped",), "method", SHIPPED, "only theirs differs; use definition=as-written"),
    _Rule("momentum", (), "method", "zo-sgd-mmt", "no other method takes it; leave momentum out"),
    _Rule("sparsity", (), "method", "zo-sgd-sparse", "no other method takes it; leave sparsity out"),
    _Rule("zo_layers", (), "method", "hybrid", "no other method takes it; leave zo_layers out"),
    _Rule("checkpointing", (), "method", BACKWARD, "without backpropagation nothing is kept; use checkpointing=false"),
    _Rule("foreach", (), "method", "fo-adam", "no other method takes it; leave foreach out"),
    _Rule("scheme", (), "wire", "none", "only what is tuned is written back, as it is; use wire=none"),
    _Rule("scheme", (), "tier", ("auto", "device", "pinned", "pageable", "disk"),
          "a checkpoint holds no adapter; use tier=disk"),
    _Rule("task", (), "weights", ("pretrained", "random"), "shared weights learn nothing; use weights=pretrained"),
    _Rule("task", (), "parts", False, "parts are measured without a task; use parts=false"),
    _Rule("task", (), "data", "random", "a task brings its own data; leave data out"),
    *(_Rule(name, (), "task", CHOICES["task"][1:], f"only a task has it; leave {name} out")
      for name in ("shots", "train_size", "dev_size", "test_size", "eval_every", "truncate", "length_grouping")),
    _Rule("aligned", (), "task", "sst2", "only its prompt can be left out; use aligned=true"),
)  # fmt: skip
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
    if key == "device" and value != "auto" and value.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"`device` must be auto, cpu, cuda or cuda:N, but got {value!r}; use device=auto")
    if key == "writeback_every" and isinstance(value, str):
        if value != "inf":
            raise ValueError(f"`{key}` must be a whole number or inf, but got {value!r}; {remedy}")
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{key}` must be finite, but got {value}; {remedy}")
    if key == "eps" and value <= 0:
        raise ValueError(f"`eps > 0` must hold, but got eps={value}; {remedy}")
    if key in _LOWEST and value < _LOWEST[key]:
        raise ValueError(f"`{key} >= {_LOWEST[key]}` must hold, but got {key}={value}; {remedy}")
    highest = _HIGHEST_SIZE if key in SIZES else _HIGHEST
    if key in ("momentum", "sparsity") and value >= 1:
        raise ValueError(f"`{key} < 1` must hold, but got {key}={value}; {remedy}")
    if isinstance(value, int) and value > highest:
        raise ValueError(f"`{key} <= {highest}` must hold, but got {key}={value}; {remedy}")
    return value + 0.0 if isinstance(value, float) else value  # -0.0 is 0.0, also in the hash


def parse_value(key: str, text: str) -> Any:
    """The value of ``--set key=text``: text read as the field's type (``true``, ``3``, ``1e-3``, ``auto``, ``8GB``)."""
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
    if key in SIZES:
        return parse_size(key, text)
    if str in allowed and lowered == "inf":
        return lowered
    for kind, noun in ((int, "a whole number"), (float, "a number")):
        if kind in allowed:
            try:
                return kind(text)
            except ValueError:
                noun += " or inf" if str in allowed else ""
                raise ValueError(
                    f"`{key}` must be {noun}, but got {text!r}; for example {key}={_example(key)}"
                ) from None
    return text.strip()


_UNITS = {"": 1, **{f"{prefix}{i}b": base**power for i, base in (("", 1000), ("i", 1024))
                    for power, prefix in enumerate("kmgt", start=1)}}  # fmt: skip


def parse_size(key: str, text: str) -> int:
    """Bytes of ``8GB`` (8e9), ``512MB``, ``4GiB`` (4 * 2**30) or a plain number of bytes, for field ``key``."""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?) *([a-z]*)", text.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"`{key}` must be a size, but got {text!r}; write {key}=8GB, 512MB or 4GiB")
    return int(Fraction(found[1]) * unit)


def size_text(nbytes: int) -> str:
    """``nbytes`` in the largest unit that holds it as a whole number: ``8GB``, ``4GiB``, ``1500MB``."""
    for unit in ("GB", "GiB", "MB", "MiB"):
        if nbytes and nbytes % _UNITS[unit.lower()] == 0:
            return f"{nbytes // _UNITS[unit.lower()]}{unit}"
    return str(nbytes)


def _told(name: str, value: Any) -> str:
    """How a label names a field: ``slots=2``; the value alone or the name alone where that says it."""
    if name in ("noise", "granularity", "method", "definition", "scheme", "task"):
        return str(value)
    if isinstance(value, bool) and name != "tie_embeddings":
        return name if value else f"no_{name}"
    return f"{name}={size_text(value) if name in SIZES else value}"


def _example(key: str) -> Any:
    return RunSpec.__dataclass_fields__[key].default if key != "model" else "OPT-125M"


def _typed(key: str, value: Any) -> Any:
    """``value`` if it has the field's type; an int where a float is expected becomes one."""
    allowed = _TYPES[key]
    if key in SIZES and isinstance(value, str):
        return parse_size(key, value)
    if key == "writeback_every" and value == math.inf:  # TOML's and Python's own
        return "inf"
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else math.inf
    if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, allowed):
        names = " or ".join("none" if t is types.NoneType else t.__name__ for t in allowed)
        raise ValueError(f"`{key}` must be of type {names}, but got {value!r}; for example {key}={_example(key)!r}")
    return value
