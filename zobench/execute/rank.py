"""One rank of a cell on several devices; the ranks exchange their results, which are merged into the cell's: the
slowest times, the highest memory peak, or why it failed.

Ranks tell each other their results as JSON, through the store in which they met. So a rank that is lost takes nothing
with it but its own: the others say what happened to them, and the one that started it says how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from zobench.machine import files
from zobench.machine.device import check_devices
from zobench.machine.memory import oom_kills
from zobench.machine.processes import end_with_launcher
from zobench.measure.environment import failed
from zobench.measure.samples import crowded
from zobench.parallel.launch import Lost, Meeting, meet, start
from zobench.parallel.world import GONE, join, meeting_place, timeout
from zobench.result import HOST_OOM, Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.order import Order, begin
from zobench.runspec.registries import METRICS

GRACE = 10.0  # seconds in which ranks say what happened to them, once one knows that it is over
PIECE = 4 << 20
"""Characters that go to a store at a time: torch's takes no more than 8 MiB, and a long run's result is longer."""

_OF_RANKS = (
    "device_peak_bytes", "device_reserved_peak_bytes", "device_process_peak_bytes", "host_rss_peak_bytes",
    "host_unique_bytes",
)  # fmt: skip


def main() -> None:
    """``python -m zobench.execute.rank ORDER FILE``: a rank, started by :func:`launched`."""
    end_with_launcher()
    ordered, answer = Order.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
    begin(ordered)
    result = measured(ordered.spec)
    if os.environ["LOCAL_RANK"] == "0":
        files.replace(answer, _text(result).encode())  # whole: a rank that is ended meanwhile leaves no half of it
    if result.outcome is not Outcome.OK:  # so that the agent ends a rank that is silent, as one that is stopped
        sys.exit(1)


def launched(ordered: Order, answer: Path) -> Result:
    """The cell's result, by ranks that this machine, as each of several, starts; their files lie beside ``answer``."""
    spec = ordered.spec
    check_devices(spec)
    question = answer.with_name("order.json")
    question.write_text(json.dumps(ordered.to_dict()))
    meeting = meet(spec)
    command = (sys.executable, "-P", "-m", "zobench.execute.rank", str(question), str(answer))
    kills = oom_kills()
    lost = start(command, spec, meeting)
    if lost is not None:
        return _after(spec, lost, meeting, oom_kills() > kills)
    return Result.from_dict(json.loads(answer.read_text()))


def measured(spec: RunSpec) -> Result:
    """Measures the cell as one of its ranks. Every rank returns the same merged result; only rank 0's has traces."""
    store, rank = meeting_place(), int(os.environ["RANK"])
    try:
        from zobench import programs
        from zobench.programs import cell
    except ImportError as error:
        lacks = failed(spec, Outcome.FAILED, f"ImportError: {error}", traceback.format_exc())
        return _exchanged(spec, store, rank, lacks)
    answer: Result | None = None
    try:
        with join(spec) as world:
            answer = programs.run(spec, world)
            if answer.outcome is not Outcome.OK:
                _send(store, rank, answer)  # before it leaves the groups, which may wait for a device that hangs
    except Exception as error:  # whatever fails is this rank's outcome, and ends no other rank without a word
        if answer is None or answer.outcome is Outcome.OK:
            answer = failed(spec, *cell.classify(error, spec.device), traceback.format_exc())
    return _exchanged(spec, store, rank, answer)


def _exchanged(spec: RunSpec, store: Store, rank: int, answer: Result) -> Result:
    """The result of the cell, merged from all ranks'; ``answer`` is this rank's. A rank that knows what went wrong does
    not wait long for those that may not: when it ends, its agent ends them."""
    knows = answer.outcome is not Outcome.OK and not answer.reason.startswith(GONE)
    try:
        _send(store, rank, answer)
        if rank == 0:
            by_rank = _received(store, spec.gpus, timeout() if answer.outcome is Outcome.OK else GRACE)
            result = merged(spec, by_rank | {0: Result.from_dict(answer.to_dict())})  # JSON's, as the others' are
            _put(store, "result", result)
            return result
        return _get(store, "result", GRACE if knows else timeout() + GRACE)
    except RuntimeError as error:  # rank 0 is silent, or its machine gone
        silent = failed(spec, Outcome.FAILED, f"{GONE}, or was silent: there is no result of all", str(error))
        return answer if knows else silent


