"""Snapshots of named tensors: whole or not there, read back bit for bit, damage told in one line."""

from pathlib import Path

import pytest
import torch

from zobench.durable import snapshot
from zobench.durable.snapshot import SnapshotWeights
from zobench.engine.weights import checkpoint

TENSORS = {
    "a.weight": torch.randn(6, 3, generator=torch.Generator().manual_seed(1)),
    "b": torch.randn(5, generator=torch.Generator().manual_seed(2)).bfloat16(),
    "b#m": torch.randn(5, generator=torch.Generator().manual_seed(3)),
}


class Ones:
    """A source that fills everything with ones."""

    def fill(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        out.fill_(1)


def written(folder: Path, step: int = 4) -> Path:
    return snapshot.write_tensors(folder, step, TENSORS.items(), {"step": step})


def test_tensors_and_state_are_read_back_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 64)  # two shards
    path = written(tmp_path)
    assert len(list(path.glob("*.safetensors"))) == 2
    assert {name: value for name, value in snapshot.state(path).items() if name != "shards"} == {"step": 4}
    source = SnapshotWeights(path)
    assert set(source.names) == TENSORS.keys()
    for name, tensor in TENSORS.items():
        out = torch.empty_like(tensor)
        source.fill(name, out)
        assert torch.equal(out, tensor)


def test_what_is_not_in_it_comes_from_the_base(tmp_path: Path) -> None:
    path, out = written(tmp_path), torch.zeros(2)
    SnapshotWeights(path, Ones()).fill("frozen", out)
    assert out.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"snapshot-4` must hold frozen, but lacks it; remove it$"):
        SnapshotWeights(path).fill("frozen", out)


def test_a_write_that_fails_leaves_nothing_but_the_older_one(tmp_path: Path) -> None:
    written(tmp_path, 2)

    def broken() -> object:
        yield "a", torch.ones(2)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        snapshot.write_tensors(tmp_path, 4, broken(), {})  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot-2"]
    assert snapshot.steps(tmp_path) == [2]


def test_only_what_is_kept_stays(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        written(tmp_path, step)
    (tmp_path / ".snapshot-120.abcd.tmp").mkdir()
    (tmp_path / "model").mkdir()
    assert snapshot.steps(tmp_path) == [3, 20, 100]
    snapshot.prune(tmp_path, {20})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "snapshot-20"]


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"5"])
def test_a_damaged_state_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path)
    (path / snapshot.STATE).write_bytes(content)
    with pytest.raises(ValueError, match=r"snapshot-4` must be a whole snapshot, but is damaged \(.*\); remove it$"):
        snapshot.state(path)
