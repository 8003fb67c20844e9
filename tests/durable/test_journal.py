"""The journal's file: what was written is read, torn ends are forgiven, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.engine import Entry
from zobench.finetune.journal import MAGIC, SIZE, JournalFile, read

HEADER = {"run": "0123456789ab", "model": "opt-tiny", "dtype": "fp32"}
ENTRIES = [
    Entry(step=0, seed=7, g=-1.5, lr=1e-6),
    Entry(step=1, seed=999_999_999, g=2.5e-300, lr=1e-7, weight_decay=0.1),
    Entry(step=1, seed=0, g=0.1, lr=1e-7, part=0),
    Entry(step=2**40, seed=3, g=1 / 3, lr=0.0, part=25),
]


def written(path: Path, entries: list[Entry], keep: int = 0) -> Path:
    with JournalFile(path, HEADER, keep) as file:
        file.append(entries)
    return path


def head(path: Path) -> int:
    """Bytes before the first record."""
    return path.read_bytes().index(b"\n", len(MAGIC)) + 1


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    assert read(path) == (HEADER, ENTRIES)
    assert path.stat().st_size == head(path) + 4 * SIZE


@given(cut=st.integers(1, SIZE))
def test_a_torn_last_record_is_forgiven(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = written(tmp_path_factory.mktemp("j") / "journal.bin", ENTRIES)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read(path) == (HEADER, ENTRIES[:3])


def test_a_last_record_of_the_right_length_but_not_its_bytes_is_torn_too(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    path.write_bytes(path.read_bytes()[:-SIZE] + bytes(SIZE))
    assert read(path) == (HEADER, ENTRIES[:3])


@given(data=st.data())
def test_one_changed_bit_before_the_last_record_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("j") / "journal.bin", ENTRIES)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - SIZE - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged; take another copy$"):
        read(path)


def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    content = bytearray(path.read_bytes())
    content[head(path) + SIZE + 20] ^= 1
    path.write_bytes(content)
    told = f"`{path}` must hold whole records, but number 2 of 4 is damaged; take another copy"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        read(path)


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 1, 1, 3], [0, 2, 3]])
def test_records_that_were_moved_repeated_or_taken_out_are_found(tmp_path: Path, order: list[int]) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    content, start = path.read_bytes(), head(path)
    records = [content[start + n * SIZE : start + (n + 1) * SIZE] for n in order]
    path.write_bytes(content[:start] + b"".join(records))
    with pytest.raises(ValueError, match=r"number [23] of "):
        read(path)


@pytest.mark.parametrize("tail", [b"", b"torn", bytes(SIZE)])
@pytest.mark.parametrize("keep", [1, 3, 4])
def test_a_resumed_run_keeps_what_its_snapshot_knows_and_goes_on(tmp_path: Path, keep: int, tail: bytes) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    path.write_bytes(path.read_bytes() + tail)
    written(path, ENTRIES[:2], keep)
    assert read(path) == (HEADER, ENTRIES[:keep] + ENTRIES[:2])


def test_a_run_from_the_start_begins_its_journal_anew(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES)
    assert read(written(path, ENTRIES[:1])) == (HEADER, ENTRIES[:1])


def test_a_journal_shorter_than_its_snapshot_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.bin", ENTRIES[:2])
    with pytest.raises(ValueError, match=r"must hold 3 updates, but holds 2; remove .* to begin anew$"):
        JournalFile(path, HEADER, 3)
    assert read(path) == (HEADER, ENTRIES[:2])


def test_two_runs_cannot_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    with JournalFile(path, HEADER) as first:
        with pytest.raises(ValueError, match=r"must have one run at a time, but another process writes into it; name "):
            JournalFile(path, HEADER)
        first.append(ENTRIES)
    assert read(written(path, [], keep=4)) == (HEADER, ENTRIES)


@pytest.mark.parametrize("content", [b"", MAGIC, b"PK\x03\x04 something else\n" * 9])
def test_another_file_is_no_journal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a journal of zobench, but its head is damaged; take another copy$"):
        read(path)
