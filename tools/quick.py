"""``make quick``: the tests that a change can reach by imports, nearest first, until the time is up.

``python -m tools.quick [--base REF] [--seconds N] [arguments of pytest]``. A change is what differs from REF
(where the branch left main; on main itself the last commit), with what is not committed yet.

A test module is reached when a chain of imports leads from it to a changed module. Imports inside functions count, and
names of modules in strings, by which tests start processes and registries name what they load. What a chain does not
show, this cannot see: what a process is told by a file or an entry point, data that a module finds by searching a
folder, and the versions of libraries. Tests marked slow or gpu are left out. ``make test-all`` runs everything.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
CORE = ("tests.test_house", "tests.test_design_docs", "tests.runspec.test_spec", "tests.engine.test_units")
"""Test modules that always run, whatever changed: seconds together."""
READERS = {
    "runners": ("zobench.recipes",),
    "tables": ("zobench.recipes",),
    "plots": ("zobench.recipes",),
    "campaigns": ("zobench.recipes.campaign",),
    "results/paper": ("zobench.recipes",),
    "docs": ("tests.test_design_docs",),
}
"""The modules that read a folder's files, which no import shows."""
SECONDS = 50
"""For the tests, their collection included; the rest of the 90 is for a start and the last tests that began in time."""
END = "ZOBENCH_QUICK_END"
WAITING = "make quick had no time left"


def changed(base: str | None, root: Path = ROOT) -> set[str]:
    """The paths that differ from ``base``, with files that git does not know yet."""
    if base is None:
        if not _git(root, "branch", "--list", "main"):
            raise SystemExit("quick: a branch main must exist to compare with, but does not; give another by --base")
        parent = _git(root, "rev-parse", "HEAD") == _git(root, "rev-parse", "main")
        base = "HEAD~1" if parent else _git(root, "merge-base", "HEAD", "main")
    differ = _git(root, "diff", "--name-only", base)
    return {*differ.splitlines(), *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


LOOKS_UP = ("zobench.runspec", "zobench.methods")
"""Rooms that name others as text, to look up what a run asks for. They do not depend on them; most tests use both."""


def importers(root: Path = ROOT) -> dict[str, set[str]]:
    """Module -> the modules that import it; a test module imports the conftests above it."""
    import grimp

    sys.path.insert(0, str(root))
    try:
        graph = grimp.build_graph("zobench", "tests", "tools", exclude_type_checking_imports=True, cache_dir=None)
    finally:
        sys.path.pop(0)
    by_imported: dict[str, set[str]] = defaultdict(set)
    sources = {module: path for module in graph.modules if (path := _source(root, module)) is not None}
    exported = _exported(sources)
    for module, path in sources.items():
        imported = set(graph.find_modules_directly_imported_by(module))
        if module != "zobench" and not module.startswith(LOOKS_UP):  # nor does what exports at first use
            imported |= {*_named(path, module, sources, exported)}
        for name in imported.union(*map(_parents, imported)):
            by_imported[name].add(module)
        for parent in _parents(module):
            if f"{parent}.conftest" in sources and module.startswith("tests."):
                by_imported[f"{parent}.conftest"].add(module)
    return by_imported


def _source(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _exported(sources: dict[str, Path]) -> dict[tuple[str, str], str]:
    """(package, name) -> the module from which the package takes the name at its first use, by its ``_HOMES``."""
    homes = {}
    for module, path in sources.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "_HOMES" for t in node.targets):
                homes.update({(module, name): home for name, home in ast.literal_eval(node.value).items()})
    return homes


def _named(path: Path, module: str, known: Iterable[str], exported: dict[tuple[str, str], str]) -> Iterator[str]:
    """The modules that a file names in strings but docstrings, or takes from a package that imports at first use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    lazy = any(package == module for package, _ in exported)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = (exported.get((node.module or "", alias.name)) for alias in node.names)
            yield from filter(None, names)
        if lazy or not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in said:
            continue
        if node.value == "zobench" and module.startswith("tests."):
            yield "zobench.__main__"  # as in [python, "-m", "zobench", ...]
        for name in re.findall(r"\b(?:zobench|tests|tools)(?:\.\w+)+", node.value):
            yield from (part for part in (*_parents(name), name) if part in known and "." in part)
        for package, names in re.findall(r"\bfrom (\w+) import ([\w, ]+)", node.value):
            yield from filter(None, (exported.get((package, name.strip())) for name in names.split(",")))


def starts(paths: Iterable[str], modules: Iterable[str]) -> tuple[set[str], set[str]]:
    """(the modules that the changed files are or are read by, the files of which no module is known)."""
    known, reached_modules, untraced = set(modules), set(), set()
    for text in paths:
        path = PurePosixPath(text)
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        package = next((name for p in path.parents if (name := ".".join(p.parts)) in known), None)
        readers = [names for folder, names in READERS.items() if path.is_relative_to(folder)]
        if path.suffix == ".py":
            reached_modules |= {module} & known  # else deleted, or of no package: what imported it has changed too
        elif readers:
            reached_modules |= {name for names in readers for name in names}
        elif package:  # data beside the modules that read it
            reached_modules |= {name for name in known if name == package or name.rpartition(".")[0] == package}
        else:
            untraced.add(text)
    return reached_modules, untraced


def reached(start: Iterable[str], graph: dict[str, set[str]]) -> dict[str, int]:
    """Module -> how many imports it is away from what changed."""
    distance, front = dict.fromkeys(start, 0), set(start)
    while front:
        front = {module for name in front for module in graph.get(name, ())} - distance.keys()
        distance |= dict.fromkeys(front, max(distance.values()) + 1)
    return distance


def selected(distance: dict[str, int]) -> list[str]:
    """Test modules, nearest first, then what always runs."""
    tests = [name for name in distance if name.rpartition(".")[2].startswith("test_") and name.startswith("tests.")]
    tests = [name for name in tests if not name.startswith("tests.benchmarks.")]
    return sorted({*tests, *CORE}, key=lambda name: (distance.get(name, len(distance)), name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="what the change is a change of; by default main")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options, rest = parser.parse_known_args()
    end = time.time() + options.seconds
    paths, graph = changed(options.base), importers()
    modules = graph.keys() | {name for names in graph.values() for name in names}
    start, untraced = starts(paths, modules)
    tests = selected(reached(start, graph))
    reason = (
        f"{len(paths)} changed files, {len(start)} modules of ours: {len(tests)} test modules by imports, nearest first"
    )
    print(f"quick: {reason}" + (f"; not traced: {', '.join(sorted(untraced))}" if untraced else ""), flush=True)
    files = [f"{name.replace('.', '/')}.py" for name in tests]
    command = [sys.executable, "-m", "pytest", "-p", "tools.quick", "-m", "not slow and not gpu", *rest, *files]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, END: str(end)}, check=False).returncode


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ[END]):
        pytest.skip(WAITING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    waiting = sum(WAITING in str(report.longrepr) for report in skipped)
    if waiting:
        terminalreporter.write_line(f"quick: {waiting} tests did not run, for time; make test-all runs them")


if __name__ == "__main__":
    sys.exit(main())
