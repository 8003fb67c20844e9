"""The process of one cell: a RunSpec as JSON comes in on standard input, the result's JSON goes to a file."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from zobench.runspec import RunSpec

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent ends, however that ends."""

LAUNCHER = "ZOBENCH_LAUNCHER"
"""In a rank's environment: the process of ours that started it."""


def main() -> None:
    """``python -m zobench.execute.child FILE PARENT``: PARENT is the process that waits for the answer."""
    end_with(int(sys.argv[2]))
    with contextlib.suppress(OSError):  # if memory runs out, this process should go, not the sweep that started it
        Path("/proc/self/oom_score_adj").write_text("1000")
    spec = RunSpec.from_dict(json.load(sys.stdin))
    answer = Path(sys.argv[1])
    if spec.gpus > 1:
        from zobench.execute.process import failed
        from zobench.execute.rank import launched
        from zobench.result import Outcome

        try:
            result = launched(spec, answer.with_name("ranks.json"))
        except (ValueError, OSError) as error:  # devices that are not there, or machines that did not meet
            result = failed(spec, Outcome.FAILED, str(error))
    else:
        from zobench.programs.cell import run  # imports torch: seconds in which the parent may already be gone

        result = run(spec)
    answer.write_text(json.dumps(result.to_dict(), allow_nan=False))


def end_with_launcher() -> None:
    """Makes a rank end when the process does that started it, this program's or the user's torchrun: else its ranks
    would go on, and the same command could not."""
    launcher = os.environ.get(LAUNCHER, os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    if launcher is not None:
        end_with(int(launcher))


def end_with(parent: int) -> None:
    """Makes this process end when ``parent`` does; nothing but the kernel can tell after a kill -9. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before this process had asked to be told
        sys.exit("the process that waited for this cell is gone")


if __name__ == "__main__":
    main()
