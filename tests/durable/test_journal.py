"""The journal's file: what was written is read, torn ends are forgiven, and nothing else is."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.durable import journal
from zobench.durable.journal import MAGIC, SIZE, EvaluationItem, Item, JournalError, JournalFile, is_begun, read
from zobench.engine import Entry
from zobench.methods.base import Taken

HEADER = {"run": "0123456789ab", "base": "sha256 00", "model": "opt-tiny", "dtype": "fp32"}


def taken(step: int, *updates: Entry, gradients: tuple[float, ...] = (0.5,), **more: Any) -> Taken:
    values = {"loss": 0.7, "lr": 1e-6, "seconds": 0.25, "applied": True, "passes": 1}
    directions = tuple((10 + n, None) for n in range(len(gradients)))
    return Taken(
        **{**values, "step": step, "entries": updates, "gradients": gradients, "directions": directions, **more}
    )


ITEMS: list[Item] = [
    EvaluationItem(step=0, loss=0.69, accuracy=0.5, count=12, passes=3),
    taken(0, Entry(step=0, seed=7, g=-1.5, lr=1e-6)),
    taken(1, gradients=(math.inf,), applied=False, loss=1e300, passes=2),
    taken(
        2, Entry(step=2, seed=999_999_999, g=2.5e-300, lr=1e-7, weight_decay=0.1, part=0),
        Entry(step=2, seed=0, g=1 / 3, lr=1e-7, part=25), gradients=(1.0, 2.0), directions=((999_999_999, 0), (0, 25)),
    ),
    EvaluationItem(step=2**40, loss=math.inf, accuracy=1.0, count=2**40, passes=0),
]  # fmt: skip
RECORDS = [1, 3, 2, 5, 1]
"""Records of each item: of a step its directions, its updates, and itself."""


def written(path: Path, items: list[Item], header: dict[str, Any] = HEADER) -> Path:
    with JournalFile(path, header) as file:
        for item in items:
            file.append(item)
    return path


def head(path: Path) -> int:
    """Bytes before the first record."""
    return path.read_bytes().index(b"\n", len(MAGIC)) + 1


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ITEMS)
    assert read(path) == (HEADER, ITEMS)
    assert path.stat().st_size == head(path) + sum(RECORDS) * SIZE
    assert [entry.seed for item in ITEMS for entry in item.entries] == [7, 999_999_999, 0]


def test_what_is_not_a_number_is_read_too(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", [taken(0, gradients=(math.nan,), loss=math.nan)])
    [item] = read(path)[1]
    assert isinstance(item, Taken)
    assert math.isnan(item.loss)
    assert math.isnan(item.gradients[0])


@given(cut=st.integers(1, sum(RECORDS) * SIZE))
def test_of_a_torn_end_whole_steps_are_kept(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = written(tmp_path_factory.mktemp("j") / "journal.bin", ITEMS)
    path.write_bytes(path.read_bytes()[:-cut])
    left = sum(RECORDS) - -(-cut // SIZE)
    whole = next(n for n in range(len(ITEMS), -1, -1) if sum(RECORDS[:n]) <= left)
    assert read(path) == (HEADER, ITEMS[:whole])
    written(path, ITEMS[whole:])
    assert read(path) == (HEADER, ITEMS)


@pytest.mark.parametrize("records", [1, 90])
def test_zeros_at_the_end_are_torn_too(tmp_path: Path, records: int) -> None:
    """A file's new length may reach the disk before what was written there."""
    path = written(tmp_path / "journal.bin", ITEMS)
    path.write_bytes(path.read_bytes()[:-SIZE] + bytes(records * SIZE + 5))
    assert read(path) == (HEADER, ITEMS[:4])


