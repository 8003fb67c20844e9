"""The process of one cell: a RunSpec as JSON comes in on standard input, the result's JSON goes to a file."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from zobench.spec import RunSpec

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent ends, however that ends."""


def main() -> None:
    """``python -m zobench.execute.child FILE PARENT``: PARENT is the process that waits for the answer."""
    end_with(int(sys.argv[2]))
    with contextlib.suppress(OSError):  # if memory runs out, this process should go, not the sweep that started it
        Path("/proc/self/oom_score_adj").write_text("1000")
    spec = RunSpec.from_dict(json.load(sys.stdin))
    from zobench.execute.cell import run  # imports torch: seconds in which the parent may already be gone

    Path(sys.argv[1]).write_text(json.dumps(run(spec).to_dict(), allow_nan=False))


def end_with(parent: int) -> None:
    """Makes this process end when ``parent`` does; nothing but the kernel can tell after a kill -9. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before this process had asked to be told
        sys.exit("the process that waited for this cell is gone")


if __name__ == "__main__":
    main()
