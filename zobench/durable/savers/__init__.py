"""Checkpoints of a run beside its steps: with the run held, in the paper's two halves, or as bases for a journal.

``sync`` (:class:`SyncSaver`) holds the run until all is on the disk; ``async`` (:class:`HalvesSaver`) is the scheme of
ZO-Offloading (ICLR'25, section 5.5); ``journal`` (:class:`JournalSaver`) saves units at different steps.
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
