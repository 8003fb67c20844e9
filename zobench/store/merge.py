"""Merges stores, or archives of them, which may come from anyone: every readable run ends up in one folder, and of two
runs of a cell the better one."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zobench.result import Result
from zobench.result.repeats import number_of
from zobench.store.files import Store, machine_of, opened
from zobench.store.pack import ENDING, unfit
from zobench.store.reading import LARGEST, parsed
from zobench.store.sendable import sendable

_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_][A-Za-z0-9._-]{0,249}\.json")
_MOST, _MANY = 256 << 20, 20_000
"""Bytes and files of an archive: a small one can hold much more than what it takes itself."""
_NAME = 64 << 10
"""Bytes of the header of a long name, which tarfile reads whole."""
_HEADERS = 2 * _NAME
"""Bytes of an archive before a file of it: its header, that of its name, and what tarfile reads ahead."""
_PROBLEMS = 10
"""Files of an archive that are no runs, after which the rest of it is not read."""


@dataclass(kw_only=True)
class Merged:
    """The outcome of a merge. ``choices``: one line for each cell that had two different runs."""

    added: int = 0
    equal: int = 0
    choices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path, *, keep_text: bool = False) -> Merged:
    """Puts the runs of ``sources``, machines' folders too, into the store ``into``, which may have some, in the
    current schema version.

    Repeats stay beside each other. Of two different runs of a cell on a machine, in the same round, the one that ended
    ok stays, then the one with more measured steps, then the one of the later round, as a round that was interrupted is
    run again, then the one that was there. Of archives texts are left out unless ``keep_text``. Files that cannot be
    read are left where they are, also in ``into``. Raises ``ValueError`` if ``into`` is one of the sources,
    ``StoreError`` or ``BusyError`` if it cannot be written.
    """
    for source in sources:
        if into.resolve() in (source.resolve(), opened(source)[0].root.resolve()):
            raise ValueError(f"`--merge-into` must be none of the merged folders, but got {str(into)!r}; name another")
    merged, target = Merged(), Store(into)
    with target.lock():
        for source in sources:
            store = None if source.name.endswith(ENDING) else opened(source)[0]
            for result in _runs_of(source, merged.problems, keep_text=keep_text):
                _add(result, source, target, merged, None if store is None else store.journal(result))
    return merged


def _add(result: Result, source: Path, target: Store, merged: Merged, journal: Path | None) -> None:
    key = result.spec, machine_of(result), number_of(result)
    target.problems = []
    stored = target.find(*key)
    if stored is None and not target.problems:
        target.save(result, journal)
        merged.added += 1
    elif stored is None:
        merged.problems += [f"{problem}; remove it to merge that of {source}" for problem in target.problems]
    elif result in (stored, sendable(stored)) or sendable(result) == stored:  # one of them may have been packed
        merged.equal += 1
        if journal is not None and journal.exists() and not target.journal(stored).exists():
            target.save(stored, journal)  # a merge was killed before it, or did not copy journals yet
    else:
        better = _worth(result) > _worth(stored)
        if better:
            target.save(result, journal)
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


def _runs_of(source: Path, problems: list[str], *, keep_text: bool = False) -> Iterator[Result]:
    """The runs in the folder ``source``, or in an archive that :func:`zobench.store.pack.pack` wrote.

    An archive is looked through to its end, and its sizes are checked, before the first run is parsed. Of each run
    only what may be sent is taken, texts only with ``keep_text``; what is no run or in doubt gets a line in
    ``problems``, and after ten of them the rest is not read. A folder is one's own: its runs are only read. Raises
    ``ValueError`` for what is no such archive.
    """
    if not source.name.endswith(ENDING):
        store, machine = opened(source)
        yield from store.each(machine)
        problems += store.problems
        return
    for _ in _members(source):
        pass  # _members checks each name and size as it passes, and the sum at the end
    store, cut_off = Store(source), list[str]()
    for name, content in _members(source):
        path = source / name
        result = store.believed(path, lambda content=content: parsed(content))  # type: ignore[misc]
        if result is not None and (why := unfit(result, keep_text)):
            store.add_problem(f"{path}: {why}")
        elif result is not None:
            yield sendable(result, keep_text)
        if len(store.problems) == _PROBLEMS:
            cut_off = [f"{source}: the rest of it, after {_PROBLEMS} files that are no runs"]
            break
    problems += [*store.problems, *cut_off]


class _RefusedError(Exception):
    """An archive lacks what it must hold, or holds what it must not."""

    @classmethod
    def name(cls, member: str) -> _RefusedError:
        return cls(f"files MACHINE/NAME.json alone, but has {member[:80]!r}")

    @classmethod
    def size(cls) -> _RefusedError:
        return cls(f"at most {_MANY:,} runs of {_MOST >> 20} MiB in all, but has more; send them in parts")


class _Header(tarfile.TarInfo):
    """A header of a plain file, or of its long name; others are refused before anything of theirs is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        is_name = header.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME) and header.size <= _NAME
        if not (is_name or header.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            raise _RefusedError.name(header.name)
        return header


class _Counted(io.RawIOBase):
    """An archive's bytes, counted as tarfile asks for them: of headers alone it would read any number.

    ``until``: how many may be read by now.
    """

    def __init__(self, squeezed: gzip.GzipFile) -> None:
        self._squeezed, self.count, self.until = squeezed, 0, _HEADERS

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes. Raises :class:`_RefusedError` for more than an archive may have here, or in all."""
        data = self._squeezed.read(size)
        self.count += len(data)
        if self.count > _MOST:
            raise _RefusedError.size()
        if self.count > self.until:
            raise _RefusedError(f"names of {_NAME >> 10} KiB at most, but has a longer header")
        return data


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of an archive. Raises ``ValueError``, one line, for what is no archive of runs."""
    try:
        # tarfile's own gzip takes an archive that was cut off between two files for a whole one, and checks no sum
        with gzip.open(source) as squeezed:
            counted = _Counted(squeezed)
            yield from _read(counted)
            counted.until = _MOST
            while counted.read(1 << 20):
                pass  # gzip compares the sum of all once it has read the end
    except _RefusedError as error:
        raise ValueError(f"{source} must hold {error}") from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise ValueError(
            f"{source} must be an archive of `zobench results --pack`, but {error}; send or pack it again"
        ) from error


def _read(counted: _Counted) -> Iterator[tuple[str, bytes]]:
    """The files of an archive. Raises :class:`_RefusedError` for others, and for too large ones, before they are read;
    ``ValueError`` or ``TarError`` for what is no archive."""
    with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Header) as tar:
        for count, member in enumerate(tar, 1):
            if not _MEMBER.fullmatch(member.name):
                raise _RefusedError.name(member.name)
            if not 0 <= member.size <= LARGEST or count > _MANY:
                raise _RefusedError.size()
            counted.until = counted.count + member.size + _HEADERS
            content = tar.extractfile(member)
            assert content is not None  # of a regular file there is one
            yield member.name, content.read()
