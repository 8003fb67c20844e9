"""The values of a spec's fields: types, ranges, and how they are written as text."""

from __future__ import annotations

import functools
import math
import re
import types
import typing
from fractions import Fraction
from typing import Any

from zobench.runspec.words import CHOICES, SIZES, suggestion

_LOWEST: dict[str, float] = {
    "batch_size": 1, "seq_len": 2, "steps": 1, "warmup": 0, "seed": 0, "slots": 1, "lr": 0, "weight_decay": 0,
    "queries": 1, "writeback_every": 1, "resident_blocks": 0, "device_memory": 0, "momentum": 0, "sparsity": 0,
    "zo_layers": 0, "shots": 0, "train_size": 1, "dev_size": 1, "test_size": 1, "eval_every": 0,
    "gpus": 1, "nodes": 1, "checkpoint_every": 0,
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
    "gpus": "use gpus=1 for one device",
    "nodes": "use nodes=1 for one machine",
    "checkpoint_every": "use checkpoint_every=0 to save nothing meanwhile",
}


@functools.cache
def _types() -> dict[str, tuple[type, ...]]:
    from zobench.runspec.run import RunSpec  # which is built of these checks

    return {
        name: tuple(t for t in (typing.get_args(hint) or (hint,)) if isinstance(t, type))
        for name, hint in typing.get_type_hints(RunSpec).items()
    }


def fields() -> tuple[str, ...]:
    """Names of all fields of a spec, in order."""
    return tuple(_types())


def check_key(key: str) -> None:
    """Raises ``ValueError`` naming the nearest fields if ``key`` is not a field of :class:`RunSpec`."""
    if key not in fields():
        raise ValueError(f"unknown key {key!r}; {suggestion(key, fields())}")


def check_value(key: str, value: Any) -> Any:
    """``value`` as field ``key`` holds it. Raises ``ValueError`` for a wrong type, an unknown word, or out of range."""
    value = _typed(key, value)
    allowed = CHOICES.get(key) if value != default(key) else None
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
    allowed = _types()[key]
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
                    f"`{key}` must be {noun}, but got {text!r}; for example {key}={default(key)}"
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


def told(name: str, value: Any) -> str:
    """How a label names a field: ``slots=2``; the value alone or the name alone where that says it."""
    if name in ("noise", "granularity", "method", "definition", "scheme", "task"):
        return str(value)
    if isinstance(value, bool) and name != "tie_embeddings":
        return name if value else f"no_{name}"
    return f"{name}={size_text(value) if name in SIZES else value}"


def default(key: str) -> Any:
    """The field's default; of the model, an example."""
    from zobench.runspec.run import RunSpec

    return RunSpec.__dataclass_fields__[key].default if key != "model" else "OPT-125M"


def _typed(key: str, value: Any) -> Any:
    """``value`` if it has the field's type; an int where a float is expected becomes one."""
    allowed = _types()[key]
    if key in SIZES and isinstance(value, str):
        return parse_size(key, value)
    if key == "writeback_every" and value == math.inf:  # TOML's and Python's own
        return "inf"
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else math.inf
    if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, allowed):
        names = " or ".join("none" if t is types.NoneType else t.__name__ for t in allowed)
        raise ValueError(f"`{key}` must be of type {names}, but got {value!r}; for example {key}={default(key)!r}")
    return value
