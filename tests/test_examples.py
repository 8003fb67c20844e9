"""The two programs to start from import nothing of zobench; their losses and weights are the engine's, ``==``."""

import ast
import importlib
import itertools
import sys
from pathlib import Path

import pytest
import torch

from tests.support.parity import assert_equal, engine_of, materialised
from zobench import ZOSGD, Batch

EXAMPLES = Path(__file__).parents[1] / "examples"
EPS, LR, SEED, STEPS = 1e-3, 1e-3, 7, 12


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return {name: importlib.import_module(name) for name in ("mezo", "zo2")}


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 128, (2, 17), generator=generator) for _ in range(STEPS)]


def mezo_run(programs):
    model = materialised("opt-tiny", "fp32", True)
    drawn = itertools.islice(programs["mezo"].seeds(SEED), STEPS)
    steps = [programs["mezo"].step(model, ids, s, eps=EPS, lr=LR) for ids, s in zip(batches(), drawn, strict=True)]
    return steps, dict(model.named_parameters())


@pytest.mark.parametrize("config", [{"placement": "resident"}, {"placement": "offload", "tier": "pageable"}], ids=str)
def test_mezo_is_the_engine(programs, config):
    steps, tuned = mezo_run(programs)
    with engine_of(device="cpu", **config) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=SEED)
        results = [method.step(engine, Batch(ids, ids)) for ids in batches()]
        engine.flush()
        assert [(result.loss, result.projected_grad) for result in results] == steps
        assert_equal(dict(engine.named_tensors()), tuned)
    assert len({g for _, g in steps}) == STEPS


def test_zo2_is_mezo(programs):
    steps, tuned = mezo_run(programs)
    model = materialised("opt-tiny", "fp32", True)
    tuner = programs["zo2"].ZO2(model, torch.device("cpu"), eps=EPS, lr=LR)
    drawn = itertools.islice(programs["mezo"].seeds(SEED), STEPS)
    assert [tuner.step(ids, s) for ids, s in zip(batches(), drawn, strict=True)] == steps
    tuner.finish(model)
    assert_equal(dict(model.named_parameters()), tuned)


@pytest.mark.parametrize("name", ["mezo", "zo2"])
def test_a_program_imports_nothing_of_ours_and_saves_what_it_tuned(name, programs, tmp_path, monkeypatch, capsys):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not any(module.startswith("zobench") for module in imported)
    monkeypatch.setattr(sys, "argv", [name, "--steps", "3", "--out", str(tmp_path / "tuned")])
    programs[name].main()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 1", "step 3"]
    assert (tmp_path / "tuned" / "model.safetensors").exists()
