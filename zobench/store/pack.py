"""A store as one file that can be sent: its runs, checked, without host data; and the way back into a store."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zobench import models
from zobench.machine import files
from zobench.machine.anonymous import anonymous, without_paths
from zobench.result import Result
from zobench.result.repeats import number_of
from zobench.runspec import flat
from zobench.runspec.registries import METRICS
from zobench.store.files import Store, first_sweep, machine_of, text_of, without_place

ENDING = ".tar.gz"
_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_][A-Za-z0-9._-]{0,249}\.json")
_LARGEST, _MOST = 64 << 20, 1 << 30
"""Bytes of a run's file, and of all together: a small archive can hold much more than what it takes itself."""
_MANY, _NAME = 100_000, 64 << 10
"""Files of an archive, and bytes of the header of a long name, which tarfile reads whole."""
_HEADERS = 2 * _NAME
"""Bytes of an archive before a file of it: its header, that of its name, and what tarfile reads ahead."""
_FASTEST = 1.5
"""How much faster than the least time that its machine's own rates allow a step may be: rates are not that wrong."""
_FACTS, _SAYINGS = ("environment", "power", "evaluation"), ("reason", "warnings", "traceback")
"""What of a result has texts: zobench's own words, and what a program or a system has said."""


@dataclass(kw_only=True)
class Packed:
    """``runs``: how many are in the archive; ``left_out``: a line for each file that is not, and why."""

    runs: int = 0
    left_out: list[str] = field(default_factory=list)


