"""A method from outside the repository: one file, one entry point; swept, predicted and shown like zobench's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.plugin import SWEEP
from tests.support.rates import CALIBRATION, calibrate
from zobench.execute import process
from zobench.measure.environment import fingerprint_without_torch

METHOD = '''
"""ZO-SGD-Sign again, with a factor of its own on the learning rate."""

from dataclasses import dataclass

from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, UpdateSize


class MySign(ZOSGD):
    """Its step is ZO-SGD's."""


@dataclass(frozen=True)
class ScaledSign:
    scale: float
    states = ()

    def state_dtype(self, weights):
        return weights

    def apply(self, weights, estimate, states, *, lr, weight_decay, step):
        estimate.sign_()
        if weight_decay:
            estimate.add_(weights.float() * weight_decay)
        weights.sub_(estimate.mul_(lr * self.scale))


def make(spec):
    return MySign(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)


def rule(spec):
    return ScaledSign(spec.option("scale"))


KIND = MethodKind(
    name="my-sign",
    as_written=Definition(
        formula="w -= scale * lr * sign(ghat)", make="my_methods:make", rule="my_methods:rule",
        copies=1, piece_copies=3, update=UpdateSize.SIGN,
    ),
    options={"scale": 1.0},
)


def variant(name, definition=KIND.as_written, **costs):
    return MethodKind(name=name, as_written=definition, **costs)


