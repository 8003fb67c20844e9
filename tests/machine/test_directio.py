"""DirectFile: what is written is read, past the page cache or not, whatever the kernel moves at a time."""

import errno
import os

import pytest
import torch

from zobench.machine import directio
from zobench.machine.directio import ALIGNMENT, DirectFile, aligned, memory_of
from zobench.machine.files import error_text


def pattern(nbytes, seed=0):
    buffer = aligned(nbytes)
    buffer.copy_(torch.randint(0, 256, buffer.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8))
    return buffer


def round_trip(file, nbytes, offset=0):
    written, read = pattern(nbytes), aligned(nbytes)
    file.write_from(memory_of(written), offset)
    file.read_into(memory_of(read), offset)
    return torch.equal(written, read)


def test_round_trip_in_several_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(directio, "CHUNK", 4 * ALIGNMENT)
    with DirectFile(tmp_path / "a", 50 * ALIGNMENT + 1) as file:
        assert file.nbytes == 51 * ALIGNMENT
        assert round_trip(file, 45 * ALIGNMENT, 6 * ALIGNMENT)
        assert file.direct or "buffered" in file.note


def test_no_name_is_left_even_while_open(tmp_path):
    with DirectFile(tmp_path / "a", 4096):
        assert list(tmp_path.iterdir()) == []


def shortened(request):
    """Moves at most two pages, and reports less than that unless only one is asked for."""
    return lambda f, b, o: request(f, [b[0][: 2 * ALIGNMENT]], o) - (100 if len(b[0]) > ALIGNMENT else 0)


def test_short_transfers_are_continued_at_a_page(tmp_path, monkeypatch):
    with DirectFile(tmp_path / "a", 8 * ALIGNMENT) as file:
        for name in ("preadv", "pwritev"):
            monkeypatch.setattr(os, name, shortened(getattr(os, name)))
        assert round_trip(file, 8 * ALIGNMENT)
        monkeypatch.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(OSError, match="the disk moved nothing at offset 0 of 32768 bytes"):
            file.read_into(memory_of(aligned(4096)), 0)


def test_refused_direct_io_falls_back_with_a_note(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", refuse)
    with DirectFile(tmp_path / "a", 4096) as file:
        monkeypatch.setattr(os, "pwritev", real)
        assert not file.direct
        assert file.note == "disk: buffered, because the file system refuses direct I/O (Invalid argument)"
        assert round_trip(file, 4096)


def test_no_space_is_one_line_with_need_and_free_space(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        OSError, match=r" has \d+\.\d\d GB free; free some space or name a folder on another disk$"
    ) as caught:
        DirectFile(tmp_path / "a", 10**15)
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) not in str(caught.value)
    assert error_text(caught.value).startswith("the disk tier needs 1000000.00 GB, but ")
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("offset", "length"), [(1, 4096), (0, 100), (8192, 4096)])
def test_unaligned_or_outside(tmp_path, offset, length):
    with DirectFile(tmp_path / "a", 8192) as file, pytest.raises(ValueError, match="must be multiples of 4096 within"):
        file.read_into(memoryview(bytearray(length)), offset)
