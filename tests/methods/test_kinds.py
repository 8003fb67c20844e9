"""Kinds: only the methods know a method by its name, and their data imports no torch and leads to what it names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zobench
from zobench import methods
from zobench.methods import KINDS
from zobench.runspec import METHODS, RunSpec

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
    places = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "methods" not in path.relative_to(PACKAGE).parts
        for line in asked_for(ast.parse(path.read_text()))
    ]
    assert not places


def test_the_kinds_of_methods_and_schemes_import_no_torch() -> None:
    """Neither do a spec, its checks, and a prediction."""
    code = """
import sys
import zobench.methods, zobench.schemes
from zobench.runspec import METHODS, SCHEMES, RunSpec
from zobench.cost.footprint import memory
assert len(list(METHODS)) == 26 and len(list(SCHEMES)) == 4
plain = RunSpec(model="opt-tiny")
for kind in METHODS:
    memory(plain.replace(method=kind.name, **kind.changes(plain)).resolve("cpu"))
heavy = {"torch", "transformers", "peft", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


COUNTER = {"noise": "counter"}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lozo", {}, "needs noise=counter"),
        ("lozo", {**COUNTER, "compile": True}, "needs compile=False"),
        ("lozo", {**COUNTER, "options": {"rank": 2.5}}, "`options.rank` must be of type int"),
        ("eggroll", {**COUNTER, "queries": 1}, "needs queries=32"),
        ("fzoo", {"queries": 8, "engine": "offload", "parallel": "pertp", "gpus": 2},
         "`parallel=pertp` needs method=zo-sgd or .*, but got method=fzoo; it has no pair of points to share out"),
        ("sparse-mezo", {}, "needs noise=counter, but got noise=torch; its masks follow"),
        ("hizoo", {"queries": 2}, "needs queries=1, but got queries=2; its curvature is of"),
        ("zo-adam", {**COUNTER, "survival": True},
         "`survival=true` needs method=zo-sgd or .* but got method=zo-adam; other"),
        ("qzo", {"scheme": "lora"}, "needs scheme=full, but got scheme=lora; it tunes a part of the int"),
        ("qzo", {**COUNTER, "engine": "offload", "tier": "disk", "granularity": "linear"},
         "needs granularity=block, but got"),
        ("qzo", {"options": {"bits": 3}}, "`options.bits` must be one of 4, 8, but got 3; use options.bits=4"),
        ("qes", {**COUNTER, "queries": 3, "weight_decay": 0.1},
         "needs weight_decay=0.0, but got weight_decay=0.1; nothing"),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_run_is_one_line(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message if "`" in message else f"`method={name}`.*{message}") as error:
        RunSpec(model="opt-tiny", method=name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lozo", {"rank": 0}, "`options.rank >= 1` must hold, but got"),
        ("lozo-m", {"beta": 1.0}, "`options.beta < 1` must hold, but got options.beta=1.0; use options.beta=0.9"),
        ("eggroll", {"shards": 5}, "`options.shards` must divide the population of 64"),
        ("eggroll", {"shaping": "rank"}, "`options.shaping` must be one of none, z-score, ranks, but got 'rank'"),
        ("eggroll", {"reward": "accuracy"}, "`options.reward=accuracy` needs a task that trains on all candidates"),
        ("conmezo", {"theta": 2.0}, "`options.theta <= 1.570.*` must hold, but got options.theta=2.0; use options.th"),
        ("conmezo", {"theta": 0.0}, "`options.theta > 0` must hold, but got options.theta=0.0; use options.theta"),
        ("meazo", {"zeta": 0.0}, "`options.zeta > 0` must hold, but got options.zeta=0.0; use options.zeta=1e-08"),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    plain = RunSpec(model="opt-tiny", batch_size=3)
    with pytest.raises(ValueError, match=message) as error:
        methods.make(plain.replace(method=name, **METHODS.get(name).changes(plain), options=options))
    assert "\n" not in str(error.value)


def test_a_reward_that_is_always_1_is_refused() -> None:
    """A step on a task with the loss "lm" sees the right candidates alone: their share of right answers is 1."""
    spec = RunSpec(model="opt-tiny", method="eggroll", noise="counter", queries=2, options={"reward": "accuracy"})
    methods.make(spec.replace(task="sst2"))
    for task in ("copa", "squad"):
        with pytest.raises(ValueError, match=f"all candidates of an example, but got task={task}; use options.reward"):
            methods.make(spec.replace(task=task))
