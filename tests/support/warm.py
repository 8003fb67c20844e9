"""Python programs, each in a process forked from one that has loaded torch and transformers, and nothing of zobench."""

import functools
import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LOADED = ("torch", "transformers.models.opt.modeling_opt", "numba", "typer.rich_utils")


def python(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], interpreter: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """``python WORDS`` in the folder, where WORDS are ``[-P] -c PROGRAM`` or ``[-P] -m MODULE`` and more."""
    server, files = _server(interpreter), [folder / ".stdout", folder / ".stderr"]
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([words, str(folder), [*map(str, files)], dict(environment)]), file=server.stdin, flush=True)
    code = int(server.stdout.readline())
    out, err = (path.read_text() for path in files)
    for path in files:
        path.unlink()
    return subprocess.CompletedProcess(words, code, out, err)


@functools.cache
def _server(interpreter: str) -> subprocess.Popen[str]:
    """The process that forks; it ends with this one, which closes its standard input."""
    environment, pipe = {**os.environ, "OMP_NUM_THREADS": "1"}, subprocess.PIPE
    return subprocess.Popen([interpreter, "-m", __name__], env=environment, stdin=pipe, stdout=pipe, text=True)


def _run(words: list[str], folder: str, files: list[str], environment: dict[str, str]) -> None:
    for descriptor, path in enumerate([os.devnull, *files]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    safe = words[0] == "-P"
    kind, what, *rest = words[safe:]
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [*([] if safe else [folder]), *filter(None, paths)]
    importlib.invalidate_caches()
    sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, vars(sys.modules["__main__"]))


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        if not (child := os.fork()):
            _run(*json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
