"""The house: no circle among modules, no import that runs up, none from test to test; planted ones are found."""

import ast
import graphlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.support.files import written
from tests.support.planted import Bug, bugs

ROOT = Path(__file__).parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for type checkers alone."""
    graph = grimp.build_graph("zobench", exclude_type_checking_imports=False, cache_dir=None)
    order = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(order).prepare()  # raises CycleError, which names the circle


def test_nothing_of_the_package_imports_the_programs_that_write_its_files() -> None:
    pattern = re.compile(r"^\s*(from|import) tools\b", re.MULTILINE)
    assert pattern.search("    from tools import fits")
    assert [str(path) for path in (ROOT / "zobench").rglob("*.py") if pattern.search(path.read_text())] == []


@pytest.mark.parametrize("planted", ["", "from zobench.cli import console"])
def test_rooms_use_only_those_below_them_and_a_planted_upward_import_is_found(planted: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "zobench", tmp_path / "zobench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "zobench/engine/transfers/schedule.py").open("a") as module:
        module.write(f"\n{planted}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == bool(planted), done.stdout + done.stderr
    assert ("zobench.engine is not allowed to import zobench.cli" in done.stdout) == bool(planted)


def _imported_tests(path: Path, root: Path) -> set[str]:
    """The modules of tests that a file imports, but for the tools in tests.support, nullcuda and reliability.

    Imports inside functions count, and relative names are resolved.
    """
    package, names = path.relative_to(root).parent.parts, set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            names |= {".".join(filter(None, (*above, node.module, alias.name))) for alias in node.names}
    tools = re.compile(r"tests\.(support|nullcuda|reliability)\.(?!test_)")
    return {name for name in names if name.startswith("tests.") and not tools.match(name)}


def test_an_import_of_another_test_module_is_found(tmp_path: Path) -> None:
    text = "from tests.support.rates import RATES\nfrom tests.support import rank\nimport torch\ndef test():\n    "
    text += "from tests.a.test_b import x\n    from ..c.test_d import x\nfrom tests.nullcuda.test_e import x"
    path = written(tmp_path / "tests" / "engine" / "test_new.py", text)
    assert _imported_tests(path, tmp_path) == {"tests.a.test_b.x", "tests.c.test_d.x", "tests.nullcuda.test_e.x"}


def test_test_modules_share_by_support_alone() -> None:
    """What two test modules need is in tests/support, or a fixture of a conftest."""
    imports = {path: _imported_tests(path, ROOT) for path in (ROOT / "tests").rglob("*.py")}
    assert len(imports) > 100
    assert {str(path): wrong for path, wrong in imports.items() if wrong} == {}


ACCELERATOR = "machine/accelerator.py"
"""The one module that names CUDA's part of torch."""


def _names_cuda(package: Path) -> list[str]:
    """The files under ``package``, but for that module, which name torch.cuda or torch.backends.cuda anywhere."""
    named = re.compile(r"torch\.(backends\.)?cuda\b|from torch(\.backends)? import .*\bcuda\b")
    files = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    return sorted(name for name, text in files.items() if name != ACCELERATOR and named.search(text))


def test_only_the_accelerator_names_cudas_part_of_torch() -> None:
    assert _names_cuda(ROOT / "zobench") == ["programs/adapter.py"], "which is found, and runs where zobench is not"


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_each_bug_of_the_list_can_be_planted_and_names_tests_that_are_there(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    assert ast.dump(ast.parse(bug.planted_in(text))) != ast.dump(ast.parse(text))
    assert all((ROOT / path).is_file() for path in bug.tests)
