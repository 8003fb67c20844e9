"""Merges the results of a cell's ranks into one: the slowest times, the highest memory peak, or why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zobench.measure.samples import crowded
from zobench.parallel.world import GONE
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.registries import METRICS

_OF_RANKS = (
    "device_peak_bytes", "device_reserved_peak_bytes", "device_process_peak_bytes", "host_rss_peak_bytes",
    "host_unique_bytes",
)  # fmt: skip


def merged(spec: RunSpec, by_rank: Mapping[int, Result]) -> Result:
    """The cell's result, merged from each rank's own in ``by_rank``.

    ``samples`` are of the slowest rank at each step, ``memory`` of the rank with the highest peak on its device, power
    of all devices together; ``parts["exchanged_bytes"]``: what the rank that sent most sent the others in each step, so
    that all had the same losses. Traces and all else are rank 0's. ``environment.ranks``: a row for each rank.
    """
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
    """(outcome, reason, rank) of what ended or spoilt the run, or None if nothing did.

    A rank that ended only because it lost another one does not know the cause, so others are asked first.
    """
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


def _slowest(ranks: Sequence[Result], which: str) -> dict[str, list[float | None]]:
    """The first rank's samples, with the seconds of each step from the rank that was slowest in it."""
    rows: list[dict[str, list[float | None]]] = [getattr(rank, which) for rank in ranks]
    if "step_seconds" not in rows[0]:
        return rows[0]
    columns = zip(*(row["step_seconds"] for row in rows), strict=True)
    numbers = [[seconds for seconds in column if seconds is not None] for column in columns]
    return {**rows[0], "step_seconds": [max(column, default=None) for column in numbers]}


def _parts(ranks: Sequence[Result]) -> dict[str, list[float]]:
    """Of each number what its metric keeps of several ranks, else the largest: seconds of the slowest rank, bytes of
    the one that sent most."""
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
