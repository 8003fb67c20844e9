"""Ranks of a test that are forked from one process, which has imported once what all of them import."""

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.processes import free_port

LOADED = "tests.support.forked"


def run_ranks(module: str, gpus: int, words: Sequence[Any], log: Path, start: str = "forkserver") -> None:
    """Runs the ``main`` of a module as so many ranks of one thread on this machine, which must all end well. Each has
    torchrun's variables in its environment, and is forked, or spawned; ``log`` takes what they print."""
    context = multiprocessing.get_context(start)
    context.set_forkserver_preload([LOADED])
    meeting = {"WORLD_SIZE": gpus, "LOCAL_WORLD_SIZE": gpus, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command, ranks = [module, *map(str, words)], []
    for rank in range(gpus):
        variables = {"ZOBENCH_PEER_TIMEOUT": 60, **meeting, "RANK": rank, "LOCAL_RANK": rank}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        ranks.append(context.Process(target=_rank, args=(command, environment, str(log))))
        ranks[-1].start()
    end = time.monotonic() + 500
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()  # where it hangs
    for process in ranks:
        process.join()
    codes = [process.exitcode for process in ranks]
    assert codes == [0] * gpus, f"{codes}: {log.read_text()[-3000:]}"


def _rank(command: Sequence[str], environment: dict[str, str], log: str) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = list(command)
    importlib.import_module(command[0]).main()
