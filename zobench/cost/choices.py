"""Which settings let a model be tuned on a GPU with a given host, which of them is fastest, and what others cost."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.cost import footprint, gpu, interval
from zobench.cost.gpu import Prediction
from zobench.cost.hardware import Gpu
from zobench.machine.texts import gigabytes
from zobench.recipes import matrix
from zobench.runspec import DECLARED, METHODS, RunSpec
from zobench.runspec.kinds import ENGINES, NOISES, WIRES

SYSTEM_BYTES = 4 << 30
"""Bytes that the system, the interpreter and the libraries take of a host of which only the size is given; of memory
that is free already :data:`zobench.execute.plan.HOST_RESERVE` is left."""
INTERVALS = (1, 4, 16, "inf")
"""Steps between two write-backs that are tried."""
SWITCHES: Mapping[str, tuple[bool, bool]] = {"checkpointing": (False, True), "foreach": (True, False)}
"""Fields of a method with a backward pass that are tried, the faster value first."""
CHOSEN = (
    "engine", "tier", "noise", "granularity", "slots", "resident_blocks", "writeback_every", "checkpointing", "foreach",
)  # fmt: skip
"""Fields that are chosen where they are left open, in the order in which they are shown."""
METHODS_COMPARED: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ZO-SGD, all weights", {"method": "zo-sgd", "scheme": "full"}),
    ("ZO-SGD, LoRA", {"method": "zo-sgd", "scheme": "lora"}),
    ("SGD, all weights", {"method": "fo-sgd", "scheme": "full"}),
    ("Adam, LoRA", {"method": "fo-adam", "scheme": "lora"}),
    ("Adam, all weights", {"method": "fo-adam", "scheme": "full"}),
)
"""(name, fields) of the ways to tune a model that ``zobench plan --methods`` compares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One way to run: what is predicted of it; ``lacks``: what does not suffice for it, or "", and ``shortage``: how
    many times what there is it needs, of memory."""

    prediction: Prediction
    lacks: str
    shortage: float

    @property
    def spec(self) -> RunSpec:
        """All of its fields."""
        return self.prediction.spec

    @property
    def settings(self) -> list[str]:
        """The engine, and those of :data:`CHOSEN` that are not the usual ones, as ``--set`` takes them."""
        values: Mapping[str, Any] = {"engine": self.spec.engine, **self.spec.unusual()}
        chosen = [key for key in CHOSEN if values.get(key, "pinned") not in ("pinned", "device")]
        return [_setting(key, values[key]) for key in chosen]

    @property
    def is_papers(self) -> bool:
        """Whether it is MeZO or ZO2 as the papers run them."""
        return self.spec.noise == "torch" and not self.spec.resident_blocks

    def changes_of(self, other: Setup) -> list[str]:
        """Returns its differences from ``other``, as ``--set`` takes them."""
        changed = [key for key in (*CHOSEN, "wire") if getattr(self.spec, key) != getattr(other.spec, key)]
        return [_setting(key, getattr(self.spec, key)) for key in changed]

    def remedy(self, target: TargetMachine) -> str:
        """Returns the change that would make room at ``target`` for what does not fit, where the host can be given
        more."""
        if self.lacks != "host memory":
            return ""
        needed = math.ceil((self.prediction.host_bytes + SYSTEM_BYTES) / 1e9)
        disk = "" if target.disk else "; with --disk SPEED blocks can rest on a disk"
        return f"; it needs --host {needed}GB, {gigabytes(SYSTEM_BYTES)} of it for the system{disk}"

    def to_dict(self) -> dict[str, Any]:
        """All that is predicted and what it lacks, as JSON."""
        return {**prediction_dict(self.prediction), "lacks": self.lacks}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMachine:
    """Where a model is to be tuned: a GPU, ``host`` bytes of memory, a ``disk`` of so many bytes/s, 0 for none."""

    gpu: Gpu
    host: float
    disk: float = 0.0

    @property
    def description(self) -> str:
        """The GPU with its memory, what plans use of that, and its link, and the host."""
        memory = f"{gigabytes(int(self.gpu.memory))}, of which plans use {footprint.MARGIN:.0%}"
        link = f"PCIe {self.gpu.pcie_generation:.0f} x{self.gpu.pcie_lanes:.0f}"
        return f"{self.gpu.name} ({memory}, {link}), {self.host_text}"

    @property
    def host_text(self) -> str:
        """Its memory, and its disk if it has one."""
        disk = f", a disk of {gigabytes(int(self.disk))}/s" if self.disk else ""
        return f"{gigabytes(int(self.host))} of host memory{disk}"


def _setting(key: str, value: Any) -> str:
    """``KEY=VALUE`` as ``--set`` takes it: ``true`` and not ``True``."""
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def plan_dict(target: TargetMachine, best: Setup, others: Iterable[Setup]) -> dict[str, Any]:
    """The best way to run at ``target``, and other ways, as JSON."""
    return {
        "gpu": target.gpu.name, "host_bytes": target.host, "disk_bytes_per_second": target.disk,
        "source": "predicted", "fits": not best.lacks, "best": best.to_dict(),
        "alternatives": [choice.to_dict() for choice in others],
    }  # fmt: skip


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """All that is predicted, as JSON."""
    low, high = prediction.range
    return {
        "source": "predicted", "label": prediction.spec.label, "spec": prediction.spec.unusual(),
        "bound": prediction.bound, "tokens_per_second": prediction.tokens_per_second, "tokens_per_second_low": low,
        "tokens_per_second_high": high, "step_seconds": prediction.step_seconds,
        "device_bytes": prediction.device_bytes, "host_bytes": prediction.host_bytes,
        "disk_bytes": prediction.disk_bytes, "memory_share": prediction.memory_share,
        "seconds": dict(prediction.parts), "not_counted": list(prediction.notes),
    }  # fmt: skip


def cautions(gpus: Sequence[Gpu]) -> list[str]:
    """A line for each GPU of which its file says why a prediction may not come true."""
    return [f"Caution, {gpu.name}: {gpu.caution}." for gpu in gpus if gpu.caution]


def footnote(target: TargetMachine | None, shown: Sequence[Setup] = ()) -> str:
    """Returns a line on what a prediction is, and how far off it may be. ``shown``: the best choice, which has a range
    if it fits, and the others beside it."""
    where = {
        "fitted": "on the GPU that the constants were fitted on", "anchored": "on a GPU fitted to runs of its own",
        "other": "on a GPU known by its data sheet",
    }  # fmt: skip
    about = f" {where[target.gpu.errors]}" if target else ""
    has_range = not shown or not shown[0].lacks
    within = f" The range is what nine of ten of the papers' values were within{about};" if has_range else ""
    wires = " Another wire changes what is learned: it is shown, and never chosen." * (
        len({choice.spec.wire for choice in shown}) > 1
    )
    ran = "ran on one" if target and target.gpu.was_run_on else "has never run on such a GPU"
    return (
        f"~ predicted, not measured.{within} zobench's own engine {ran}. `zobench list gpus` and docs/predictions.md "
        f"say what is guessed.{wires}"
    )


def choices(values: Mapping[str, Any], target: TargetMachine) -> list[Setup]:
    """All ways to run the fields ``values`` at ``target``: the best, then what fits, fastest first, then what does not.

    The best is the simplest that fits and is within :data:`zobench.cost.interval.SAME` of the fastest; of what does not
    fit, what the GPU itself would hold comes first, then the nearest. A field that ``values`` names stays; of the
    others :data:`CHOSEN` are chosen. Wire formats are not: fp8 changes what is learned.
    """
    tried: dict[str, Setup] = {}
    for spec in _candidates(values, target):
        choice = judged(spec, target)
        tried.setdefault(choice.spec.hash, choice)
    ranked = sorted(tried.values(), key=_order)
    if ranked[0].lacks:
        return ranked
    fitting = [choice for choice in tried.values() if not choice.lacks]
    best = interval.simplest(fitting, lambda choice: choice.prediction.step_seconds)
    return [best, *(choice for choice in ranked if choice is not best)]


def _order(choice: Setup) -> tuple[bool, bool, float]:
    too_large = bool(choice.lacks) and not choice.prediction.fits
    return bool(choice.lacks), too_large, choice.shortage if choice.lacks else choice.prediction.step_seconds


def alternatives(best: Setup, target: TargetMachine) -> list[Setup]:
    """``best`` with one setting changed each: what it would cost to choose that one otherwise."""
    spec, tried = best.spec, {best.spec.hash: best}
    for changed in _neighbours(spec, target):
        choice = judged(changed, target)
        tried.setdefault(choice.spec.hash, choice)
    return list(tried.values())[1:]


def judged(spec: RunSpec, target: TargetMachine) -> Setup:
    """Returns the prediction for ``spec`` at ``target``, and whether there is enough of everything for it."""
    prediction = _predicted(spec, target)
    device = prediction.device_bytes / (target.gpu.memory * footprint.MARGIN)
    host = prediction.host_bytes / max(target.host - SYSTEM_BYTES, 1.0)
    lacks = ""
    if max(device, host) > 1:
        lacks = "host memory" if host > device else "device memory"
        lacks += "" if prediction.device_bytes > target.gpu.memory or host > device else ", within the error"
    elif prediction.disk_bytes and not target.disk:
        lacks = "a disk"
    return Setup(prediction=prediction, lacks=lacks, shortage=max(device, host))


def _predicted(spec: RunSpec, target: TargetMachine) -> Prediction:
    """Returns the prediction for ``spec``, where ``inf`` is the interval that the machine's own plan would choose."""

    def predict(spec: RunSpec) -> Prediction:
        return gpu.predict(spec, target.gpu, target.disk or 1.0)

    every = interval.chosen(spec, lambda spec: predict(spec).step_seconds)
    return dataclasses.replace(predict(interval.as_run(spec, every)), spec=spec)


