"""Starts fine-tuning runs by forking a process that has loaded everything: a line of JSON each, answered by its pid.

``{"wait": PID}`` is answered by the process's exit code, negative for a signal. A run may be told to end itself by
SIGKILL at a certain place (``die``), which no other process could hit.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zobench import training
from zobench.durable import journal, snapshot
from zobench.machine import files
from zobench.models import tokenizers
from zobench.runspec import RunSpec
from zobench.training import Hooks
from zobench.training.assemble import attention_kernels, empty_model


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def arm(where: str, after: int) -> Callable[[int], None]:
    """Makes this process die at ``where``, the first time that it comes there after so many steps; the function is to
    be told of each step."""
    armed = False

    def told(step: int) -> None:
        nonlocal armed
        armed = step >= after

    def before(module: Any, name: str, act: Callable[..., None]) -> None:
        own = getattr(module, name)

        def changed(*arguments: Any, **more: Any) -> Any:
            if armed:
                act(own, *arguments)
                kill_self()
            return own(*arguments, **more)

        setattr(module, name, changed)

    def half(own: Any, file: int, data: bytes, place: int) -> None:
        own(file, data[: len(data) // 2], place)

    def nothing(own: Any, *arguments: Any) -> None:
        pass

    def done(own: Any, *arguments: Any) -> None:
        own(*arguments)

    if where == "half of a record":
        before(journal.os, "pwrite", half)
    elif where == "before a record":
        before(journal.JournalFile, "append", nothing)
    elif where == "after a record":
        before(journal.JournalFile, "append", done)
    elif where == "in a shard":
        before(snapshot._Shard, "end", nothing)
    elif where == "before the snapshot has its name":
        before(snapshot.os, "rename", nothing)
    elif where == "after the snapshot has its name":
        before(snapshot.os, "rename", done)
    elif where == "between a file and its name":
        before(files.os, "replace", nothing)
    elif where == "before the older ones go":
        before(snapshot, "prune", nothing)
    else:
        raise ValueError(where)
    return told


def run(plan: dict[str, Any]) -> int:
    os.environ |= plan.get("environment", {})
    torch.set_num_threads(1)
    told = arm(plan["die"], plan["after"]) if "die" in plan else lambda step: None
    progress = Hooks(step=lambda moment: told(moment.step), begin=lambda done, total: print("begins", done))
    spec = RunSpec(**plan["spec"]).resolve("cpu")
    try:
        training.finetune(
            spec, folder=Path(plan["folder"]), data_dir=Path(plan["data_dir"]), progress=progress, examine=False
        )
    except OSError as error:
        print("OSError:", error)
        return 1
    return 0


def load(plan: dict[str, Any]) -> None:
    """What every run imports, once for all of them."""
    spec = RunSpec(**plan["spec"]).resolve("cpu")
    tokenizers.load(spec)
    empty_model(spec)


def main() -> None:
    loaded = False
    for line in sys.stdin:
        plan = json.loads(line)
        if not loaded:
            load(plan)
            loaded = True
        if "wait" in plan:
            answer = os.waitstatus_to_exitcode(os.waitpid(plan["wait"], 0)[1])
        else:
            attention_kernels(RunSpec(**plan["spec"]).resolve("cpu"))  # timed once: all runs of a spec sum alike
            answer = os.fork()
            if not answer:
                log = os.open(plan["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = 70
                try:
                    code = run(plan)
                finally:
                    if code == 70:
                        import traceback

                        traceback.print_exc()
                    sys.stdout.flush()
                    os._exit(code)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
