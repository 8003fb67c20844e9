"""Snapshots of weights at rest: sharded safetensors with checksums, in a folder that is written atomically.

``snapshot-N`` holds bytes of units (:func:`zobench.engine.Engine.read`) as tensors ``UNIT@FIRST`` of uint8, in shards
``RANK-00001.safetensors``, and ``state.json``: each shard's size and checksum, how far each unit had come, and whose
run it is. Units may be saved after different steps: the journal brings each one up to date. With a method that
backpropagates it holds tensors by name (:func:`write_tensors`): all that is trained, and the optimizer's state.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from zobench.engine.base import Position
from zobench.engine.weights.checkpoint import shards
from zobench.machine.files import forget, replace, sync, writing
from zobench.machine.texts import json_of
from zobench.models.weights import Weights

SHARD_BYTES = 512 << 20
STATE = "state.json"
WAIT = 600.0
"""Seconds that the leader waits for the other ranks' shards."""
_NAME = re.compile(r"snapshot-(\d+)")
_PIECE = 8 << 20
"""Bytes that are hashed and written at once: they stay in the processor's cache between the two."""
_HEAD = 64 << 10
"""Bytes before a shard's tensors: its header grows with them, so its place is kept."""
_CHECKSUM = "xxh3_128"


def path_of(folder: Path, step: int) -> Path:
    """The path of the snapshot after ``step`` steps, whether it exists or not."""
    return folder / f"snapshot-{step}"


def steps(folder: Path) -> list[int]:
    """The numbers of steps after which there are snapshots, in rising order."""
    matches = (_NAME.fullmatch(path.name) for path in folder.glob("snapshot-*"))
    return sorted(int(match[1]) for match in matches if match)


def prune(folder: Path, keep: Collection[int]) -> None:
    """Removes all snapshots but those of the steps in ``keep``, and what an interrupted write left."""
    stale = [path_of(folder, step) for step in steps(folder) if step not in keep]
    for path in [*stale, *folder.glob(".snapshot-*.tmp")]:
        shutil.rmtree(path)


def state(path: Path) -> dict[str, Any]:
    """``state.json`` of a snapshot. Raises ``ValueError`` if it is not as it was written."""
    try:
        values: dict[str, Any] = json_of((path / STATE).read_bytes())
        if not isinstance(values, dict):
            raise ValueError(f"{STATE} holds no JSON object")
        if values.pop("sum", None) != _sum(values):
            raise ValueError(f"the checksum of {STATE} differs")
    except (OSError, ValueError) as error:
        raise ValueError(f"`{path}` must be a whole snapshot, but is damaged ({error}); remove it") from error
    return values


def write_state(folder: Path, values: Mapping[str, Any]) -> None:
    """Puts ``values``, JSON types, into ``folder`` as :func:`state` reads it, with a checksum."""
    values = json.loads(json.dumps(dict(values)))
    replace(folder / STATE, json.dumps({**values, "sum": _sum(values)}).encode())


def _sum(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(values, sort_keys=True).encode()).hexdigest()


def positions(path: Path) -> dict[str, Position]:
    """How far each unit of a snapshot had come. Raises ``ValueError`` if that cannot be read."""
    try:
        rows = {name: tuple(map(int, row)) for name, row in state(path)["positions"].items()}
        return {
            name: Position(passes=passes, applied=applied, part=part) for name, (passes, applied, part) in rows.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"`{path}` must be a snapshot of units, but says nothing of them; remove it") from error


def passes(path: Path) -> int:
    """Passes of the unit of a snapshot that had come the furthest: a journal must have at least as many."""
    return max((position.passes for position in positions(path).values()), default=0)


def to_json(positions: Mapping[str, Position]) -> dict[str, list[int]]:
    """Positions by the names of units, as ``state.json`` has them: [passes, applied, part]."""
    return {name: [p.passes, p.applied, p.part] for name, p in positions.items()}


