"""Host time of a step against an earlier commit's: ``python -m tests.nullcuda.host_time [--against COMMIT]``.

OPT-1.3B in fp16, offloaded by blocks, counter noise, on the null GPU without values: nothing is computed, so a step
costs what it takes to issue it. Both trees run in processes of their own that are stepped in turn, because a neighbour
slows whoever runs at the time; each round compares medians of its own, and the ratio's interval is that of the rounds'
median. CPU time of the thread that issues everything is what a busy machine distorts least.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.nullcuda import build

BEFORE_BUDGETS = "0f7a164"
"""The commit that the null runtime first ran: 33 launches in each block."""
CLOCKS = {"cpu": time.thread_time, "process": time.process_time, "wall": time.perf_counter}


def serve(model_name: str, tokens: int) -> None:
    """A child: builds the engine, then takes as many steps as each line of its input says, and prints their times."""
    import torch

    import zobench
    from zobench import ZOSGD, Batch, Engine, EngineConfig, models

    assert Path(zobench.__file__).is_relative_to(Path.cwd()), "another tree's package was found"

    class Nothing:
        """Weights that nobody reads stay the untouched pages that they are."""

        def fill(self, name: str, out: torch.Tensor, first: int = 0) -> None: ...
        def locate(self, name: str) -> None: ...

    model, ids = models.build(model_name, "fp16"), torch.zeros(1, tokens, dtype=torch.long, device="cuda:0")
    config = EngineConfig(device="cuda:0", tier="pinned", noise="counter")
    with Engine(model, config, weights=Nothing()) as engine:
        method, batch = ZOSGD(lr=1e-6), Batch(ids, ids)
        for line in sys.stdin:
            taken = []
            for _ in range(int(line)):
                before = {name: clock() for name, clock in CLOCKS.items()}
                method.step(engine, batch)
                taken.append({name: clock() - before[name] for name, clock in CLOCKS.items()})
            print(json.dumps(taken), flush=True)


class Stepped:
    """A process that steps the engine of the package in ``tree`` when it is asked to."""

    def __init__(self, tree: Path, model: str, tokens: int) -> None:
        settings = {"PYTHONPATH": str(tree), "NULLCUDA_VALUES": "0", "NULLCUDA_LATE": "0", "OMP_NUM_THREADS": "1"}
        command = [str(build.interpreter()), "-m", "tests.nullcuda.host_time", "--serve", model, str(tokens)]
        environment = {**os.environ, **settings}
        self.process = subprocess.Popen(
            command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def steps(self, count: int) -> dict[str, float]:
        """Takes so many; the median of each clock, in seconds."""
        told, answers = _pipe(self.process.stdin), _pipe(self.process.stdout)
        told.write(f"{count}\n")
        told.flush()
        if not (line := answers.readline()):
            raise RuntimeError(f"the stepping process ended with status {self.process.wait()}")
        taken = json.loads(line)
        return {name: statistics.median(step[name] for step in taken) for name in CLOCKS}

    def close(self) -> None:
        """Ends the process and waits for it."""
        _pipe(self.process.stdin).close()
        self.process.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextlib.contextmanager
def package_of(commit: str) -> Iterator[Path]:
    """A folder with the package as it was at a commit."""
    with tempfile.TemporaryDirectory() as folder:
        told = ["git", "archive", commit, "zobench"]
        archive = subprocess.run(told, cwd=build.ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def compare(commit: str, model: str, tokens: int, rounds: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Of each clock, (seconds of a step before, seconds now) in each round."""
    with package_of(commit) as earlier:
        both = [Stepped(tree, model, tokens) for tree in (earlier, build.ROOT)]
        try:
            for one in both:
                one.steps(5)  # compiles, makes what is kept, fills the slots
            taken = [tuple(one.steps(steps) for one in both) for _ in range(rounds)]
        finally:
            for one in both:
                one.close()
    return {name: [(before[name], now[name]) for before, now in taken] for name in CLOCKS}


def report(commit: str, taken: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """A line for each clock."""
    from zobench.stats.intervals import median_interval  # an earlier tree, whose child this is, may lack it

    yield f"host time of a step, ms: {commit}, this tree, their ratio in {len(taken['cpu'])} rounds"
    for name, pairs in taken.items():
        ratios = [now / before for before, now in pairs]
        interval = median_interval(ratios)
        between = "too few rounds" if interval is None else f"95 %: {interval[0]:.3f} to {interval[1]:.3f}"
        before, now = (1e3 * statistics.median(own) for own in zip(*pairs, strict=True))
        yield f"{name:8} {before:7.1f} {now:7.1f}   {statistics.median(ratios):.3f} ({between})"


def main() -> None:
    """Reads the command line, compares, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", default=BEFORE_BUDGETS, metavar="COMMIT")
    parser.add_argument("--model", default="opt-1.3b")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="of each in a round")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "TOKENS"), help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.serve:
        serve(own.serve[0], int(own.serve[1]))
        return
    for line in report(own.against, compare(own.against, own.model, own.tokens, own.rounds, own.steps)):
        print(line)


if __name__ == "__main__":
    main()
