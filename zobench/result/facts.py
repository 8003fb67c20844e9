"""Facts: where a result comes from and what was chosen for it; in its file they are the table ``environment``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts that a run's numbers may depend on beside its spec. A fact that is not known, or that a run has none
    of, is None (``machine`` and ``description`` are then ""), and its key is not in the file.

    ``machine``: the short id of its ``hardware`` and ``software``. ``device``: "cpu" or "cuda:N". ``cuda``: the version
    that torch is built for. ``threads`` compute on a CPU, ``cores_available`` to this process. ``cpu_flags`` and
    ``versions``: those that decide speed. ``source``: zobench's commit, and whether it was changed. ``notes``: what
    NVML could not tell. ``plug_ins``: editions, by the spec's field that names them; ``program``: of one that is not
    zobench's, and ``own_order``: whether that draws z in an order of its own. ``options`` and ``definition``: the
    method's, all of them, and its formula. ``memory_plan``, ``writeback_plan``, ``attention``, ``transfers``,
    ``threads_reason``: what was chosen, and why. ``planted_slowdown``: a share, by which steps were lengthened on
    purpose. ``turns``: seconds since 1970, when the cells began that stepped in turns. ``calibration``: the machine's
    rates. ``price_per_hour``: of the machine, in any currency. ``target_accuracy``: a share on dev.
    ``warm_up_detected``: how many of the measured steps were found to be warm-up. ``other``: what a file has under
    further keys, and keys that say nothing in it.
    """

    machine: str = ""
    description: str = ""
    hardware: dict[str, Any] | None = None
    software: dict[str, str] | None = None
    device: str | None = None
    gpu: dict[str, Any] | None = None
    cuda: str | None = None
    threads: int | None = None
    cpu_flags: list[str] | None = None
    cores_available: int | None = None
    memory_limit_bytes: int | None = None
    numa_nodes: int | None = None
    os: str | None = None
    versions: dict[str, str | None] | None = None
    source: dict[str, Any] | None = None
    notes: list[str] | None = None
    plug_ins: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    memory_plan: dict[str, Any] | None = None
    writeback_plan: dict[str, Any] | None = None
    attention: str | None = None
    program: str | None = None
    own_order: bool | None = None
    definition: str | None = None
    transfers: str | None = None
    planted_slowdown: float | None = None
    journal_sha256: str | None = None
    ranks: list[dict[str, Any]] | None = None
    threads_reason: str | None = None
    turns: float | None = None
    calibration: dict[str, Any] | None = None
    price_per_hour: float | None = None
    target_accuracy: float | None = None
    warm_up_detected: int | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of :meth:`from_dict`; the known keys come first, in the order of the fields."""
        facts = {name: value for name in _TYPES if (value := getattr(self, name)) not in _EMPTY}
        values = {**self.other, **facts}
        return {name: values[name] for name in (*_TYPES, *self.other) if name in values}

    @classmethod
    def from_dict(cls, values: Any) -> Facts:
        """The facts that a result's file holds as ``environment``. Raises ``ValueError``, one line, for a fact that is
        not of its type, and for a number that is negative, no share where it should be one, or beyond 64 bits."""
        if type(values) is not dict:
            raise ValueError("`environment` must be of type dict, but is not; this file is not a zobench result")
        facts = {name: value for name, value in values.items() if name in _TYPES and value not in _EMPTY}
        for name, value in facts.items():
            if not _is_sound(name, value):
                raise ValueError(
                    f"`environment.{name}` must be as zobench writes it, but is not; this file is not a zobench result"
                )
        return cls(**facts, other={name: value for name, value in values.items() if name not in facts})


def _is_sound(name: str, value: Any) -> bool:
    if name == "writeback_plan":
        whole = type(value) is dict and value.keys() == {"steps", "reason"}
        return whole and type(value["steps"]) is int and value["steps"] >= 1 and type(value["reason"]) is str
    if _TYPES[name] not in (int, float):
        return type(value) is _TYPES[name]
    most = 1 if name in ("planted_slowdown", "target_accuracy") else 2**63 - 1
    return type(value) in (int, float) and 0 <= value <= most and (_TYPES[name] is float or value % 1 == 0)


def _type_of(hint: Any) -> Any:
    """``dict`` of ``dict[str, Any] | None``."""
    kind = hint if hint is str else get_args(hint)[0]
    return get_origin(kind) or kind


_TYPES = {name: _type_of(hint) for name, hint in get_type_hints(Facts).items() if name != "other"}
_EMPTY = (None, "")
