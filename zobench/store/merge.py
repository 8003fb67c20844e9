"""Merges stores: every readable run ends up in one folder, and of two runs of a cell the better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zobench.result import Result
from zobench.result.repeats import number_of
from zobench.store import Store, machine_of
from zobench.store.sendable import sendable
from zobench.store.unpack import runs_of


@dataclass(kw_only=True)
class Merged:
    """What a merge came to. ``choices``: one line for each cell that had two different runs."""

    added: int = 0
    equal: int = 0
    choices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path, *, keep_text: bool = False) -> Merged:
    """Puts the runs of ``sources`` into the store ``into``, which may have some, in the current schema version.

    Repeats stay beside each other. Of two different runs of a cell on a machine, in the same round, the one that ended
    ok stays, then the one with more measured steps, then the one of the later round, as a round that was interrupted is
    run again, then the one that was there. Of archives texts are left out unless ``keep_text``. Files that cannot be
    read are left where they are, also in ``into``. Raises ``ValueError`` if ``into`` is one of the sources,
    ``StoreError`` or ``BusyError`` if it cannot be written.
    """
    for source in sources:
        if source.resolve() == into.resolve():
            raise ValueError(f"`--merge-into` must be none of the merged folders, but got {str(into)!r}; name another")
    merged, target = Merged(), Store(into)
    with target.lock():
        for source in sources:
            for result in runs_of(source, merged.problems, keep_text=keep_text):
                _add(result, source, target, merged)
    return merged


def _add(result: Result, source: Path, target: Store, merged: Merged) -> None:
    key = result.spec, machine_of(result), number_of(result)
    if not target.has(*key):
        target.save(result)
        merged.added += 1
        return
    target.problems = []
    stored = target.find(*key)
    if stored is None:
        merged.problems += [f"{problem}; remove it to merge that of {source}" for problem in target.problems]
    elif result in (stored, sendable(stored)):
        merged.equal += 1
    else:
        better = _worth(result) > _worth(stored)
        if better:
            target.save(result)
        kept, left = (result, stored) if better else (stored, result)
        places = (source, target.root) if better else (target.root, source)
        merged.choices.append(
            f"{result.spec.label} on {machine_of(result)}: kept that of {places[0]} ({_summary(kept)}), "
            f"not that of {places[1]} ({_summary(left)})"
        )


def _worth(result: Result) -> tuple[bool, int, float]:
    """Steps that were found to be warm-up count: else the cells of one round could come from two stores."""
    steps = len(result.measured_seconds) + (result.environment.warm_up_detected or 0)
    return result.is_ok, steps, result.round.began if result.round else 0.0


def _summary(result: Result) -> str:
    return f"{result.outcome}, {len(result.measured_seconds)} steps"
