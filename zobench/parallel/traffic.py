"""The bytes that this process has sent to others: the kernel's own count of every TCP socket, which leaves none out,
and what it gave NCCL, whose way no socket counts."""

from __future__ import annotations

import os
import socket
import struct

LISTENING = 10
"""The value of tcpi_state for a socket that listens: such a one has sent nothing, but a program reads counts of what
never was there."""
BYTES_SENT = 200
"""Offset of tcpi_bytes_sent in Linux's struct tcp_info: payload bytes, those sent again included."""


class Traffic:
    """Bytes sent through the TCP sockets that are open when this is made, and ``given`` to an all_reduce of NCCL. None
    where there is neither.

    Sockets are known by their inode and looked at anew each time: holding them would keep a connection open that its
    owner has closed. As a context it counts what is sent inside: one number of ``taken`` for each time.
    """

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.given = 0
        self._sockets = {number: inode for number, inode in _sockets().items() if _sent(number, inode) is not None}

    def sent(self) -> int | None:
        """Bytes so far."""
        counts = [_sent(number, inode) for number, inode in self._sockets.items()]
        counted = [count for count in counts if count is not None]
        return sum(counted) + self.given if counted or self.given else None

    def __enter__(self) -> Traffic:
        self._before = self.sent()
        return self

    def __exit__(self, *_: object) -> None:
        after = self.sent()
        if after is not None:
            self.taken.append(after - (self._before or 0))


def _sockets() -> dict[int, str]:
    """Number to inode of this process's open sockets; none where there is no /proc."""
    sockets = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        if (target := _target(int(name))).startswith("socket:"):
            sockets[int(name)] = target
    return sockets


def _target(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:  # closed since
        return ""


def _sent(number: int, inode: str) -> int | None:
    """Bytes that this TCP socket has sent; None of another file, and on a system without this count."""
    if _target(number) != inode:
        return None
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    except (OSError, AttributeError):  # closed since, not TCP, or a system without this count
        return None
    if len(info) < BYTES_SENT + 8 or info[0] == LISTENING:
        return None
    return int(struct.unpack_from("=Q", info, BYTES_SENT)[0])
