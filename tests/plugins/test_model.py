"""Models from a package outside the repository: one of a family that zobench knows, and one that brings its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin import SWEEP, install, last_line, python, results, zobench

SOURCE = """
from zobench.models import Architecture, Family
from zobench.models.families import gated_block, gated_kept, gated_resident

GATED = {"num_key_value_heads": 2, "intermediate_size": 96, "rms_norm_eps": 1e-5,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
KNOWN = Architecture("guest-llama", "", "llama", 4, 4, 64, 64, 128, False, GATED)


def block(model):
    queries, keys = model.attention_widths
    return gated_block(model) + queries + 2 * keys  # Qwen2 adds biases to them


OWN = Architecture("Guest-Qwen2", "", "qwen2", 3, 4, 64, 64, 128, True, GATED,
                   Family(model_type="qwen2", block=block, resident=gated_resident, kept=gated_kept))
"""
MATRIX = """
title = "Guests"
[base]
seq_len = 16
steps = 2
[axes]
model = ["guest-llama", "Guest-Qwen2"]
engine = ["resident", "offload"]
"""
TABLE = """
title = "Guests"
[where]
seq_len = 16
[rows.product]
model = ["guest-llama", "Guest-Qwen2"]
[[columns]]
header = "MeZO"
where = { engine = "resident" }
[[metrics]]
name = "step_time"
header = "Step (s)"
format = ".3f"
better = "lower"
"""
COUNTS = """
import torch
from zobench import models
for name in ("guest-llama", "Guest-Qwen2"):
    model = models.build(name, "fp32")
    assert models.parameter_count(name) == sum(p.numel() for p in model.parameters()), name
    assert {sum(p.numel() for p in block.parameters()) for block in models.blocks(model)} == {
        models.block_parameter_count(name)}, name
    assert not models.is_masked(model)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "guest", "zobench.models", {"guest-llama": "KNOWN", "Guest-Qwen2": "OWN"}, SOURCE)
    return tmp_path


@pytest.mark.slow
def test_models_of_a_package_are_planned_swept_and_shown_in_a_table(folder: Path) -> None:
    (folder / "guests.toml").write_text(MATRIX)
    plan = zobench(folder, "sweep", "guests.toml", "--device", "cpu", "--dry-run")
    assert (plan.stdout + plan.stderr).count("run") >= 4
    python(folder, "-P", "-c", SWEEP, "guests.toml")
    found = {(one["spec"]["model"], one["spec"]["engine"]): one for one in results(folder)}
    assert len(found) == 4
    assert {one["outcome"] for one in found.values()} == {"ok"}
    for model in ("guest-llama", "Guest-Qwen2"):  # MeZO and ZO2 are one computation
        assert found[model, "resident"]["samples"]["loss"] == found[model, "offload"]["samples"]["loss"]
    (folder / "shown.toml").write_text(TABLE)
    shown = zobench(folder, "table", "shown.toml", "--format", "markdown").stdout
    assert [line.split()[1] for line in shown.splitlines() if line[:6].lower() == "| gues"] == [
        "guest-llama",
        "Guest-Qwen2",
    ]


def test_sizes_of_a_packages_models_are_those_of_the_built_ones(folder: Path) -> None:
    (folder / "counts.py").write_text(COUNTS)
    python(folder, "counts.py")


def test_names_of_a_packages_models_are_found_in_any_case(folder: Path) -> None:
    zobench(folder, "run", "--model", "guest-QWEN2", "--device", "cpu", "--set", "seq_len=8", "--set", "steps=1")


def test_models_are_listed_with_their_package_without_being_imported(folder: Path) -> None:
    (folder / "guest.py").write_text("raise RuntimeError('imported')\n")
    rows = [line.split() for line in zobench(folder, "list", "models").stdout.splitlines()]
    assert ["guest-llama", "from", "guest", "1.0"] in rows
    assert rows[1][0] == "model"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nowhere_at_all", "the model 'guest-llama' of the package guest must be importable, but Module"),
        (
            "from zobench.models import Architecture as A\nKNOWN = A('guest-llama', '', 'x', 1, 1, 8, 8, 8, True, {})",
            "`model_type` must be one of opt, llama, mistral, qwen3, roberta, or come with `own_family`, but got 'x'",
        ),
    ],
)
def test_a_model_that_fails_is_one_line(source: str, told: str, folder: Path) -> None:
    (folder / "guest.py").write_text(source)
    done = zobench(folder, "run", "--model", "guest-llama", "--device", "cpu", code=2)
    assert told in last_line(done)