class Writer:
    """Writes ``folder/snapshot-step`` from one thread; nothing is there before :meth:`finish` returns.

    Each of ``ranks`` may write shards of its own: with more than one, all give the same ``token``, new for each
    snapshot, and a rank that does not lead only waits for its own shards. The first waits for all of them, until
    ``given_up`` says that they will not come. Raises ``OSError`` where the disk is full: then call :meth:`abandon`.
    """

    def __init__(
        self, folder: Path, step: int, *, rank: int = 0, ranks: int = 1, token: str = "",
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        assert ranks == 1 or token, "ranks must agree on a token"
        self._path = path_of(folder, step)
        self._rank, self._ranks, self._given_up = rank, ranks, given_up
        self._temporary = folder / f".{self._path.name}.{token or secrets.token_hex(4)}.tmp"
        self._temporary.mkdir(exist_ok=ranks > 1)
        self._shards: dict[str, dict[str, Any]] = {}
        self._shard: _Shard | None = None
        self.written = 0

    def add(self, unit: str, first: int, data: Tensor) -> None:
        """Bytes of a unit from byte ``first`` on: uint8, on the CPU, contiguous; each byte of a unit at most once."""
        assert data.dtype == torch.uint8
        assert data.is_contiguous()
        name = f"{unit}@{first}"
        if self._shard is not None and self._shard.room < len(name) * 2 + 128:
            self._end_shard()
        if self._shard is None:
            self._shard = _Shard(self._temporary / f"{self._rank}-{len(self._shards) + 1:05d}.safetensors")
        self._shard.add(name, data.numpy().data)
        self.written += data.nbytes
        if self._shard.size >= SHARD_BYTES:
            self._end_shard()

    def finish(self, state: Mapping[str, Any]) -> Path:
        """Returns when all is on the disk and has its name.

        ``state``: JSON types; ``positions``, by the names of units (:func:`to_json`), and who reads it, ``run`` and
        ``base``. Ranks say the same. Raises ``TimeoutError`` where another rank's shards do not come.
        """
        self._end_shard()
        values = {"checksum": _CHECKSUM, "shards": self._shards, **state}
        if self._rank > 0:
            replace(self._temporary / f"{self._rank}.json", json.dumps(values).encode())
            return self._path
        for rank in range(1, self._ranks):
            values["shards"] = values["shards"] | self._of(rank, values["positions"])
        write_state(self._temporary, values)
        if self._path.exists():  # damaged, else nobody would make it again
            shutil.rmtree(self._path)
        os.rename(self._temporary, self._path)
        sync(self._path.parent)
        return self._path

    def abandon(self) -> None:
        """Leaves nothing of it; the disk may be full."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None
        shutil.rmtree(self._temporary, ignore_errors=True)  # what stopped the write is the error worth reporting

    def _end_shard(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            self._shards[shard.path.name] = shard.end()

    def _of(self, rank: int, positions: Mapping[str, Any]) -> dict[str, Any]:
        """The shards of another rank, when they are all on the disk."""
        path, end = self._temporary / f"{rank}.json", time.monotonic() + WAIT
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"the shards of rank {rank} did not come within {WAIT:g} s")
            if self._given_up() or not self._temporary.exists():
                raise FileNotFoundError(f"rank {rank} gave its shards up")
            time.sleep(0.01)
        values = json.loads(path.read_text())
        assert values["positions"] == positions, "ranks cut at different passes"
        path.unlink()
        return dict(values["shards"])


class _Shard:
    """A file of safetensors that grows: tensors first, then its header, in the place kept for it, padded by spaces."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self._file = path.open("wb", buffering=0)
        self._file.seek(_HEAD)
        self._entries: dict[str, Any] = {}
        self.room = _HEAD - 64
        self._sum = xxhash.xxh3_128()

    def add(self, name: str, data: memoryview) -> None:
        self._entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [self.size, self.size + len(data)]}
        self.room -= len(json.dumps({name: self._entries[name]}))
        for first in range(0, len(data), _PIECE):
            piece = data[first : first + _PIECE]
            self._sum.update(piece)
            self._write(piece)
        self.size += len(data)

    def end(self) -> dict[str, Any]:
        """Returns when the file is on the disk: its size, and the checksum of its tensors followed by its head."""
        head = json.dumps(self._entries).encode()
        head = (_HEAD - 8).to_bytes(8, "little") + head.ljust(_HEAD - 8)
        assert len(head) == _HEAD
        self._sum.update(head)
        self._file.seek(0)
        self._write(memoryview(head))
        os.fsync(self._file.fileno())
        forget(self._file.fileno())
        self.close()
        return {"bytes": _HEAD + self.size, "sum": self._sum.hexdigest()}

    def close(self) -> None:
        self._file.close()

    def _write(self, data: memoryview) -> None:
        """Writes all of ``data`` or raises the error: a disk that is nearly full takes some of it, then fails."""
        while data:
            data = data[self._file.write(data) or 0 :]