def _candidates(values: Mapping[str, Any], target: TargetMachine) -> Iterator[RunSpec]:
    common = {"steps": interval.LONG_RUN, **values}
    tiers = ["pinned", *(["disk"] if target.disk else [])]
    taken = [name for name in SWITCHES if name in METHODS.get(common.get("method", DECLARED["method"].default)).takes]
    switched = itertools.product(*(SWITCHES[name] for name in taken))
    rows: list[dict[str, Any]] = [{"engine": "resident", **dict(zip(taken, row, strict=True))} for row in switched]
    rows.append({"engine": "resident", "noise": "counter"})
    for tier in tiers:
        rows.append({"engine": "offload", "tier": tier})
        for granularity, slots in footprint.FORMS:
            form = {"engine": "offload", "tier": tier, "noise": "counter", "granularity": granularity, "slots": slots}
            rows += [{**form, "writeback_every": every} for every in INTERVALS]
    asked = [row for row in rows if all(common.get(key, value) == value for key, value in row.items())]
    plain = []
    for row in asked or [{}]:
        with contextlib.suppress(ValueError):  # a field that was asked for rules it out
            plain.append(_checked({**common, **row}))
    for spec in plain or [_checked(common)]:  # that of none is the error to tell
        yield spec
        if ENGINES[spec.engine].is_streamed and "resident_blocks" not in common:
            yield filled(spec, target)


