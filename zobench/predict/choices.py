"""Which settings let a model be tuned on a GPU with a given host, which of them is fastest, and what others cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.predict import footprint, gpu, interval
from zobench.predict.gpu import Prediction
from zobench.predict.hardware import Gpu
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES, NOISES, WIRES

HOST_RESERVE = 4 << 30
"""Bytes of host memory that are left to the system, the interpreter and the libraries."""
INTERVALS = (1, 4, 16, "inf")
"""Steps between two write-backs that are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One way to run: what is predicted of it; ``lacks``: what does not suffice for it, or "", and ``shortage``: how
    many times what there is it needs, of memory."""

    prediction: Prediction
    lacks: str
    shortage: float

    @property
    def spec(self) -> RunSpec:
        """Its settings."""
        return self.prediction.spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a model is to be tuned: a GPU, ``host`` bytes of memory, a ``disk`` of so many bytes/s, 0 for none."""

    gpu: Gpu
    host: float
    disk: float = 0.0


def choices(values: Mapping[str, Any], place: Place) -> list[Choice]:
    """All ways to run the fields ``values`` at ``place``: the best, then what fits, fastest first, then what does not.

    The best is the simplest that fits and is within :data:`zobench.predict.interval.SAME` of the fastest; of what
    does not fit the nearest first, but before it what the GPU itself would hold: more host memory or a disk is a
    remedy. A field that ``values`` names stays; of what they leave open, engine, noise, granularity, slots,
    resident blocks, tier and interval of write-backs are chosen. Wire formats are not: fp8 changes what is learned.
    """
    found: dict[str, Choice] = {}
    for spec in _candidates(values, place):
        choice = judged(spec, place)
        found.setdefault(choice.spec.hash, choice)
    ways = sorted(found.values(), key=_order)
    if ways[0].lacks:
        return ways
    fitting = [one for one in found.values() if not one.lacks]
    best = interval.simplest(fitting, lambda one: one.prediction.step_seconds)
    return [best, *(one for one in ways if one is not best)]


def _order(one: Choice) -> tuple[bool, bool, float]:
    too_large = bool(one.lacks) and not one.prediction.fits
    return bool(one.lacks), too_large, one.shortage if one.lacks else one.prediction.step_seconds


def alternatives(best: Choice, place: Place) -> list[Choice]:
    """``best`` with one setting changed each: what it would cost to choose that one otherwise."""
    spec, found = best.spec, {best.spec.hash: best}
    for changed in _neighbours(spec):
        choice = judged(changed, place)
        found.setdefault(choice.spec.hash, choice)
    return list(found.values())[1:]


def judged(spec: RunSpec, place: Place) -> Choice:
    """What is predicted of ``spec`` at ``place``, and whether there is enough of everything for it."""
    known = _predicted(spec, place)
    device = known.device_bytes / (place.gpu.memory * footprint.MARGIN)
    host = known.host_bytes / max(place.host - HOST_RESERVE, 1.0)
    lacks = ""
    if max(device, host) > 1:
        lacks = "host memory" if host > device else "device memory"
        lacks += "" if known.device_bytes > place.gpu.memory or host > device else ", within the error"
    elif known.disk_bytes and not place.disk:
        lacks = "a disk"
    return Choice(prediction=known, lacks=lacks, shortage=max(device, host))


def _predicted(spec: RunSpec, place: Place) -> Prediction:
    """Of ``spec``, where ``inf`` is the interval that the machine's own plan would choose."""

    def predict(one: RunSpec) -> Prediction:
        return gpu.predict(one, place.gpu, place.disk or 1.0)

    every = interval.chosen(spec, lambda one: predict(one).step_seconds)
    return dataclasses.replace(predict(interval.as_run(spec, every)), spec=spec)


def _candidates(values: Mapping[str, Any], place: Place) -> Iterator[RunSpec]:
    common = {"steps": interval.LONG_RUN, **values}
    tiers = ["pinned", *(["disk"] if place.disk else [])]
    rows: list[dict[str, Any]] = [{"engine": "resident"}, {"engine": "resident", "noise": "counter"}]
    for tier in tiers:
        rows.append({"engine": "offload", "tier": tier})
        for granularity, slots in footprint.FORMS:
            form = {"engine": "offload", "tier": tier, "noise": "counter", "granularity": granularity, "slots": slots}
            rows += [{**form, "writeback_every": every} for every in INTERVALS]
    asked = [row for row in rows if all(common.get(key, value) == value for key, value in row.items())]
    plain = [known for row in asked or [{}] for known in _known({**common, **row})]
    for spec in plain or [_checked(common)]:  # that of none is the error to tell
        yield spec
        if ENGINES[spec.engine].is_streamed and "resident_blocks" not in common:
            yield filled(spec, place)


def _checked(values: Mapping[str, Any]) -> RunSpec:
    return models.checked(RunSpec.from_dict(values), "cuda:0")


def _known(values: Mapping[str, Any]) -> list[RunSpec]:
    """The spec of ``values``, or none where a field that was asked for rules them out."""
    try:
        return [_checked(values)]
    except ValueError:
        return []


def filled(spec: RunSpec, place: Place) -> RunSpec:
    """``spec`` with as many blocks on the device as it holds; as it is where none more fits."""
    room = place.gpu.memory * footprint.MARGIN - place.gpu.driver
    low, high = 0, models.of(spec).layers
    while low < high:  # the most that fits, by halves
        middle = -(-(low + high) // 2)
        if footprint.memory(spec.replace(resident_blocks=middle))[0] <= room:
            low = middle
        else:
            high = middle - 1
    return spec.replace(resident_blocks=low)


def _neighbours(spec: RunSpec) -> Iterator[RunSpec]:
    if not ENGINES[spec.engine].is_streamed:
        yield from _with(spec, [{"noise": kind.name} for kind in NOISES.values() if not kind.is_stored])
        return
    layers = models.of(spec).layers
    kept = {"resident_blocks": min(spec.resident_blocks, layers)}
    yield from _with(spec, [{"resident_blocks": 0}])
    if not NOISES[spec.noise].in_place:
        forms = [{"granularity": granularity, "slots": slots, **kept} for granularity, slots in footprint.FORMS]
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
