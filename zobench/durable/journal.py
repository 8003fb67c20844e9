"""The journal as a file: every update of a run, a few bytes each; base weights and journal together are a checkpoint.

Two lines of text, then records of fixed size. Each record's checksum continues that of the record before it, so that
one that was changed, lost or moved is found. Only the last may be torn, as a crash leaves it: it then does not count.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from zobench.engine import Entry

MAGIC = b"zobench journal 1\n"
_RECORD = struct.Struct("<QQdddi")
"""Step, seed, g, lr, weight decay, part: 44 bytes."""
_CHECK = struct.Struct("<I")
SIZE = _RECORD.size + _CHECK.size
"""Bytes of a record with its CRC-32."""
_WHOLE = -1
"""The part of an update that moves the whole model."""


class JournalFile:
    """Appends to the journal in ``path``, of which the first ``keep`` records stay and the rest goes.

    ``header``: JSON types that name the base (which run, model, dtype). Raises ``ValueError`` if another process writes
    it, and for records that are damaged, or fewer than ``keep``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], keep: int = 0) -> None:
        self._file = path.open("r+b" if path.exists() else "w+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(
                f"`{path.parent}` must have one run at a time, but another process writes into it; name another --out"
            ) from None
        try:
            self._chain = self._begin(path, header, keep)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, path: Path, header: Mapping[str, Any], keep: int) -> int:
        """Leaves the file at its end, with ``keep`` records; returns the last checksum."""
        if not keep:
            line = json.dumps(dict(header), sort_keys=True).encode()
            chain = zlib.crc32(line)
            self._file.write(MAGIC + b"%08x %s\n" % (chain, line))
        else:
            _, entries, chains, start = _parse(path, self._file.read())
            if len(entries) < keep:
                raise ValueError(
                    f"`{path}` must hold {keep} updates, but holds {len(entries)}; remove {path.parent} to begin anew"
                )
            chain = chains[keep - 1]
            self._file.seek(start + keep * SIZE)
        self._file.truncate()
        self.sync()
        return chain

    def append(self, entries: Iterable[Entry]) -> None:
        """Adds the entries; they are on the disk after :meth:`sync`."""
        for entry in entries:
            body = _pack(entry)
            self._chain = zlib.crc32(body, self._chain)
            self._file.write(body + _CHECK.pack(self._chain))

    def sync(self) -> None:
        """Returns when everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Another process may go on."""
        self._file.close()


def read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """(the header, every whole entry in order).

    Raises ``ValueError``, one line, for a file that is no journal and for damage anywhere but in the last record.
    """
    header, entries, *_ = _parse(path, path.read_bytes())
    return header, entries


def _parse(path: Path, data: bytes) -> tuple[dict[str, Any], list[Entry], list[int], int]:
    """The header, the entries, each one's checksum, and where the first begins."""
    line = data[len(MAGIC) :].split(b"\n", 1)
    told, _, text = line[0].partition(b" ")
    chain = zlib.crc32(text)
    if not data.startswith(MAGIC) or len(line) < 2 or told != b"%08x" % chain:
        raise ValueError(f"`{path}` must be a journal of zobench, but its head is damaged; take another copy")
    entries, chains, rest = [], [], line[1]
    for start in range(0, len(rest) - SIZE + 1, SIZE):
        body, check = rest[start : start + _RECORD.size], rest[start + _RECORD.size : start + SIZE]
        chain = zlib.crc32(body, chain)
        if check != _CHECK.pack(chain):
            if start + SIZE < len(rest):
                count = len(rest) // SIZE
                raise ValueError(
                    f"`{path}` must hold whole records, but number {start // SIZE + 1} of {count} is damaged; "
                    "take another copy"
                )
            break
        entries.append(_unpack(body))
        chains.append(chain)
    return json.loads(text), entries, chains, len(data) - len(rest)


def _pack(entry: Entry) -> bytes:
    part = _WHOLE if entry.part is None else entry.part
    return _RECORD.pack(entry.step, entry.seed, entry.g, entry.lr, entry.weight_decay, part)


def _unpack(body: bytes) -> Entry:
    step, seed, g, lr, weight_decay, part = _RECORD.unpack(body)
    return Entry(step=step, seed=seed, g=g, lr=lr, weight_decay=weight_decay, part=None if part == _WHOLE else part)
