"""Models from a package outside the repository: one of a family that zobench knows, and one that brings its own."""

from pathlib import Path

import pytest

from tests.support.plugin import commands, package, python, results, table

MATRIX = """
title = "Guests"
[base]
seq_len = 16
steps = 2
[axes]
model = ["my-llama", "my-qwen"]
engine = ["resident", "offload"]
"""
COUNTS = """
import torch
from zobench import models
for name in ("my-llama", "my-qwen"):
    model = models.build(name, "fp32")
    assert models.parameter_count(name) == sum(p.numel() for p in model.parameters()), name
    assert {sum(p.numel() for p in block.parameters()) for block in models.blocks(model)} == {
        models.get(name).block}, name
    assert not models.is_masked(model)
"""


@pytest.mark.slow
def test_models_of_a_package_are_planned_swept_and_shown_in_a_table_and_found_in_any_case(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "guests.toml").write_text(MATRIX)
    seconds = 'name = "step_time"\nheader = "Step (s)"\nformat = ".3f"'
    (tmp_path / "shown.toml").write_text(table(seconds, '["my-llama", "my-qwen"]'))
    sweep = "sweep guests.toml --device cpu"
    told = commands(
        tmp_path, f"{sweep} --dry-run", sweep, "table shown.toml --format markdown",
        "run --model my-QWEN --device cpu --set seq_len=8 --set steps=1",
    )  # fmt: skip
    assert [code for code, _, _ in told] == [0] * 4, told
    (_, plan, more), _, (_, shown, _), _ = told
    assert (plan + more).count("run") >= 4
    found = {(one["spec"]["model"], one["spec"]["engine"]): one for one in results(tmp_path)}
    assert len(found) == 4
    assert {one["outcome"] for one in found.values()} == {"ok"}
    for model in ("my-llama", "my-qwen"):  # MeZO and ZO2 are one computation
        assert found[model, "resident"]["samples"]["loss"] == found[model, "offload"]["samples"]["loss"]
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("| my-")] == ["my-llama", "my-qwen"]


def test_sizes_of_a_packages_models_are_those_of_the_built_ones(tmp_path: Path) -> None:
    package(tmp_path)
    python(tmp_path, "-c", COUNTS)


def test_a_model_of_no_known_type_is_one_line(tmp_path: Path) -> None:
    module = package(tmp_path)
    module.write_text(module.read_text().replace('model_type="llama"', 'model_type="x"'))
    ((code, _, err),) = commands(tmp_path, "run --model my-llama --device cpu")
    told = "`model_type` must be one of opt, llama, mistral, qwen3, roberta, or come with `own_family`, but got 'x'"
    assert code == 2
    assert told in err.splitlines()[-1]