def _after(spec: RunSpec, lost: Lost, meeting: Meeting, killed_for_memory: bool) -> Result:
    """The result of a cell of which a rank died on this machine: what the others reported, and how that one ended."""
    store = PrefixStore(f"attempt {meeting.round}", meeting.store)
    if killed_for_memory:
        end = failed(spec, Outcome.OOM, f"{HOST_OOM}: the system killed rank {lost.rank}")
    else:
        end = failed(spec, Outcome.FAILED, lost.reason)
    try:
        if not store.check([f"result of {lost.rank}"]):
            _send(store, lost.rank, end)
        if meeting.node == 0 and not store.check(["result"]):  # rank 0 has been ended before it could
            _put(store, "result", merged(spec, _received(store, spec.gpus, patience=0.0)))
        result = _get(store, "result", 2 * GRACE)
        store.set(f"read by {meeting.node}", "")
    except RuntimeError:
        if killed_for_memory or lost.code < 0:
            return end
        return failed(spec, Outcome.FAILED, "the first machine of the run is gone")
    if meeting.node == 0:
        with contextlib.suppress(RuntimeError):  # all machines read the result from this process's store
            store.wait([f"read by {node}" for node in range(meeting.nodes)], timedelta(seconds=GRACE))
    return result


def _send(store: Store, rank: int, result: Result) -> None:
    """Leaves ``rank``'s result for the others."""
    _put(store, f"result of {rank}", result)


def _received(store: Store, count: int, patience: float) -> dict[int, Result]:
    """The results that the ranks 0 to ``count`` - 1 have left, or leave within ``patience`` seconds, by rank."""
    by_rank, end = {}, time.monotonic() + patience
    for rank in range(count):
        key = f"result of {rank}"
        while not store.check([key]) and time.monotonic() < end:
            time.sleep(0.02)
        if store.check([key]):
            by_rank[rank] = _get(store, key, GRACE)
    return by_rank


