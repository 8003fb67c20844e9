"""The journal as a file: all that a run did, a few bytes per step; base weights and journal together are a checkpoint.

Two lines of text, then records of fixed size. Each record's checksum continues that of the record before it, so that
a record that was changed, lost or moved is detected. The records of a step (its directions, its updates, and last the
step itself) are one write. Only the last write may be torn, by a crash: its step then does not count.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zobench.engine import Entry
from zobench.engine.base import PassRecord
from zobench.machine.files import lock, writing
from zobench.machine.texts import json_of
from zobench.methods.base import Direction, Taken

if TYPE_CHECKING:
    from zobench.engine.interface import SteppingEngine
    from zobench.methods import Method

MAGIC = b"zobench journal 2\n"
_EARLIER = b"zobench journal 1\n"
"""1: updates only."""
_RECORD = struct.Struct("<B3xiQQddd")
"""Kind, a small number, step, a large number, three real ones: 48 bytes."""
_CHECK = struct.Struct("<I")
SIZE = _RECORD.size + _CHECK.size
"""Bytes of a record with its CRC-32."""
STEP, DIRECTION, ENTRY, EVALUATION, SUBSPACE, EXTRA = range(1, 7)
"""Kinds of records. A subspace is that of the updates of its step that follow it, an extra that of the one before."""
_WHOLE = -1
"""The part of a direction or an update that moves the whole model."""
SYNC_SECONDS = 5.0
"""Seconds between two waits for the disk, which a power loss may cost; a killed process loses nothing that was
written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationItem:
    """A look at dev after ``step`` steps: its loss and accuracy over ``count`` examples, in ``passes`` of the model.
    Of a task with two scores ``accuracy`` is the first and ``second`` the other."""

    step: int
    loss: float
    accuracy: float
    count: int
    passes: int
    second: float = 0.0
    entries: ClassVar[tuple[Entry, ...]] = ()

    def retrace(self, engine: SteppingEngine, method: Method) -> list[PassRecord]:
        """Returns what the evaluation did to the weights, as :meth:`zobench.methods.base.Taken.retrace`: passes without
        points."""
        return [PassRecord()] * self.passes


Item = Taken | EvaluationItem


class JournalError(OSError):
    """The journal could not be written, so that the run cannot go on."""


class JournalFile:
    """Appends to the journal in ``path``. ``items``: all that it holds; a torn end is cut off when it is opened.

    ``header``: JSON types that say whose it is: ``run``, ``base``. Raises ``ValueError`` if another process writes it,
    if it is another run's or began from another base, and for records that are damaged.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not lock(self._file, wait=False):
                raise ValueError(
                    f"`{path.parent}` must have one run at a time, but another process writes into it; name another "
                    "--out"
                )
            data = path.read_bytes()
            if is_begun(data):
                stored_header, self.items, self._marks = _parse(path, data)
                check_header(path, stored_header, header)
                self.cut(len(self.items))
            else:
                self._begin(_head(header))
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, head: bytes) -> None:
        self.items = []
        self._end = 0
        os.ftruncate(self._file, 0)
        self._write(head)
        self._marks = [(zlib.crc32(head[len(MAGIC) + 9 : -1]), self._end)]
        self.sync()

    def cut(self, count: int) -> None:
        """Keeps the first ``count`` items only: what a snapshot knows of a run that no journal can bring back."""
        del self.items[count:], self._marks[count + 1 :]
        self._end = self._marks[-1][1]
        os.ftruncate(self._file, self._end)
        self.sync()

    def append(self, *items: Item) -> None:
        """Adds items, in one write; on the disk within :data:`SYNC_SECONDS` of a later one, or after :meth:`sync`.

        Raises :class:`JournalError`, one line, where they cannot be written; what was there before stays whole.
        """
        data, marks = bytearray(), list[tuple[int, int]]()
        chain, start = self._marks[-1]
        for item in items:
            for body in _bodies(item):
                chain = zlib.crc32(body, chain)
                data += body + _CHECK.pack(chain)
            marks.append((chain, start + len(data)))
        try:
            self._write(bytes(data))
        except OSError as error:
            os.ftruncate(self._file, start)
            raise JournalError(
                f"`{self._path}` must take every step, but cannot be written ({error.strerror}); make room, and the "
                "same command goes on"
            ) from error
        self.items += items
        self._marks += marks
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def _write(self, data: bytes) -> None:
        """Writes all of ``data`` at the file's end: a disk that is nearly full takes some of it, and then fails."""
        done = 0
        with writing(self._path):
            while done < len(data):
                done += os.pwrite(self._file, data[done:], self._end + done)
        self._end += len(data)

    def sync(self) -> None:
        """Returns when everything is on the disk."""
        with writing(self._path):
            os.fsync(self._file)
        self._synced = time.monotonic()

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Another process may go on."""
        try:
            self.sync()
        finally:
            os.close(self._file)


def is_begun(data: bytes) -> bool:
    """Whether a journal's bytes have their head; without it, nothing happened before a crash."""
    return not MAGIC.startswith(data[: len(MAGIC)]) or data.count(b"\n", 0, 1 << 20) > 1


def begun(path: Path) -> dict[str, Any] | None:
    """The header of a journal; None where there is none, or a crash came before its head was whole."""
    return read(path)[0] if path.exists() and is_begun(path.read_bytes()) else None


def read(path: Path) -> tuple[dict[str, Any], list[Item]]:
    """(the header, every whole step and evaluation in order).

    Raises ``ValueError``, one line, for a file that is no journal and for damage anywhere but at its end.
    """
    header, items, _ = _parse(path, path.read_bytes())
    return header, items


