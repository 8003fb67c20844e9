"""Resuming a run: an engine and its method, brought from a snapshot or from the base to where the journal ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zobench.durable import snapshot
from zobench.durable.journal import Item
from zobench.durable.snapshot import SnapshotStart, passes
from zobench.engine.base import PassRecord
from zobench.engine.interface import LocalEngine, TunedEngine
from zobench.methods import Method


def newest(
    folder: Path, header: Mapping[str, Any], items: Sequence[Item], say: Callable[[str], None]
) -> SnapshotStart | None:
    """The newest snapshot in ``folder`` from which a run can come to the end of ``items``, or None for its base.

    ``say`` gets a line for each one that is left out although it was to be used, and why: damage, or that it is not of
    the run and base of the journal's ``header``.
    """
    for step in reversed(snapshot.steps(folder)):
        path = snapshot.path_of(folder, step)
        try:
            if passes(path) > sum(item.passes for item in items):
                continue
            start = SnapshotStart(path)
        except ValueError as error:
            say(f"warning: a snapshot is left out: {error}")
            continue
        if all(start.state.get(key) == header[key] for key in ("run", "base")):
            return start
        say(f"warning: a snapshot is left out: `{path}` is another run's; remove it")
    return None


def pass_records(engine: TunedEngine, method: Method, items: Iterable[Item]) -> list[PassRecord]:
    """Returns the passes that the journal's ``items`` made over the weights; the method, which was just made, is then
    as after them.

    Raises ``ValueError`` if they are of another run, or of a version whose steps were others.
    """
    records: list[PassRecord] = []
    count = 0
    for item in items:
        records += _passes(item.retrace(engine, method), local(engine).config.accumulate)
        count += item.passes
        if len(records) != count:
            raise ValueError(
                f"a journal must be of this version, but its step {item.step} came to {count} passes over the model, "
                f"here {len(records)}; remove its folder to begin anew"
            )
    return records


def _passes(records: Iterable[PassRecord], micro_batches: int) -> Iterator[PassRecord]:
    """A record for each pass: where points are visited once for each micro-batch, entries follow the last of them."""
    for record in records:
        if record.points:
            yield from [replace(record, entries=())] * (micro_batches - 1)
        yield record


def bring(engine: TunedEngine, method: Method, items: Iterable[Item], start: SnapshotStart | None) -> None:
    """Brings an engine built from ``start``, or from its base, and its method to the end of ``items``, bit for bit."""
    local(engine).retrace(pass_records(engine, method, items), start)


def local(engine: TunedEngine) -> LocalEngine:
    """This rank's own engine. Raises ``ValueError`` where weights do not lie in units, whose changes a journal has."""
    if engine.local is None:
        raise ValueError(f"a journal tells the weights of an Engine, but got {type(engine).__name__}; build that")
    return engine.local
