"""``python -m tools.house [COMMIT...]`` prints the table of docs/design/ARCHITECTURE.md: what the package and its tests
come to at these commits, and now in the working tree."""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def texts_at(commit: str) -> dict[str, str]:
    """Path -> text of each Python file of the package and its tests at a commit; "" means the working tree."""
    if not commit:
        files = [path for folder in ("zobench", "tests") for path in (ROOT / folder).rglob("*.py")]
        return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    archive = subprocess.run(
        ["git", "archive", commit, "zobench", "tests"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {
            item.name: file.read().decode()
            for item in tar
            if item.name.endswith(".py") and (file := tar.extractfile(item)) is not None
        }


def numbers(texts: Mapping[str, str]) -> dict[str, str]:
    """What the files come to: row of the table -> cell."""
    package = {path: text for path, text in texts.items() if path.startswith("zobench/")}
    nodes = [node for text in package.values() for node in ast.walk(ast.parse(text))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    inside = sum(isinstance(node, ast.Import | ast.ImportFrom) for function in functions for node in ast.walk(function))
    modules = [text.count("\n") for text in package.values()]

    def lines(folder: str) -> str:
        return f"{sum(text.count(chr(10)) for path, text in texts.items() if path.startswith(folder)):,}"

    return {
        "lines of `zobench/`, in files": f"{lines('zobench/')} in {len(package)}",
        "of these `zobench/cli/`": lines("zobench/cli/"),
        "folders of `zobench/`": str(len({path.split("/")[1] for path in package if path.count("/") > 1})),
        "lines of a function: median, longest": f"{statistics.median(lengths):.0f}, {max(lengths)}",
        "lines of a module: median, longest": f"{statistics.median(modules):.0f}, {max(modules)}",
        "imports inside functions": str(inside),
        "lines of `tests/`": lines("tests/"),
    }


def main() -> None:
    """Prints the table in Markdown."""
    columns = {commit or "now": numbers(texts_at(commit)) for commit in [*sys.argv[1:], ""]}
    print(f"| | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for row in columns["now"]:
        print(f"| {row} | {' | '.join(column[row] for column in columns.values())} |")


if __name__ == "__main__":
    main()
