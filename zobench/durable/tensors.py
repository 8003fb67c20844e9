"""Snapshots of tensors by name, for methods that backpropagate: all that such a run trains and its optimizer's state.

``snapshot-N`` holds them after N steps, as safetensors, and beside them ``state.json``: whose run it is, and what else
it has come to. The folder is written atomically.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zobench.durable import snapshot
from zobench.durable.snapshot import STATE, checksum, keys_of, path_of, write_state
from zobench.engine.weights.checkpoint import shards
from zobench.machine.files import sync, writing
from zobench.models.weights import Weights


def write(folder: Path, step: int, tensors: Iterable[tuple[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Makes ``folder/snapshot-step`` of (name, CPU tensor) pairs and JSON types.

    A snapshot of that step that is already there holds the same tensors: only its state is renewed.
    """
    path = path_of(folder, step)
    if path.exists():
        write_state(path, {**state, "shards": snapshot.state(path)["shards"]})
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
        write_state(temporary, {**state, "shards": facts})
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
        snapshot.check(path, snapshot.state(path))
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
