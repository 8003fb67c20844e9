"""A step of a run, or a predicted one, as a trace for chrome://tracing or ui.perfetto.dev (the Trace Event Format)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zobench.result import Result
from zobench.store import machine_of

_ORDER = ("upload", "compute", "offload")
"""The lanes from top to bottom, as in the papers' workflow figures; others follow in order of their first start."""
_PROCESS = 1


def trace(result: Result) -> dict[str, Any]:
    """``traceEvents``: one complete event ("X", microseconds) per operation, one thread per lane; ``otherData``: which
    run this is. Memory over time is left out: its clock starts elsewhere.

    Raises ``ValueError`` for a run without a timeline.
    """
    if not result.timeline:
        kind = "a resident model has no lanes" if result.spec.engine == "resident" else f"it ended {result.outcome}"
        raise ValueError(
            f"a trace needs the timeline of a step, but {result.spec.label!r} has none, because {kind}; "
            "choose a run with engine=offload that ended ok"
        )
    return events(result.spec.label, result.timeline, _about(result))


def events(name: str, timeline: Sequence[Sequence[Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of any ``timeline``, of rows [lane, kind, block, start, end] in seconds: ``name`` is its process's, and
    ``about`` what a reader must know of it."""
    lanes = list(dict.fromkeys([lane for lane, *_ in timeline]))
    lanes.sort(key=lambda lane: _ORDER.index(lane) if lane in _ORDER else len(_ORDER))
    threads = {lane: number for number, lane in enumerate(lanes, 1)}
    operations = [
        {
            "ph": "X", "name": f"{kind} {block}", "cat": kind, "pid": _PROCESS, "tid": threads[lane],
            "ts": start * 1e6, "dur": (end - start) * 1e6, "args": {"block": block, "kind": kind},
        }
        for lane, kind, block, start, end in timeline
    ]  # fmt: skip
    return {
        "traceEvents": [*_names(name, threads), *operations],
        "displayTimeUnit": "ms",
        "otherData": dict(about),
    }


def _names(name: str, threads: dict[str, int]) -> list[dict[str, Any]]:
    rows: list[tuple[str, int, dict[str, Any]]] = [("process_name", 0, {"name": name})]
    for lane, thread in threads.items():
        rows += [("thread_name", thread, {"name": lane}), ("thread_sort_index", thread, {"sort_index": thread})]
    return [{"ph": "M", "name": key, "pid": _PROCESS, "tid": thread, "args": args} for key, thread, args in rows]


def _about(result: Result) -> dict[str, Any]:
    step = result.samples.get("step_seconds", [])[-1:]
    return {
        "run": result.spec.hash, "cell": result.spec.label, "machine": machine_of(result),
        "description": result.environment.description, "outcome": str(result.outcome),
        "step_seconds": step[0] if step else None, "spec": result.spec.to_dict(),
        "versions": result.environment.versions, "source": result.environment.source,
    }  # fmt: skip