class SnapshotStart:
    """Weights at rest that a snapshot holds: a :class:`zobench.engine.interface.Start`.

    Raises ``ValueError``, one line that names the file, if anything in it is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.state = path, state(path)
        self._positions = positions(path)
        try:
            shards = check(path, self.state)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"`{path}` must be a snapshot of units, but names no shards; remove it") from error
        self._where: dict[str, list[tuple[int, Path, str]]] = {}
        for name in shards:
            for key in keys_of(path / name):
                unit, _, first = key.rpartition("@")
                self._where.setdefault(unit, []).append((int(first), path / name, key))

    @torch.no_grad()
    def fill(self, unit: str, out: Tensor) -> bool:
        for first, file, key in self._where.get(unit, ()):
            with safe_open(file, framework="pt") as handle:  # each time: its pages count as this process's memory
                data = handle.get_tensor(key)
                out[first : first + len(data)].copy_(data)
        return unit in self._where

    def position(self, unit: str) -> Position:
        if unit not in self._positions:
            raise ValueError(f"`{self.path}` must hold {unit}, but lacks it; remove {self.path}")
        return self._positions[unit]


def check(path: Path, state: Mapping[str, Any]) -> list[str]:
    """The names of a snapshot's shards, as its ``state`` has them. Raises ``ValueError`` if one is not as it was."""
    shards = {name: (facts["bytes"], facts["sum"]) for name, facts in state["shards"].items()}
    if odd := [name for name in shards if Path(name).name != name or not name.isprintable()]:
        raise ValueError(f"`{path}` must name shards that lie in it, but names {odd[0]!r}; remove it")
    for name, facts in shards.items():
        _check(path / name, *facts)
    return list(shards)


def _check(file: Path, size: int, checksum_then: str) -> None:
    present = file.stat().st_size if file.is_file() else -1
    if present != size:
        have = f"has {present}" if present >= 0 else "is missing"
        raise ValueError(f"`{file}` must have {size} bytes, but {have}; remove {file.parent}")
    if checksum(file) != checksum_then:
        raise ValueError(f"`{file}` must be as it was written, but its checksum differs; remove {file.parent}")


def checksum(file: Path) -> str:
    """The checksum of a shard: of its tensors, then of the bytes before them that hold its header, as it is written."""
    digest = xxhash.xxh3_128()
    with file.open("rb", buffering=0) as handle:
        head = handle.read(_HEAD)
        while piece := handle.read(_PIECE):
            digest.update(piece)
        forget(handle.fileno())
    digest.update(head)
    return digest.hexdigest()


def keys_of(file: Path) -> list[str]:
    """The names of the tensors in a snapshot's file. Raises ``ValueError``, one line, if it is damaged."""
    try:
        with safe_open(file, framework="pt") as handle:
            return list(handle.keys())
    except SafetensorError as error:
        raise ValueError(
            f"`{file}` must be whole safetensors, but is damaged ({error}); remove {file.parent}"
        ) from error


def write_tensors(folder: Path, step: int, tensors: Iterable[tuple[str, Tensor]], values: Mapping[str, Any]) -> Path:
    """Makes ``folder/snapshot-step`` of (name, CPU tensor) pairs and JSON types.

    A snapshot of that step that is already there holds the same tensors: only its state is renewed.
    """
    path = path_of(folder, step)
    if path.exists():
        write_state(path, {**values, "shards": state(path)["shards"]})
        return path
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        facts = {}
        for number, shard in enumerate(shards(tensors)):
            file = temporary / f"{number + 1:05d}.safetensors"
            with writing(file):
                save_file(shard, file)
            sync(file)
            facts[file.name] = {"bytes": file.stat().st_size, "sum": checksum(file)}
        write_state(temporary, {**values, "shards": facts})
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # what stopped the write is the error worth reporting
        raise
    sync(folder)
    return path


class SnapshotWeights(Weights):
    """The tensors of a snapshot by name, also those of an optimizer's state; ``base`` gives all that are not there.

    Raises ``ValueError`` if there is no snapshot, for which ``base`` would silently stand, or it is not as it was
    written.
    """

    def __init__(self, path: Path, base: Weights | None = None) -> None:
        if not (path / STATE).is_file():
            raise ValueError(f"`{path}` must be a whole snapshot, but is none; name another folder to begin anew")
        self._path, self._base = path, base
        check(path, state(path))
        self._where = {name: file for file in sorted(path.glob("*.safetensors")) for name in keys_of(file)}

    @property
    def names(self) -> Collection[str]:
        """The names of the tensors in the snapshot; an optimizer's state is called ``parameter#state``."""
        return self._where.keys()

    @torch.no_grad()
    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        if name in self._where:
            out.copy_(_rows(self._where[name], name, first, out.shape[0] if out.dim() else 1))
        elif self._base is not None:
            self._base.fill(name, out, first)
        else:
            raise ValueError(f"`{self._path}` must hold {name}, but lacks it; remove it")


def _rows(file: Path, name: str, first: int, count: int) -> Tensor:
    """Some rows of a tensor. The file is opened each time: pages read through an open handle count as this process's
    memory."""
    with safe_open(file, framework="pt") as handle:
        part = handle.get_slice(name)
        return torch.as_tensor(part[first : first + count] if part.get_shape() else handle.get_tensor(name))
