"""A method from outside the repository: one file, one entry point; swept, predicted and shown like zobench's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.plugin import commands, package, python, results
from tests.support.rates import CALIBRATION

COSTLIER = """


def variant(name, definition=SCALED_SIGN.as_written, **costs):
    return MethodKind(name=name, as_written=definition, **costs)


DRAWS, UPLOADS = variant("my-draws", draws=8), variant("my-uploads", uploads=2)
PAIRS = variant("my-pairs", pairs=lambda spec, layers: 3 * spec.queries)
STATE = variant("my-state", states=1)
COPIES = variant("my-copies", Definition(formula="w", make="zobench.methods.zo_sgd:make", rule="my_zo:rule", copies=5))
"""
"""Kinds like the page's, each of which says that a step costs more of one thing."""
VARIANTS = {f"my-{name}": name.upper() for name in ("draws", "uploads", "pairs", "state", "copies")}
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
method = ["zo-sgd-sign", "scaled-sign"]
[[include]]
method = "scaled-sign"
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
where = { method = "scaled-sign" }
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
from zobench.training.assemble import tuner
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
    *same_costs, found = weights("scaled-sign", **changes)
    assert costs == same_costs
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    *_, scaled = weights("scaled-sign", options={"scale": 0.5}, **changes)
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

drawn = compute_seconds(spec("my-draws"), rates) - compute_seconds(spec("scaled-sign"), rates)
close(drawn, 4 * count / rates.noise["torch"])
assert passes(spec("my-pairs")) == 3 * passes(spec("scaled-sign")) == 6
streamed = {"engine": "offload", "tier": "disk"}
twice, once = (transfer_seconds(spec(name, **streamed), rates) for name in ("my-uploads", "scaled-sign"))
close(twice - once, 12 * models.get("OPT-125M").block * 4 / rates.bytes_up["disk"])
close(memory(spec("my-state"))[0] - memory(spec("scaled-sign"))[0], 4 * count)
more = memory(spec("my-copies", "cuda:0"))[0] - memory(spec("scaled-sign", "cuda:0"))[0]
close(more, 4 * 4 * max(models.resident_sizes("OPT-125M")))
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package with kinds of other costs, a matrix and a table."""
    guest = tmp_path_factory.mktemp("guest")
    package(guest, COSTLIER, VARIANTS)
    (guest / "signs.toml").write_text(RUNNER)
    (guest / "table.toml").write_text(TABLE)
    return guest


def test_it_is_unknown_where_it_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "signs.toml").write_text(RUNNER)
    ((code, _, err),) = commands(tmp_path, "sweep signs.toml --dry-run --device cpu")
    assert code == 2
    assert "`method` must be one of zo-sgd, zo-sgd-sign" in err
    assert "scaled-sign" in err


def test_its_weights_and_costs_are_those_of_the_built_in_sign_bit_for_bit(guest: Path) -> None:
    python(guest, "-c", WEIGHTS)


def test_plans_read_what_it_says_that_it_costs(guest: Path) -> None:
    python(guest, "-c", COSTS, json.dumps(CALIBRATION))


@pytest.mark.slow
def test_it_is_planned_swept_and_shown(guest: Path) -> None:
    sweep = "sweep signs.toml --device cpu"
    told = commands(guest, f"{sweep} --dry-run", sweep, "table table.toml --results results")
    assert [code for code, _, _ in told] == [0, 0, 0], told
    (_, plan, _), _, (_, shown, _) = told
    assert plan.count("scaled-sign") == 3
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for stored in results(guest):
        spec = stored["spec"]
        found[spec["engine"], spec["method"], json.dumps(spec.get("options", {}))] = stored
    assert len(found) == 5
    assert {stored["outcome"] for stored in found.values()} == {"ok"}
    for engine in ("resident", "offload"):
        expected, same = found[engine, "zo-sgd-sign", "{}"], found[engine, "scaled-sign", "{}"]
        for name in ("loss", "projected_grad"):
            assert same["samples"][name] == expected["samples"][name]
        assert same["environment"]["definition"] == "w -= scale * lr * sign(ghat)"
    scaled = found["resident", "scaled-sign", '{"scale": 0.5}']
    assert scaled["samples"]["loss"] != found["resident", "scaled-sign", "{}"]["samples"]["loss"]
    (row,) = [line for line in shown.splitlines() if "from outside" in line]
    assert any(character.isdigit() for character in row)
