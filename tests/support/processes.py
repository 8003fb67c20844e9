"""Processes as /proc shows them, and waiting for what they do."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether the process ends (or is only a zombie) within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def poll(look: Callable[[], Any], seconds: float = 40) -> Any:
    """What ``look`` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := look():
            return answer
        time.sleep(0.02)
    raise TimeoutError("it did not happen")


def side_by_side(work: Callable[[Any], None], values: Iterable[Any], seconds: float = 60) -> None:
    """Runs ``work`` on each of the values, each in a thread of its own, until all have ended or the time is up."""
    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)


def children(pid: int) -> list[int]:
    """Descendants of a process, the nearest first."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        pids = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    except OSError:
        return []
    return pids + [grandchild for child in pids for grandchild in children(child)]


def listeners(pids: set[int]) -> set[str]:
    """Addresses at which TCP sockets of ``pids`` accept connections, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(file)
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    addresses = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                raw = bytes.fromhex(words[1].partition(":")[0])
                host = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                addresses.add(socket.inet_ntop(family, host))
    return addresses


def command_of(pid: int) -> str:
    """The words of its command; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def torchrun(
    gpus: int, *words: Any, timeout: float = 400, folder: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """What a user's own torchrun of these words gives, of so many ranks of one thread on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(gpus), "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
