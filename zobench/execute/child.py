"""The process of one cell: an Order as JSON comes in on standard input, the result's JSON goes to a file."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from zobench.machine.files import replace
from zobench.machine.processes import end_with
from zobench.runspec.order import Order, begin


def main() -> None:
    """``python -m zobench.execute.child FILE PARENT``: writes the result to FILE; ends with the process PARENT."""
    end_with(int(sys.argv[2]))
    with contextlib.suppress(OSError):  # if memory runs out, this process should go, not the sweep that started it
        Path("/proc/self/oom_score_adj").write_text("1000")
    ordered = Order.from_dict(json.load(sys.stdin))
    spec = ordered.spec
    begin(ordered)
    answer = Path(sys.argv[1])
    if spec.gpus > 1:
        from zobench.execute.rank import launched
        from zobench.measure.environment import failed
        from zobench.result import Outcome

        try:
            result = launched(ordered, answer.with_name("ranks.json"))
        except (ValueError, OSError) as error:  # devices that are not there, or machines that did not meet
            result = failed(spec, Outcome.FAILED, str(error))
    else:
        from zobench import programs

        result = programs.run(spec)  # imports torch: seconds in which the parent may already be gone
    replace(answer, json.dumps(result.to_dict(), allow_nan=False).encode())  # there as a whole or not at all


if __name__ == "__main__":
    main()
