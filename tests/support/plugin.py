"""The package of docs/extending.md, outside the repository as pip leaves it, and zobench with it installed."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.rates import calibrate
from zobench.measure.environment import fingerprint_without_torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
COMMANDS = """
import contextlib, io, json, sys
from zobench import cli, programs
from zobench.execute import process, sweep
process.run_in_process = sweep.run_in_process = lambda spec, **_: programs.run(spec)
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as end:
            answers.append([end.code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
"""Commands of zobench, whose cells run in this process: one for each would load torch and transformers again."""


def blocks(language: str) -> list[str]:
    """The blocks of the page in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def package(folder: Path, more: str = "", methods: Mapping[str, str] | None = None) -> Path:
    """Puts the page's package into ``folder``, on a measured machine, and its own test module; the package's module.

    ``more`` is added to the module, and ``methods`` (name -> attribute) to the methods that it gives.
    """
    calibrate(folder, fingerprint_without_torch().machine)
    *module, suite = blocks("python")
    (folder / "my_zo.py").write_text("\n".join([*module, more]))
    (folder / "test_my_zo.py").write_text(suite)
    (project,) = (tomllib.loads(text)["project"] for text in blocks("toml"))
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    for name, attribute in (methods or {}).items():
        groups["zobench.methods"][name] = f"my_zo:{attribute}"
    outputs = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(outputs))
    return folder / "my_zo.py"


def table(metric: str, models: str = '["opt-tiny"]', where: str = "") -> str:
    """The file of a table of a metric of resident runs of 16 tokens; ``metric`` and ``where``: lines of TOML."""
    rows = f"[where]\nseq_len = 16\n{where}\n[rows.product]\nmodel = {models}\n"
    column = '[[columns]]\nheader = "MeZO"\nwhere = { engine = "resident" }\n'
    return f'title = "Guest"\n{rows}{column}[[metrics]]\n{metric}\nbetter = "lower"\n'


def commands(folder: Path, *lines: str) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each ``zobench LINE``, one after another in one process."""
    done = python(folder, "-P", "-c", COMMANDS, json.dumps([line.split() for line in lines]))
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def zobench(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``zobench ARGUMENTS`` in ``folder``, whose packages it finds; it must end with ``code``."""
    return python(folder, "-P", "-m", "zobench", *arguments, code=code)


def python(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` there, see :mod:`tests.support.warm`."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = warm.python(arguments, folder, environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def results(folder: Path) -> list[dict[str, Any]]:
    """What the store holds, as it is written: this process has none of the packages. Hidden folders hold no results."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("results/[!.]*/*.json"))]