def _checked(values: Mapping[str, Any]) -> RunSpec:
    return models.checked(matrix.with_length(values), "cuda:0")


def filled(spec: RunSpec, target: TargetMachine) -> RunSpec:
    """``spec`` with as many blocks on the device as it holds; as it is where none more fits."""
    room = target.gpu.memory * footprint.MARGIN - target.gpu.driver
    low, high = 0, models.of(spec).layers
    while low < high:  # the most that fits, by halves
        middle = -(-(low + high) // 2)
        if footprint.memory(spec.replace(resident_blocks=middle))[0] <= room:
            low = middle
        else:
            high = middle - 1
    return spec.replace(resident_blocks=low)


def _neighbours(spec: RunSpec, target: TargetMachine) -> Iterator[RunSpec]:
    if METHODS.get(spec.method).backpropagates:
        yield from _with(spec, [{name: not getattr(spec, name)} for name in SWITCHES])
        return
    if not ENGINES[spec.engine].is_streamed:
        yield from _with(spec, [{"noise": kind.name} for kind in NOISES.values() if not kind.is_stored])
        return
    layers = models.of(spec).layers
    kept = {"resident_blocks": min(spec.resident_blocks, layers)}
    yield from _with(spec, [{"resident_blocks": count} for count in (0, filled(spec, target).resident_blocks)])
    if not NOISES[spec.noise].in_place:
        forms = [{"granularity": granularity, "slots": slots, **kept} for granularity, slots in footprint.forms(spec)]
        yield from _with(spec, [*forms, *({"writeback_every": every} for every in INTERVALS)])
        plain = {"granularity": "block", "writeback_every": 1, "slots": 3}
        yield from _with(spec, [{"noise": "torch", **plain}])
    yield from _with(spec, [{"wire": name} for name, kind in WIRES.items() if kind.is_packed and not kind.is_read_only])


def _with(spec: RunSpec, changes: Iterable[Mapping[str, Any]]) -> Iterator[RunSpec]:
    """``spec`` with each of ``changes`` that it can have."""
    for change in changes:
        try:
            changed = spec.replace(**change)
        except ValueError:  # such as a wire format no narrower than its dtype
            continue
        if changed != spec:
            yield changed
