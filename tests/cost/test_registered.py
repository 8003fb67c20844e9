"""Registered predictions: stamped, never changed, and scored by the runs that come in."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores import run
from zobench.cost import gpu, hardware, registered
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store

GPUS = {"B200": "NVIDIA B200", "H200": "NVIDIA H200", "MI300X": "AMD Instinct MI300X",
        "RTX 5090": "NVIDIA GeForce RTX 5090"}  # fmt: skip


def measured(name: str, spec: RunSpec, seconds: float) -> Result:
    """A run on the GPU called ``name``."""
    card = {"name": name, "memory_mib": 1000}
    hardware = {"cores": 16, "cpu": "X", "gpus": [card]}
    return run(spec, samples={"step_seconds": [seconds] * 5}).with_facts(machine="gpu-1c-0a1b2c", hardware=hardware)


def test_those_that_come_with_zobench_are_whole_and_of_its_gpus() -> None:
    bodies = registered.read_all()
    assert sorted(body["gpu"] for body in bodies) == sorted(GPUS)
    for body in bodies:
        assert len(body["cells"]) == 18
        for cell in body["cells"]:
            low, middle, high = cell["step_seconds"]
            assert 0 < low < middle < high
            assert RunSpec.from_stored(cell["spec"]).label == cell["label"]


@pytest.mark.parametrize("name", ["H200", "RTX 5090"])
def test_a_run_is_scored_on_its_gpu_alone_whatever_its_seed_and_steps(name: str) -> None:
    body = next(body for body in registered.read_all() if body["gpu"] == name)
    cell = next(cell for cell in body["cells"] if cell["fits"])
    spec = RunSpec.from_stored(cell["spec"])
    low, middle, high = cell["step_seconds"]
    runs = [
        measured(GPUS[name], spec.replace(seed=7, steps=50), seconds) for seconds in (middle, 0.9 * low, 1.1 * high)
    ]
    elsewhere = [measured("NVIDIA T4", spec, middle), measured(GPUS[name], spec.replace(seq_len=64), middle)]
    assert [is_within for _, is_within in registered.scores([*runs, *elsewhere])] == [True, False, False]
    full = replace(runs[0], outcome=Outcome.OOM, samples={}, reason="device memory")
    ((line, is_within),) = registered.scores([full])
    assert (is_within, line.endswith("measured out of memory: outside")) == (False, True)
    assert not list(registered.scores([replace(full, reason="host memory ran out: MemoryError")]))


@pytest.mark.parametrize("device", ["NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 5090 Laptop GPU"])
def test_a_run_on_another_form_of_a_gpu_or_a_part_of_one_is_not_scored(device: str) -> None:
    name = "H200" if "H200" in device else "RTX 5090"
    body = next(body for body in registered.read_all() if body["gpu"] == name)
    cell = next(cell for cell in body["cells"] if cell["fits"])
    whole = measured(GPUS[name], RunSpec.from_stored(cell["spec"]), cell["step_seconds"][1])
    assert len(list(registered.scores([whole]))) == 1
    assert not list(registered.scores([measured(device, whole.spec, 1.0)]))
    assert not list(registered.scores([whole.with_facts(gpu={"name": device})]))  # beside a whole one
    cards = {"gpus": [{"name": GPUS[name]}, {"name": "NVIDIA T4"}]}
    assert not list(registered.scores([whole.with_facts(hardware=cards)]))
    assert len(list(registered.scores([whole.with_facts(hardware=cards, gpu={"name": GPUS[name]})]))) == 1


def test_what_was_changed_or_is_registered_already_is_refused(tmp_path: Path) -> None:
    spec = RunSpec(model="OPT-125M", seq_len=64).resolve("cuda:0")
    body = registered.registered("mine", [gpu.predict(spec, hardware.load("t4"))], datetime.date(2026, 1, 2))
    path = registered.write(tmp_path, body)
    assert path.name == "t4-mine-2026-01-02.json"
    assert registered.read_all(tmp_path) == [body]
    with pytest.raises(ValueError, match=r"never changes what is registered, but .* is there; name another folder"):
        registered.write(tmp_path, body)
    assert registered.write(tmp_path, {**body, "gpu": "My/T4"}).name == "my-t4-mine-2026-01-02.json"
    for text in (json.dumps({**body, "registered": "2025-01-02"}), "[]", "{"):
        path.write_text(text)
        with pytest.raises(ValueError, match="must have the SHA-256 that it names, but has another"):
            registered.read_all(tmp_path)


def test_a_prediction_is_registered_by_a_command_and_scored_by_a_merge(tmp_path, zobench, monkeypatch) -> None:
    monkeypatch.setattr(registered, "FOLDER", tmp_path)
    monkeypatch.setattr(registered.scores, "__defaults__", (tmp_path,))
    code, _, err = zobench("predict", "gpu_main", "--gpu", "t4", "--register", str(tmp_path))
    assert code == 0
    (body,) = registered.read_all(tmp_path)
    assert f"SHA-256 {body['sha256']}" in err
    cell = next(cell for cell in body["cells"] if cell["fits"])
    Store(tmp_path / "a").save(measured("Tesla T4", RunSpec.from_stored(cell["spec"]), cell["step_seconds"][1]))
    code, out, _ = zobench("results", str(tmp_path / "a"), "--merge-into", str(tmp_path / "all"))
    assert code == 0
    assert f"for T4, {cell['label']}: predicted " in out
    assert out.endswith("registered predictions: 1 of 1 within their range\n")