def pack(root: Path, archive: Path) -> Packed:
    """Writes the runs of the store in ``root`` into ``archive``, those that can be read and believed.

    Paths, and the names of this machine and its user, are taken out of their texts. The same runs give the same bytes.
    Raises ``ValueError`` if there is none, ``OSError`` if it cannot be written.
    """
    store, done, data = Store(root), Packed(), io.BytesIO()
    results = store.runs()
    if not results:
        raise ValueError(f"`--pack` needs runs, but {root} has none that can be read; {first_sweep(root)}")
    done.left_out += store.problems
    with (
        gzip.GzipFile(fileobj=data, mode="wb", filename="", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as tar,
    ):
        for result in results:
            path = store.path(result.spec, machine_of(result), number_of(result))
            if why := doubt(result):
                done.left_out.append(f"{path}: {why}")
                continue
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            content = text_of(unnamed(result)).encode()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            done.runs += 1
    files.replace(archive, data.getvalue())
    return done


def doubt(result: Result) -> str:
    """Why ``result`` is nothing for others: it needs what they have not, or cannot be what its machine does with its
    spec. "" if it is.

    Who sends a run cannot leave out what it is judged by: one that ended ok must say how much memory its machine has,
    and have rates that give its step a least time. Where nothing can, rates are not asked for: a task, whose tokens are
    not counted and which `zobench finetune` stores without rates, and a model that is not known here.
    """
    share = METRICS.get("floor").of(result)
    limit, peak = result.environment.get("memory_limit_bytes"), result.memory.get("host_rss_peak_bytes") or 0
    unjudged = share is None and result.step_seconds and result.spec.task == "none" and models.is_known(result.spec)
    if result.is_ok and (unjudged or not isinstance(limit, int | float)):
        return "it lacks its machine's rates or memory, without which it cannot be judged; a sweep stores both"
    if named := places(without_place(result).spec.to_dict()):
        return f"its {named[0]} is a folder of the machine that ran it, where nobody else has it"
    if result.environment.get("planted_slowdown"):
        return "its steps were made longer on purpose, to test a comparison"
    if len(result.samples.get("step_seconds", [])) > result.spec.steps:
        return f"it has more than the {result.spec.steps} steps that were asked for"
    if share is not None and share > _FASTEST:
        return f"its step takes 1/{share:.1f} of the least time that its machine's rates allow"
    if isinstance(limit, int | float) and peak > limit:
        return "its process took more memory than its machine has"
    return ""


def places(spec: Mapping[str, Any]) -> list[str]:
    """The fields and options of ``spec``, as a table, that are folders or files of one machine."""
    return [name for name, text in flat(spec).items() if _is_place(text)]


def _is_place(text: Any) -> bool:
    return isinstance(text, str) and (text.startswith(("~", ".")) or Path(text).is_absolute())


def unnamed(result: Result) -> Result:
    """``result`` without what its texts tell of this machine and its user."""
    said = {name: anonymous(getattr(result, name)) for name in _SAYINGS}
    return _of_any_gpu(without_place(without_paths_in(replace(result, **said))))


def _of_any_gpu(result: Result) -> Result:
    """``result`` without the number by which its very GPU is known."""
    gpu = result.environment.get("gpu")
    if not isinstance(gpu, dict) or "uuid" not in gpu:
        return result
    kept = {name: value for name, value in gpu.items() if name != "uuid"}
    return replace(result, environment={**result.environment, "gpu": kept})


def without_paths_in(result: Result) -> Result:
    """``result`` with the last name of each path in its texts in place of the path."""
    texts = {name: anonymous(getattr(result, name), without_paths) for name in (*_FACTS, *_SAYINGS)}
    return replace(result, **texts)


@contextlib.contextmanager
def opened(source: Path, problems: list[str]) -> Iterator[Store]:
    """The store in the folder ``source``, or the runs of an archive that :func:`pack` wrote; it may come from anyone.

    Of an archive only plain files are taken whose names are MACHINE/NAME.json; what is in them is checked as any result
    is read, and runs that are in doubt or tell of their host are left out, with a line each in ``problems``. A folder
    is one's own: its runs may tell of this host and be slow on purpose, and are only read. Raises ``ValueError`` for
    what is no such archive.
    """
    if not source.name.endswith(ENDING):
        store = Store(source)
        yield store
        problems += store.problems
        return
    with tempfile.TemporaryDirectory(prefix="zobench-") as folder:
        root, told = Path(folder), list[str]()
        _unpack(source, root)
        store = Store(root)
        for path in store.paths():
            result = store.read(path)
            if result is not None and (why := doubt(result) or _told_of_host(result)):
                told.append(f"{path}: {why}")
                path.unlink()
        yield store
        problems += [line.replace(folder, str(source)) for line in (*told, *store.problems)]


def _told_of_host(result: Result) -> str:
    plain = _of_any_gpu(without_place(without_paths_in(result))) == result
    return "" if plain else "it holds paths of a machine or the UUID of its GPU; pack it with zobench results --pack"


class _RefusedError(Exception):
    """What an archive must hold, and that this one does not."""

    @classmethod
    def name(cls, found: str) -> _RefusedError:
        """For a member that is no run's file."""
        return cls(f"files MACHINE/NAME.json alone, but has {found[:80]!r}")

    @classmethod
    def size(cls) -> _RefusedError:
        """For too many bytes or files."""
        return cls(f"at most {_MANY} runs of {_MOST >> 30} GiB in all, but has more")


class _Header(tarfile.TarInfo):
    """A header of a plain file, or of its long name; others are refused before anything of theirs is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        is_name = found.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME) and found.size <= _NAME
        if not (is_name or found.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            raise _RefusedError.name(found.name)
        return found


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


def _unpack(source: Path, root: Path) -> None:
    try:
        # tarfile's own gzip takes an archive that was cut off between two files for a whole one, and checks no sum
        with gzip.open(source) as squeezed:
            counted = _Counted(squeezed)
            _take(counted, root)
            counted.until = _MOST
            while counted.read(1 << 20):  # its end has the sum of all
                pass
    except _RefusedError as error:
        raise ValueError(f"{source} must hold {error}") from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise ValueError(f"{source} must be an archive of `zobench results --pack`, but {error}") from error


def _take(counted: _Counted, root: Path) -> None:
    """Writes the files of an archive under ``root``. Raises :class:`_RefusedError` for others, and for too large ones,
    before they are read; ``ValueError`` or ``TarError`` for what is no archive."""
    with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Header) as tar:
        for count, member in enumerate(tar, 1):
            if not _MEMBER.fullmatch(member.name):
                raise _RefusedError.name(member.name)
            if not 0 <= member.size <= _LARGEST or count > _MANY:
                raise _RefusedError.size()
            counted.until = counted.count + member.size + _HEADERS
            content = tar.extractfile(member)
            assert content is not None  # of a regular file there is one
            path = root / member.name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.read())
