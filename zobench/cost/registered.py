"""Predictions that are registered before anybody has measured them, and how they did once somebody has.

A registered prediction is a JSON file: a GPU, a day, the cells of a matrix with the seconds of a step and the bytes of
the device that are predicted, each with its range, and the SHA-256 of all that. It is never written again: a better
predictor registers another. Those in :data:`FOLDER` come with zobench.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench.cost.gpu import Prediction
from zobench.machine.files import replace
from zobench.machine.texts import json_of
from zobench.result import HOST_OOM, Outcome, Result
from zobench.runspec import FIELDS, RunSpec, named
from zobench.version import __version__

FOLDER = Path(__file__).parent / "registered"
STAMP = "sha256"
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "sxm", "oam"})
"""Words in a device's name that make it no other device."""
_FREE = frozenset({"device", *named(lambda field: field.incidental)})
"""Fields in which a run may differ from the cell that was predicted: they change no time."""


def registered(matrix: str, predictions: Sequence[Prediction], day: datetime.date) -> dict[str, Any]:
    """Returns the content of a file of ``predictions`` (for one GPU) of the cells of ``matrix``, with its SHA-256."""
    cells = []
    for each in predictions:
        slowest, fastest = each.range
        tokens = each.tokens_per_second * each.step_seconds
        cells.append({
            "label": each.spec.label, "spec": each.spec.unusual(), "fits": each.fits,
            "step_seconds": [tokens / fastest, each.step_seconds, tokens / slowest],
            "device_bytes": each.device_bytes, "memory_share": each.memory_share,
        })  # fmt: skip
    body = {
        "gpu": predictions[0].gpu.name, "matrix": matrix, "registered": day.isoformat(), "zobench": __version__,
        "cells": cells,
    }  # fmt: skip
    return {**body, STAMP: stamp(body)}


def stamp(body: Mapping[str, Any]) -> str:
    """The SHA-256 of ``body`` as canonical JSON, without the stamp itself."""
    text = json.dumps({key: value for key, value in body.items() if key != STAMP}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, body: Mapping[str, Any]) -> Path:
    """Writes ``body`` into ``folder`` by its GPU, matrix and day. Raises ``ValueError`` where that was registered."""
    gpu = re.sub(r"[ /\\]", "-", body["gpu"].lower())
    path = folder / f"{gpu}-{body['matrix']}-{body['registered']}.json"
    if path.exists():
        raise ValueError(f"`--register` never changes what is registered, but {path} is there; name another folder")
    replace(path, f"{json.dumps(body)}\n".encode())
    return path


def read_all(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Returns the predictions that are registered in ``folder``. Raises ``ValueError`` for a file that does not have
    the SHA-256 it names."""
    bodies = []
    for path in sorted(folder.glob("*.json")):
        body = None
        with contextlib.suppress(ValueError):  # which has no SHA-256 at all
            body = json_of(path.read_bytes())
        if not isinstance(body, dict) or body.get(STAMP) != stamp(body):
            raise ValueError(
                f"{path} must have the SHA-256 that it names, but has another: it was changed after it was registered; "
                "take another copy"
            )
        bodies.append(body)
    return bodies


def scores(results: Iterable[Result], folder: Path = FOLDER) -> Iterator[tuple[str, bool]]:
    """Returns, for each of ``results`` of a cell and a GPU that are registered in ``folder``, a line with the predicted
    and the measured value, and whether the prediction held: what was measured is in its range, or both ran out of
    memory. Of host memory nothing was predicted."""
    cells = {
        (body["gpu"], _cell(RunSpec.from_stored(cell["spec"]))): (body, cell)
        for body in read_all(folder) for cell in body["cells"]
    }  # fmt: skip
    gpus = {gpu for gpu, _ in cells}
    for result in results:
        if not result.spec.device.startswith("cuda") or result.outcome not in (Outcome.OK, Outcome.OOM):
            continue
        if result.outcome is Outcome.OOM and result.reason.startswith(HOST_OOM):
            continue
        for gpu in gpus:
            if _is_of(result, gpu) and (match := cells.get((gpu, _cell(result.spec)))) is not None:
                yield _score(result, *match)


def lines(results: Iterable[Result]) -> Iterator[str]:
    """How what comes with zobench did for each of ``results``, then for how many; nothing where none was predicted."""
    judged = list(scores(results))
    yield from (line for line, _ in judged)
    if judged:
        within = sum(is_within for _, is_within in judged)
        yield f"registered predictions: {within} of {len(judged)} within their range"


def _cell(spec: RunSpec) -> tuple[Any, ...]:
    return tuple(getattr(spec, field) for field in FIELDS if field not in _FREE)


def _is_of(result: Result, gpu: str) -> bool:
    """Whether ``result`` ran on a whole ``gpu``: the device's name has every word of its name, and of others only those
    of :data:`_MAKERS`, as NVIDIA GeForce RTX 5090 does; a part of it (MIG) or its laptop form is another device. Where
    the run does not name its device, all of its machine's must be such."""
    wanted = set(gpu.lower().split())
    return all(wanted <= set(name.lower().split()) <= wanted | _MAKERS for name in devices(result))


def devices(result: Result) -> list[str]:
    """The name of the device that ``result`` ran on, or else of each of its machine's; "" where none is stored."""
    facts = result.environment.gpu or {}
    stored = [facts] if facts.get("name") else (result.environment.hardware or {}).get("gpus") or [{}]
    return [str(device.get("name", "") if isinstance(device, Mapping) else device) for device in stored]


def _score(result: Result, body: Mapping[str, Any], cell: Mapping[str, Any]) -> tuple[str, bool]:
    low, middle, high = cell["step_seconds"]
    about = f"registered {body['registered']} for {body['gpu']}, {cell['label']}"
    predicted = f"{middle:.3g} s a step ({low:.3g} to {high:.3g})" if cell["fits"] else "out of memory"
    seconds = result.step_seconds
    measured = "out of memory" if seconds is None else f"{seconds:.3g} s"
    within = not cell["fits"] if seconds is None else bool(cell["fits"]) and low <= seconds <= high
    return f"{about}: predicted {predicted}, measured {measured}: {'within' if within else 'outside'}", within
