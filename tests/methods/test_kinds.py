"""Kinds: only the methods know a method by its name, and their data imports no torch and leads to what it names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zobench
from zobench.finetune import grids
from zobench.methods import KINDS
from zobench.runspec import METHODS, SCHEMES, RunSpec
from zobench.runspec.kinds import Definition, MethodKind, SchemeKind
from zobench.runspec.registry import resolve

PACKAGE = Path(zobench.__file__).parent
NAMES = frozenset(kind.name for kind in KINDS)


def asked_for(tree: ast.AST) -> Iterator[int]:
    """Lines on which something is compared with, looked up by, or matched against the name of a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = list(node.args) if node.func.attr in ("get", "startswith", "endswith", "__eq__") else []
        else:
            continue
        words = (leaf.value for part in parts for leaf in ast.walk(part) if isinstance(leaf, ast.Constant))
        if any(word in NAMES for word in words if isinstance(word, str)):
            yield node.lineno  # type: ignore[attr-defined]


def test_nobody_but_the_methods_asks_for_a_methods_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "methods" not in path.relative_to(PACKAGE).parts
        for line in asked_for(ast.parse(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    "planted",
    [
        "spec.method == 'zo-sgd'", "'hybrid' != method", "method in ('fo-sgd', x)", "{'zo-adam': 2}.get('zo-adam')",
        "table['forward-grad']",
    ],
)  # fmt: skip
def test_a_planted_question_is_found(planted: str) -> None:
    assert list(asked_for(ast.parse(planted))) == [1]


def test_the_kinds_of_methods_and_schemes_import_no_torch() -> None:
    """Neither do a spec, its checks, and a prediction."""
    code = """
import sys
import zobench.methods, zobench.schemes
from zobench.runspec import METHODS, SCHEMES, RunSpec
from zobench.predict.footprint import memory
assert len(list(METHODS)) == 26 and len(list(SCHEMES)) == 4
plain = RunSpec(model="opt-tiny")
for kind in METHODS:
    memory(plain.replace(method=kind.name, **kind.changes(plain)).resolve("cpu"))
heavy = {"torch", "transformers", "peft", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_method_names_is_there(kind: MethodKind) -> None:
    definitions = [kind.as_written] if kind.as_shipped is None else [kind.as_written, kind.as_shipped]
    dotted = [kind.engine, kind.thresholds, None if kind.structure is None else kind.structure.make]
    for definition in definitions:
        assert isinstance(definition, Definition)
        dotted += [definition.make, definition.rule]
    assert all(callable(resolve(name)) for name in dotted if name is not None)
    own = kind.scheme is not None
    assert all(grids.shipped(kind.name, scheme.name).axes for scheme in SCHEMES if scheme.tunes_all or not own)
    if kind.scheme is not None:
        assert callable(resolve(kind.scheme.make))
        with pytest.raises(
            ValueError, match=f"`method={kind.name}` needs scheme=full, but got scheme=lora; use scheme"
        ):
            grids.shipped(kind.name, "lora")
    fields = RunSpec.__dataclass_fields__
    assert fields.keys() >= {*kind.takes, *kind.unused, *(need.name for need in kind.needs)}
    assert METHODS.get(kind.name) is kind


@pytest.mark.parametrize("kind", SCHEMES.builtin(), ids=lambda kind: kind.name)
def test_what_a_scheme_names_is_there(kind: SchemeKind) -> None:
    assert callable(resolve(kind.make))