@given(data=st.data())
def test_one_changed_bit_before_the_last_record_is_found(tmp_path_factory, data) -> None:
    path = written(tmp_path_factory.mktemp("j") / "journal.bin", ITEMS)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - SIZE - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged; take another copy, or remove .*|is of an earlier one; remove "):
        read(path)


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4], [0, 1, 1, 3, 4], [0, 2, 3, 4]])
def test_records_that_were_moved_repeated_or_taken_out_are_found(tmp_path: Path, order: list[int]) -> None:
    path = written(tmp_path / "journal.bin", ITEMS)
    content, start = path.read_bytes(), head(path)
    records = [content[start + n * SIZE : start + (n + 1) * SIZE] for n in order]
    path.write_bytes(content[:start] + b"".join(records))
    with pytest.raises(ValueError, match=r"number [23] of "):
        read(path)


@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_a_journal_goes_on_where_it_ended(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path / "journal.bin", ITEMS[:3])
    path.write_bytes(path.read_bytes() + tail)
    with JournalFile(path, HEADER) as file:
        assert file.items == ITEMS[:3]
        file.append(*ITEMS[3:])
        assert file.items == ITEMS
    assert read(path) == (HEADER, ITEMS)


@pytest.mark.parametrize("keep", [0, 2])
def test_what_no_snapshot_knows_can_be_cut_off(tmp_path: Path, keep: int) -> None:
    path = written(tmp_path / "journal.bin", ITEMS)
    with JournalFile(path, HEADER) as file:
        file.cut(keep)
        file.append(ITEMS[1])
    assert read(path) == (HEADER, [*ITEMS[:keep], ITEMS[1]])


@pytest.mark.parametrize("size", [1, len(MAGIC) + 30])
def test_a_journal_whose_head_was_torn_is_begun_anew(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "journal.bin", [])
    path.write_bytes(path.read_bytes()[:size])
    assert not is_begun(path.read_bytes())
    assert read(written(path, ITEMS)) == (HEADER, ITEMS)


def test_two_runs_cannot_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    with JournalFile(path, HEADER) as first:
        with pytest.raises(ValueError, match=r"must have one run at a time, but another process writes into it; name "):
            JournalFile(path, HEADER)
        first.append(*ITEMS)
    assert read(written(path, [])) == (HEADER, ITEMS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": "ba9876543210"},
         r"` must be a new folder or this run's own, but holds the run 0123456789ab, and this "),
        ({"base": "sha256 11"},
         r"` must go with the weights that it began from \(sha256 00\), but the weights are othe"),
    ],
)  # fmt: skip
def test_another_run_or_base_is_refused_and_the_journal_stays(tmp_path, changes, message) -> None:
    path = written(tmp_path / "journal.bin", ITEMS)
    with pytest.raises(ValueError, match=message):
        JournalFile(path, {**HEADER, **changes})
    assert read(path) == (HEADER, ITEMS)


@pytest.mark.parametrize("content", [b"PK\x03\x04 something else\n" * 9, MAGIC + b"00000000 {}\n"])
def test_another_file_is_no_journal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.bin"
    path.write_bytes(content)
    for opened in (read, lambda path: JournalFile(path, HEADER)):
        with pytest.raises(ValueError, match=r"must be a journal of zobench, but its head is damaged; take another c"):
            opened(path)
    assert path.read_bytes() == content


def test_a_step_that_the_disk_has_no_room_for_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    path, pwrite, room = tmp_path / "journal.bin", os.pwrite, SIZE + 9

    def full(file: int, data: bytes, place: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = pwrite(file, data[:room], place)
        room -= done
        return done

    with JournalFile(path, HEADER) as file:
        file.append(*ITEMS[:3])
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(
            JournalError,
            match=r"journal.bin` must take every step, but cannot be written \(No space left on device\); ",
        ):
            file.append(ITEMS[3])
        assert path.stat().st_size == head(path) + sum(RECORDS[:3]) * SIZE
        monkeypatch.undo()
        file.append(*ITEMS[3:])
    assert read(path) == (HEADER, ITEMS)


def test_the_disk_is_waited_for_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, now = [], 100.0
    with JournalFile(tmp_path / "journal.bin", HEADER) as file:
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(now))
        monkeypatch.setattr(journal.time, "monotonic", lambda: now)
        file.sync()
        for _ in range(24):
            now += 1.0
            file.append(ITEMS[1])
    assert synced == [100.0, 106.0, 112.0, 118.0, 124.0, 124.0]
