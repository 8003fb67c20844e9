"""DirectFile: a scratch file read and written past the page cache, and the aligned buffers that needs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from zobench.machine.files import NoRoomError, writing
from zobench.machine.memory import free_disk_bytes

if TYPE_CHECKING:
    import torch

ALIGNMENT = 4096
"""Bytes: buffer addresses, offsets and lengths of direct I/O are multiples of this on every common device."""
CHUNK = 64 * 2**20
"""Bytes of one request. The kernel splits it into many that are in flight together, so that more threads are no faster
(docs/design/DECISIONS.md, "Negative results")."""


def round_up(nbytes: int) -> int:
    """``nbytes`` rounded up to a whole number of pages."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned(nbytes: int) -> torch.Tensor:
    """A page-aligned uint8 tensor of ``round_up(nbytes)`` zero bytes, freed with the last tensor that views it.

    :func:`memory_of` gives the buffer that :class:`DirectFile` takes.
    """
    import torch

    # private: mmap's default is shared memory, which gets no huge pages and is counted apart from the process's own
    pages = mmap.mmap(-1, round_up(max(nbytes, 1)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask_for_huge_pages(pages)
    return torch.frombuffer(pages, dtype=torch.uint8)


def ask_for_huge_pages(pages: mmap.mmap) -> None:
    """Asks for huge pages, so that direct I/O and CUDA have fewer pages to pin one by one; of shared memory where the
    kernel's ``shmem_enabled`` says ``advise``."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # only a hint: a kernel without huge pages refuses it
            pages.madvise(mmap.MADV_HUGEPAGE)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor of any dtype, without a copy."""
    import torch

    return tensor.view(-1).view(torch.uint8).numpy().data


class DirectFile:
    """``round_up(nbytes)`` bytes of disk, reserved at once; reads and writes from several threads are safe.

    The name is removed as soon as the file is open, so that nothing is left behind however the process ends.
    ``direct`` says whether the page cache is bypassed, ``note`` why not. With direct I/O, offsets and buffer lengths
    must be multiples of 4096 and buffers come from :func:`aligned`; this is required in either case.
    Raises ``OSError`` in one line if the space is not there.
    """

    def __init__(self, path: str | os.PathLike[str], nbytes: int) -> None:
        self.nbytes = round_up(nbytes)
        self.note = ""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        try:
            self._folder = Path(path).absolute().parent
            self._reserve(self._folder)
            self.direct = self._bypass_cache()
        except BaseException:
            self.close()
            raise

    def _reserve(self, folder: Path) -> None:
        try:
            if self.nbytes > free_disk_bytes(folder):  # asked first: where the call is emulated it writes every block
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with writing(folder):
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file, 0, self.nbytes)
                else:
                    os.ftruncate(self._file, self.nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            needs, free = self.nbytes / 1e9, free_disk_bytes(folder) / 1e9
            raise NoRoomError(
                error.errno,
                f"the disk tier needs {needs:.2f} GB, but its folder's file system has {free:.2f} GB free; "
                "free some space or name a folder on another disk",
            ) from None

    def _bypass_cache(self) -> bool:
        """Turns direct I/O on, and tries it: some file systems accept the flag and refuse the first transfer."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        if not hasattr(os, "O_DIRECT"):
            self.note = "disk: buffered, because this system has no O_DIRECT"
            return False
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT)
            with mmap.mmap(-1, ALIGNMENT) as page:
                os.pwritev(self._file, [page], 0)
                os.preadv(self._file, [page], 0)
        except OSError as error:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags)
            self.note = f"disk: buffered, because the file system refuses direct I/O ({os.strerror(error.errno or 0)})"
            return False
        return True

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills ``buffer`` with the file's bytes from ``offset`` on."""
        self._transfer(os.preadv, buffer, offset)

    def write_from(self, buffer: memoryview, offset: int) -> None:
        """Writes ``buffer`` to the file from ``offset`` on."""
        self._transfer(os.pwritev, buffer, offset)

    def _transfer(self, request: Callable[[int, list[memoryview], int], int], buffer: memoryview, offset: int) -> None:
        view = buffer.cast("B")
        size = len(view)
        if size % ALIGNMENT or offset % ALIGNMENT or offset < 0 or offset + size > self.nbytes:
            raise ValueError(
                f"offset and length must be multiples of {ALIGNMENT} within {self.nbytes} bytes, "
                f"but got offset={offset}, length={size}; use directio.round_up"
            )
        done = 0
        while done < size:
            with writing(self._folder):
                moved = request(self._file, [view[done : min(done + CHUNK, size)]], offset + done)
            moved -= moved % ALIGNMENT  # a short transfer may end within a page: the rest starts at that page again
            if moved <= 0:
                raise OSError(errno.EIO, f"the disk moved nothing at offset {offset + done} of {self.nbytes} bytes")
            done += moved

    def close(self) -> None:
        """Gives the space back. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