def check_header(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if a journal's header is that of another run, or of the same run on another base."""
    if stored["run"] != wanted["run"]:
        raise ValueError(
            f"`{path.parent}` must be a new folder or this run's own, but holds the run {stored['run']}, and this is "
            f"{wanted['run']}; name another --out"
        )
    if stored["base"] != wanted["base"]:
        raise ValueError(
            f"`{path}` must go with the weights that it began from ({stored['base']}), but the weights are others "
            f"({wanted['base']}); give those, or name another --out"
        )


def _head(header: Mapping[str, Any]) -> bytes:
    line = json.dumps(dict(header), sort_keys=True).encode()
    return MAGIC + b"%08x %s\n" % (zlib.crc32(line), line)


def _parse(path: Path, data: bytes) -> tuple[dict[str, Any], list[Item], list[tuple[int, int]]]:
    """The header, the items, and (checksum, where it ends) of the header and of each item."""
    line = data[len(MAGIC) :].split(b"\n", 1)
    checksum, _, text = line[0].partition(b" ")
    chain = zlib.crc32(text)
    if data.startswith(_EARLIER):
        raise ValueError(f"`{path}` must be of this version, but is of an earlier one; remove {path.parent}")
    if not data.startswith(MAGIC) or len(line) < 2 or checksum != b"%08x" % chain:
        raise ValueError(f"`{path}` must be a journal of zobench, but its head is damaged; {_remedy(path)}")
    header = _header(path, text)
    items: list[Item] = []
    waiting: list[tuple[Any, ...]] = []
    rest = line[1]
    begin = len(data) - len(rest)
    marks = [(chain, begin)]
    for start in range(0, len(rest) - SIZE + 1, SIZE):
        body, check = rest[start : start + _RECORD.size], rest[start + _RECORD.size : start + SIZE]
        chain = zlib.crc32(body, chain)
        if check != _CHECK.pack(chain):
            if start + SIZE < len(rest) and rest[start:].strip(b"\0"):  # else it is what a crash leaves of a file's end
                raise ValueError(
                    f"`{path}` must hold whole records, but number {start // SIZE + 1} of {len(rest) // SIZE} is "
                    f"damaged; {_remedy(path)}"
                )
            break
        waiting.append(_RECORD.unpack(body))
        if waiting[-1][0] in (STEP, EVALUATION):
            items.append(_item(waiting))
            marks.append((chain, begin + start + SIZE))
            waiting = []
    return header, items, marks


def _header(path: Path, text: bytes) -> dict[str, Any]:
    """Returns the header in the second line. Raises ``ValueError``, one line, where it does not say whose the journal
    is."""
    values = json_of(text)
    whose = [values.get(key) for key in ("run", "base")] if isinstance(values, dict) else [None]
    if not all(isinstance(word, str) and word.isprintable() for word in whose):
        raise ValueError(f"`{path}` must say whose run it is and on which base, but does not; {_remedy(path)}")
    return dict(values)


def _remedy(path: Path) -> str:
    return f"take another copy, or remove {path.parent} to begin anew"


def _bodies(item: Item) -> list[bytes]:
    """Records without their checksums; the one that says that all are there comes last."""
    pack = _RECORD.pack
    if isinstance(item, EvaluationItem):
        return [pack(EVALUATION, item.passes, item.step, item.count, item.loss, item.accuracy, item.second)]
    moved = zip(item.directions, item.gradients, strict=True)
    return [
        *(pack(DIRECTION, _number(part), item.step, seed, g, 0.0, 0.0) for (seed, part), g in moved),
        *_updates(item.entries),
        pack(STEP, item.applied, item.step, item.passes, item.loss, item.lr, item.seconds),
    ]


def _updates(entries: Sequence[Entry]) -> Iterator[bytes]:
    """The records of updates, and one before the first update of each subspace that several steps share."""
    subspace: int | None = None
    for e in entries:
        if e.subspace != subspace:
            subspace = e.subspace
            yield _RECORD.pack(SUBSPACE, subspace is not None, e.step, subspace or 0, 0.0, 0.0, 0.0)
        yield _RECORD.pack(ENTRY, _number(e.part), e.step, e.seed, e.g, e.lr, e.weight_decay)
        if e.extra:
            yield _RECORD.pack(EXTRA, _number(e.part), e.step, e.seed, e.extra, 0.0, 0.0)


def _read_updates(records: Iterable[tuple[Any, ...]]) -> Iterator[Entry]:
    """The inverse of :func:`_updates`, among other records, of which one comes last."""
    subspace: int | None = None
    for (kind, small, step, seed, g, lr, decay), after in itertools.pairwise(records):
        if kind == SUBSPACE:
            subspace = seed if small else None
        elif kind == ENTRY:
            extra = after[4] if after[0] == EXTRA else 0.0
            yield Entry(
                step=step, seed=seed, g=g, lr=lr, weight_decay=decay, part=_part(small), subspace=subspace, extra=extra
            )


def _item(records: Sequence[tuple[Any, ...]]) -> Item:
    *parts, (kind, small, step, large, first, second, third) = records
    if kind == EVALUATION:
        return EvaluationItem(step=step, loss=first, accuracy=second, count=large, passes=small, second=third)
    directions: list[Direction] = [(seed, _part(part)) for kind, part, _, seed, *_ in parts if kind == DIRECTION]
    return Taken(
        step=step, loss=first, lr=second, seconds=third, applied=bool(small), passes=large,
        directions=tuple(directions), gradients=tuple(row[4] for row in parts if row[0] == DIRECTION),
        entries=tuple(_read_updates(records)),
    )  # fmt: skip


def _number(part: int | None) -> int:
    return _WHOLE if part is None else part


def _part(number: int) -> int | None:
    return None if number == _WHOLE else number
