"""Snapshots of units: whole or not there, whoever writes them; what is not as it was written is named."""

import errno
import os
import re
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.watched import before
from zobench.durable import replay, snapshot
from zobench.durable.snapshot import SnapshotStart, SnapshotWeights, Writer, steps, to_json
from zobench.engine.base import Position

POSITIONS = {"a": Position(passes=5, applied=4, part=0), "b.c": Position(passes=7, applied=6, part=-1)}
STATE = {"run": "0123", "base": "sha256 1", "positions": to_json(POSITIONS)}


def data(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


A, B = data(3 * 4096), data(4096, 1)


def written(folder: Path, step: int = 4) -> Path:
    writer = Writer(folder, step)
    writer.add("a", 8192, A[8192:])  # in any order
    writer.add("b.c", 0, B)
    writer.add("a", 0, A[:8192])
    return writer.finish(STATE)


def test_units_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    path = written(tmp_path)
    start = SnapshotStart(path)
    for name, whole in (("a", A), ("b.c", B)):
        out = torch.full((5 * 4096,), 9, dtype=torch.uint8)
        assert start.fill(name, out)
        assert torch.equal(out[: len(whole)], whole)
        assert (out[len(whole) :] == 9).all()
        assert start.position(name) == POSITIONS[name]
    assert start.state["run"] == "0123"
    assert snapshot.passes(path) == 7
    files = list(path.glob("*.safetensors"))
    assert [file.name for file in files] == ["0-00001.safetensors"]
    assert load_file(files[0]).keys() == {"a@0", "a@8192", "b.c@0"}  # files for anybody


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_all_is_on_the_disk_before_it_has_its_name_and_then_its_name(tmp_path, monkeypatch) -> None:
    done: list[str] = []
    name = lambda handle: Path(os.readlink(f"/proc/self/fd/{handle}")).name  # noqa: E731
    before(monkeypatch.setattr, os, "fsync", lambda handle: done.append(name(handle)))
    before(monkeypatch.setattr, os, "rename", lambda old, new: done.append("named"))
    written(tmp_path)
    assert done[-2:] == ["named", tmp_path.name]
    assert "0-00001.safetensors" in done[:-2]
    assert any(name.startswith(".state.json.") and name.endswith(".tmp") for name in done[:-2])
    assert done[-3].startswith(".snapshot-4.")  # the folder: the names of its files


def test_a_unit_that_is_as_it_was_is_not_in_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1)
    start = SnapshotStart(writer.finish(STATE))
    out = torch.zeros(4, dtype=torch.uint8)
    assert not start.fill("a", out)
    assert start.position("a") == POSITIONS["a"]
    with pytest.raises(ValueError, match=r"snapshot-1` must hold other, but lacks it; remove "):
        start.position("other")


@pytest.mark.parametrize("limit", ["bytes", "names"])
def test_shards_are_cut_by_size_and_by_the_room_of_their_heads(tmp_path, monkeypatch, limit) -> None:
    monkeypatch.setattr(snapshot, "SHARD_BYTES" if limit == "bytes" else "_HEAD", 8192 if limit == "bytes" else 1024)
    writer = Writer(tmp_path, 1)
    for number in range(20):
        writer.add(f"unit {number}", 0, data(4096, number))
    assert not list(tmp_path.glob("snapshot-*"))
    path = writer.finish(STATE)
    assert len(list(path.glob("*.safetensors"))) in ((10,) if limit == "bytes" else range(2, 10))
    start, out = SnapshotStart(path), torch.zeros(4096, dtype=torch.uint8)
    for number in range(20):
        assert start.fill(f"unit {number}", out)
        assert torch.equal(out, data(4096, number))


def test_ranks_write_one_snapshot_together(tmp_path: Path) -> None:
    ranks = [Writer(tmp_path, 4, rank=rank, ranks=3, token="t") for rank in range(3)]
    for rank, writer in enumerate(ranks):
        writer.add("a", 4096 * rank, A[4096 * rank :][:4096])
    for writer in reversed(ranks):  # the first comes last
        assert steps(tmp_path) == []
        path = writer.finish(STATE)
    assert sorted(file.name for file in path.iterdir()) == [*(f"{r}-00001.safetensors" for r in range(3)), "state.json"]
    out = torch.zeros_like(A)
    assert SnapshotStart(path).fill("a", out)
    assert torch.equal(out, A)


def test_the_first_rank_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "WAIT", 0.02)
    first = Writer(tmp_path, 4, rank=0, ranks=2, token="t")
    with pytest.raises(TimeoutError, match=r"^the shards of rank 1 did not come within 0.02 s$"):
        first.finish(STATE)
    Writer(tmp_path, 4, rank=1, ranks=2, token="t").abandon()
    with pytest.raises(FileNotFoundError, match="rank 1 gave its shards up"):
        first.finish(STATE)
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path)
    (path / "0-00001.safetensors").write_bytes(b"torn")
    assert written(tmp_path) == path
    SnapshotStart(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot-4"]


@pytest.mark.parametrize("place", [0, -1])
def test_one_changed_bit_is_found_and_its_file_named(tmp_path: Path, place: int) -> None:
    file = written(tmp_path) / "0-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    message = f"`{file}` must be as it was written, but its checksum differs; remove {file.parent}"
    for reader in (SnapshotStart, SnapshotWeights):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            reader(file.parent)


def test_a_short_or_missing_shard_is_named(tmp_path: Path) -> None:
    file = written(tmp_path) / "0-00001.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 1)
    for reader in (SnapshotStart, SnapshotWeights):
        with pytest.raises(ValueError, match=rf"` must have {size} bytes, but has {size - 1}; remove {file.parent}$"):
            reader(file.parent)
    file.unlink()
    with pytest.raises(ValueError, match=rf"00001.safetensors` must have {size} bytes, but is missing; remove "):
        SnapshotStart(file.parent)


def test_a_changed_state_is_found(tmp_path: Path) -> None:
    file = written(tmp_path) / "state.json"
    text = file.read_text()
    for changed in (text.replace("[5, 4, 0]", "[6, 4, 0]"), text.replace('"bytes"', '"bites"'), "{}"):
        assert changed != text
        file.write_text(changed)
        with pytest.raises(ValueError, match=r"but is damaged \(the checksum of state.json differs\); remove it$"):
            SnapshotStart(file.parent)
        assert snapshot.steps(tmp_path) == [4]


@pytest.mark.parametrize(("changes", "taken"), [({}, True), ({"run": "another"}, False), ({"base": "another"}, False)])
def test_a_snapshot_of_another_run_or_base_is_left_out(tmp_path: Path, changes: dict[str, str], taken: bool) -> None:
    writer = Writer(tmp_path, 4)
    writer.add("a", 0, B)
    writer.finish({**STATE, "positions": to_json({"a": Position()}), **changes})
    said: list[str] = []
    start = replay.newest(tmp_path, {"run": STATE["run"], "base": STATE["base"]}, [], said.append)
    assert (start is not None, not said) == (taken, taken)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """The limit of a process on the size of its files fails as a full disk does: after some of the bytes."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            writer = Writer(tmp_path, 4)
            try:
                for number in range(20):
                    writer.add(str(number), 0, B)
            except OSError as error:
                writer.abandon()
                code = 0 if error.errno == errno.EFBIG and not list(tmp_path.iterdir()) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