def _put(store: Store, key: str, result: Result) -> None:
    """Stores ``result`` without its traces in pieces, and ``key`` last, so that who finds ``key`` finds all of it."""
    text = _text(replace(result, trace={}, timeline=[]))
    pieces = [text[first : first + PIECE] for first in range(0, len(text), PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}, piece {number}", piece)
    store.set(key, str(len(pieces)))


def _get(store: Store, key: str, patience: float) -> Result:
    """Returns the result that was put under ``key``, or is within ``patience`` seconds. Raises ``RuntimeError`` if it
    is not."""
    store.wait([key], timedelta(seconds=patience))
    pieces = [store.get(f"{key}, piece {number}") for number in range(int(store.get(key)))]
    return Result.from_dict(json.loads(b"".join(pieces)))


def _text(result: Result) -> str:
    return json.dumps(result.to_dict(), allow_nan=False)


def merged(spec: RunSpec, by_rank: Mapping[int, Result]) -> Result:
    """The cell's result, merged from each rank's in ``by_rank``: ``samples`` of the slowest rank at each step,
    ``memory`` of the rank with the highest peak on its device, power of all devices together;
    ``parts["exchanged_bytes"]``: what the rank that sent most sent the others in each step. Traces and all else are
    rank 0's. ``environment.ranks``: a row for each."""
    cause = _cause(spec, by_rank)
    if cause is not None:
        outcome, reason, rank = cause
        first = by_rank.get(0) or by_rank[rank]
        lost = by_rank.get(rank, first)
        return replace(first, outcome=outcome, reason=reason, traceback=lost.traceback).with_facts(ranks=_rows(by_rank))
    ranks = [by_rank[rank] for rank in range(spec.gpus)]
    first, fullest = ranks[0], max(ranks, key=lambda result: result.memory.get("device_peak_bytes") or 0)
    power, crowd = _power(spec, ranks)
    warnings = [text for result in ranks for text in result.warnings]
    return replace(
        first, samples=_slowest(ranks, "samples"), warmup=_slowest(ranks, "warmup"), memory=fullest.memory,
        parts=_parts(ranks), power=power, warnings=[*dict.fromkeys(warnings), *crowd],
    ).with_facts(ranks=_rows(by_rank))  # fmt: skip


def _cause(spec: RunSpec, by_rank: Mapping[int, Result]) -> tuple[Outcome, str, int] | None:
    """(outcome, reason, rank) of what ended or spoilt the run, or None. A rank that ended only because it lost another
    one does not know the cause, so others are asked first."""
    bad = {rank: result for rank, result in by_rank.items() if result.outcome is not Outcome.OK}
    for kind in (Outcome.OOM, Outcome.FAILED, Outcome.TIMEOUT, Outcome.SKIPPED, Outcome.CONTAMINATED):
        for rank, result in sorted(bad.items()):
            if result.outcome is kind and not result.reason.startswith(GONE):
                alike = len({item.reason for item in by_rank.values()}) == 1 and len(by_rank) == spec.gpus
                named = alike or result.reason.startswith(f"rank {rank} ")
                return kind, result.reason if named else f"rank {rank}: {result.reason}", rank
    silent = [rank for rank in range(spec.gpus) if rank not in by_rank]
    if silent:
        return Outcome.FAILED, f"rank {silent[0]} is gone without a word", silent[0]
    if bad:
        rank = min(bad)
        return Outcome.FAILED, bad[rank].reason, rank
    for rank in range(1, spec.gpus):
        for name in ("loss", "projected_grad"):
            if by_rank[rank].samples.get(name) != by_rank[0].samples.get(name):
                return Outcome.FAILED, f"rank {rank} has another {name} than rank 0: they did not stay equal", rank
    return None


def _slowest(ranks: Sequence[Result], name: str) -> dict[str, list[float | None]]:
    """The first rank's samples, with the seconds of each step from the rank that was slowest in it."""
    rows: list[dict[str, list[float | None]]] = [getattr(rank, name) for rank in ranks]
    if "step_seconds" not in rows[0]:
        return rows[0]
    columns = zip(*(row["step_seconds"] for row in rows), strict=True)
    numbers = [[seconds for seconds in column if seconds is not None] for column in columns]
    return {**rows[0], "step_seconds": [max(column, default=None) for column in numbers]}


def _parts(ranks: Sequence[Result]) -> dict[str, list[float]]:
    """Returns, for each number, what its metric keeps of several ranks, else the largest, as of seconds and bytes."""
    kept = {metric.part: metric.ranks for metric in METRICS.builtin()}
    kept |= {name: METRICS.get(name).ranks for name in ranks[0].parts if METRICS.provider(name)}
    combined = {}
    for name, values in ranks[0].parts.items():
        columns = [rank.parts.get(name, []) for rank in ranks]
        if all(len(column) == len(values) for column in columns):
            combined[name] = [kept.get(name, max)(column) for column in zip(*columns, strict=True)]
    return combined


def _power(spec: RunSpec, ranks: Sequence[Result]) -> tuple[dict[str, Any], list[str]]:
    """Power of all devices together, and on a CPU a warning if processes other than the ranks kept cores busy."""
    power, size = dict(ranks[0].power), spec.gpus // spec.nodes
    counted = ranks[::size] if spec.device == "cpu" else ranks  # the ranks of a machine read the same CPUs' counters
    for name in ("energy_joules", "mean_power_watts"):
        values = [result.power.get(name) for result in counted]
        power[name] = None if None in values else sum(values)
    local = ranks[:size]  # rank 0's machine
    busy = [cores for result in local if (cores := result.power.get("own_cpu_cores")) is not None]
    others = ranks[0].power.get("other_cpu_cores")
    if others is None or len(busy) < len(local):
        return power, []
    power |= {"other_cpu_cores": max(0.0, others + busy[0] - sum(busy)), "own_cpu_cores": sum(busy)}
    return power, crowded(power["other_cpu_cores"]) if spec.device == "cpu" else []


def _rows(by_rank: Mapping[int, Result]) -> list[dict[str, Any]]:
    """A row for each rank: where it ran, and its peaks in bytes."""
    return [
        {"rank": rank, "node": rank // (result.spec.gpus // result.spec.nodes), "device": result.environment.device,
         "threads": result.environment.threads, "machine": result.environment.machine,
         **{name: result.memory[name] for name in _OF_RANKS if result.memory.get(name) is not None}}
        for rank, result in sorted(by_rank.items())
    ]  # fmt: skip


if __name__ == "__main__":
    main()