DRAWS, UPLOADS = variant("my-draws", draws=8), variant("my-uploads", uploads=2)
PAIRS = variant("my-pairs", pairs=lambda spec, layers: 3 * spec.queries)
STATE = variant("my-state", states=1)
COPIES = variant("my-copies", Definition(formula="w", make="my_methods:make", rule="my_methods:rule", copies=5))
'''
RUNNER = """
title = "The sign, twice"
[base]
model = "opt-tiny"
seq_len = 32
steps = 3
lr = 1e-4
weight_decay = 0.1
[axes]
engine = ["resident", "offload"]
method = ["zo-sgd-sign", "my-sign"]
[[include]]
method = "my-sign"
[include.options]
scale = 0.5
"""
TABLE = """
title = "The sign, twice"
caption = "No paper."
[where]
seq_len = 32
weight_decay = 0.1
[rows]
header = "Method"
[[rows.variants]]
header = "built in"
where = { method = "zo-sgd-sign" }
[[rows.variants]]
header = "from outside"
where = { method = "my-sign" }
[[columns]]
header = "offload"
where = { engine = "offload" }
[[metrics]]
name = "throughput"
header = "Throughput (tokens/s)"
format = ".0f"
better = "higher"
"""
WEIGHTS = """
import torch
from zobench import models
from zobench.data.tokens import stream
from zobench.finetune.assemble import tuner
from zobench.cost import passes
from zobench.cost.footprint import memory
from zobench.runspec import RunSpec

def weights(method, **changes):
    fixed = dict(model="opt-tiny", seq_len=17, batch_size=2, lr=1e-3, weight_decay=0.1, queries=2, method=method)
    spec = RunSpec(**fixed, **changes).resolve("cpu")
    with tuner(spec) as built:
        for batch, _ in zip(stream(spec, models.get(spec.model).vocab, 1), range(3)):
            built.method.step(built.engine, batch)
        tensors = {name: tensor.clone() for name, tensor in built.engine.named_tensors()}
    return memory(spec), passes(spec), tensors

for changes in ({}, {"dtype": "fp16"}, {"engine": "offload", "tier": "disk", "noise": "counter"}):
    *costs, expected = weights("zo-sgd-sign", **changes)
    *same_costs, found = weights("my-sign", **changes)
    assert costs == same_costs
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    *_, scaled = weights("my-sign", options={"scale": 0.5}, **changes)
    assert not all(torch.equal(scaled[name], found[name]) for name in found)
"""
COSTS = """
import json, sys
from zobench import models
from zobench.cost import Rates, compute_seconds, passes, transfer_seconds
from zobench.cost.footprint import memory
from zobench.runspec import RunSpec

rates = Rates.of(json.loads(sys.argv[1]))
count = models.parameter_count("OPT-125M")

def spec(method, device="cpu", **changes):
    return RunSpec(model="OPT-125M", seq_len=64, method=method, **changes).resolve(device)

def close(one, other):
    assert abs(one - other) < 1e-6 * abs(other), (one, other)

drawn = compute_seconds(spec("my-draws"), rates) - compute_seconds(spec("my-sign"), rates)
close(drawn, 4 * count / rates.noise["torch"])
assert passes(spec("my-pairs")) == 3 * passes(spec("my-sign")) == 6
streamed = {"engine": "offload", "tier": "disk"}
uploads = transfer_seconds(spec("my-uploads", **streamed), rates) - transfer_seconds(spec("my-sign", **streamed), rates)
close(uploads, 12 * models.block_parameter_count("OPT-125M") * 4 / rates.bytes_up["disk"])
close(memory(spec("my-state"))[0] - memory(spec("my-sign"))[0], 4 * count)
more = memory(spec("my-copies", "cuda:0"))[0] - memory(spec("my-sign", "cuda:0"))[0]
close(more, 4 * 4 * models.largest_resident("OPT-125M"))
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as pip leaves it in ``site``, and a folder ``work`` on a measured machine."""
    guest = tmp_path_factory.mktemp("guest")
    info = guest / "site" / "my_methods-1.0.dist-info"
    info.mkdir(parents=True)
    (guest / "site" / "my_methods.py").write_text(METHOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-methods\nVersion: 1.0\n")
    kinds = {"sign": "KIND", **{name: name.upper() for name in ("draws", "uploads", "pairs", "state", "copies")}}
    points = "".join(f"my-{name} = my_methods:{attribute}\n" for name, attribute in kinds.items())
    (info / "entry_points.txt").write_text(f"[zobench.methods]\n{points}")
    calibrate(guest / "work", fingerprint_without_torch()["machine"])
    (guest / "work" / "signs.toml").write_text(RUNNER)
    (guest / "work" / "table.toml").write_text(TABLE)
    return guest


def python(guest: Path, *arguments: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**process.child_environment(), "COLUMNS": "200"}
    if installed:
        environment["PYTHONPATH"] = os.pathsep.join([str(guest / "site"), environment["PYTHONPATH"]])
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=guest / "work", env=environment, capture_output=True, text=True, check=False)


def zobench(guest: Path, *arguments: str) -> str:
    done = python(guest, "-m", "zobench", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_is_listed_and_unknown_where_it_is_not_installed(guest: Path) -> None:
    (row,) = [line for line in zobench(guest, "list", "methods").splitlines() if "my-sign" in line]
    assert " ".join(row.split()).startswith(
        "my-sign 2 0 w -= scale * lr * sign(ghat); options.scale=1.0; from my-methods"
    )
    done = python(guest, "-m", "zobench", "sweep", "signs.toml", "--dry-run", "--device", "cpu", installed=False)
    assert done.returncode != 0
    assert "`method` must be one of zo-sgd, zo-sgd-sign" in done.stderr
    assert "my-sign" in done.stderr


def test_its_weights_and_costs_are_those_of_the_built_in_sign_bit_for_bit(guest: Path) -> None:
    done = python(guest, "-c", WEIGHTS)
    assert done.returncode == 0, done.stderr


def test_plans_read_what_it_says_that_it_costs(guest: Path) -> None:
    done = python(guest, "-c", COSTS, json.dumps(CALIBRATION))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_it_is_planned_swept_and_shown(guest: Path) -> None:
    plan = zobench(guest, "sweep", "signs.toml", "--dry-run", "--device", "cpu")
    assert plan.count("my-sign") == 3
    done = python(guest, "-c", SWEEP, "signs.toml")
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for file in (guest / "work" / "results").rglob("*.json"):
        stored = json.loads(file.read_text())
        if "spec" in stored:
            spec = stored["spec"]
            found[spec["engine"], spec["method"], json.dumps(spec.get("options", {}))] = stored
    assert len(found) == 5
    assert {stored["outcome"] for stored in found.values()} == {"ok"}
    for engine in ("resident", "offload"):
        expected, same = found[engine, "zo-sgd-sign", "{}"], found[engine, "my-sign", "{}"]
        for name in ("loss", "projected_grad"):
            assert same["samples"][name] == expected["samples"][name]
        assert same["environment"]["definition"] == "w -= scale * lr * sign(ghat)"
    scaled = found["resident", "my-sign", '{"scale": 0.5}']
    assert scaled["samples"]["loss"] != found["resident", "my-sign", "{}"]["samples"]["loss"]
    shown = zobench(guest, "table", "table.toml", "--results", "results")
    (row,) = [line for line in shown.splitlines() if "from outside" in line]
    assert any(character.isdigit() for character in row)
