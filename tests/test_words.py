"""Names in zobench are nouns of the field: no pronoun names anything, no class name stands twice."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "zobench"

WORDS = frozenset(
    re.findall(
        r"\w+",
        "ahead anew apart beside book desk doubt found game hear held here homeless it its known looked mine one own "
        "place seat several tell telling tellings tells theirs there thin told unnamed ways who",
    )
)
"""No name is one of these: they say nothing of what they name. Nouns of the field do (``measured_rates``, ``path``)."""

PARTS = frozenset(
    re.findall(r"\w+", "anew beside homeless looked mine own tell telling tellings tells theirs told unnamed")
)
"""No part of a name either, between underscores or capitals."""

STORED = {
    ("execute/jobs.py", "place"): "a key of the files of submitted sweeps",
    ("measure/samples.py", "own_cpu_cores"): "likewise",
    ("result/record.py", "place"): "a key of result files",
    ("result/facts.py", "own_order"): "likewise",
    ("selftest/__init__.py", "told"): "a key of the selftest's JSON",
    ("models/families.py", "own_family"): "an argument that plug-ins' models give",
    ("result/quantity.py", "beside"): "an argument that plug-ins' metrics may give",
    ("result/quantity.py", "beside_metric"): "likewise",
}
"""Names that stay because files or plug-ins of users have them."""


def _bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module binds, with its line: of functions, classes, arguments, variables, attributes, imports
    and exceptions."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, line
        elif isinstance(node, ast.arg):
            yield node.arg, line
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, line
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, line
        elif isinstance(node, ast.alias | ast.ExceptHandler):
            bound = node.asname if isinstance(node, ast.alias) else node.name
            if bound:
                yield bound, line


def _is_forbidden(name: str) -> bool:
    parts = re.sub("([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")
    return (len(parts) == 1 and parts[0] in WORDS) or not PARTS.isdisjoint(parts)


def _forbidden_names(path: Path) -> list[str]:
    """``FILE:LINE NAME`` of each forbidden name in a module, its own included. Names of tests are sentences."""
    names = [(path.stem, 1), *_bindings(ast.parse(path.read_text(encoding="utf-8")))]
    file = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name
    kept = {name for stored, name in STORED if stored == file}
    return [
        f"{file}:{line} {name}"
        for name, line in names
        if _is_forbidden(name) and not name.startswith("test_") and name not in kept
    ]


def test_a_forbidden_name_is_found_where_it_is_bound(tmp_path: Path) -> None:
    (module := tmp_path / "module.py").write_text("""
def told_apart(where, *, one): ...
self._held = found = 1
try: ...
except OSError as here: ...
known_names, one_sided, owner, ownership, in_place = found_rows()
class OneSided: print(own.told(found))
""")
    names = {line.split()[1] for line in _forbidden_names(module)}
    assert names == {"told_apart", "one", "_held", "found", "here"}


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_names_are_nouns_of_the_field(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py")) if (PACKAGE / room).is_dir() else [PACKAGE / room]
    names = [name for path in files for name in _forbidden_names(path)]
    assert names == [], "rename:\n" + "\n".join(names)


def test_tests_bind_none_of_the_words_that_name_nothing() -> None:
    whole, words = {"here", "one", "own"}, {"anew", "beside", "found", "looked", "told"}
    files = sorted(path for folder in ("tests", "tools") for path in PACKAGE.with_name(folder).rglob("*.py"))
    names = [(path, *bound) for path in files for bound in _bindings(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(names) > 10_000
    parts = {name: set(name[1].split("_")) for name in names if name[1][:5] != "test_"}
    assert [name for name, of in parts.items() if words & of or of <= whole] == []


def test_a_class_name_means_one_thing() -> None:
    classes = Counter(
        node.name.lstrip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert len(classes) > 300
    assert {name for name, count in classes.items() if count > 1} == set()
