"""Checkpoints of a run beside its steps: with the run held, in the paper's two halves, or as bases for a journal.

``sync`` holds the run until all is on the disk. ``async`` is ZO-Offloading's scheme (ICLR'25, section 5.5): the half of
the model that a step is through with is copied, then saved, while the other half is computed. ``journal`` copies a
group of units at a time, those first that the next step needs last, and the journal brings each unit up to date: so the
copy is small, and what waits for it is hardly ever needed meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zobench.durable.savers.background import HalvesSaver, JournalSaver
from zobench.durable.savers.base import Saved as Saved
from zobench.durable.savers.base import Saver as Saver
from zobench.durable.savers.base import SyncSaver, TensorSaver
from zobench.durable.savers.base import Target as Target

if TYPE_CHECKING:
    from zobench.engine.interface import TunedEngine


KINDS: dict[str, type[SyncSaver | HalvesSaver | JournalSaver]] = {
    "sync": SyncSaver,
    "async": HalvesSaver,
    "journal": JournalSaver,
}


@contextlib.contextmanager
def saving(kind: str, engine: TunedEngine, target: Target) -> Iterator[Saver]:
    """The saver of ``RunSpec.checkpoint`` "sync", "async" or "journal" for ``engine``, or the saver of named tensors
    where no journal has the changes of its weights. It is closed at the end; after an error without finishing what is
    under way."""
    saver: Saver = TensorSaver(engine, target) if engine.local is None else KINDS[kind](engine.local, target)
    try:
        yield saver
    except BaseException:
        saver.close(finish=False)
        raise
    saver.close()
