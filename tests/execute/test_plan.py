"""The plan: which cells run, which are kept, which cannot run here and why."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import RATES
from tests.support.submissions import MACHINE, ended
from zobench.cost import footprint
from zobench.execute import plan, sweep
from zobench.result import Outcome
from zobench.runspec import RunSpec
from zobench.store import Store

GB = 10**9
ROOM = plan.Limits(device_bytes=None, host_bytes=24 * GB, disk_bytes=500 * GB)
RETRY = frozenset({"failed", "contaminated"})


def cell(model: str = "opt-tiny", **changes: Any) -> RunSpec:
    return RunSpec(**{"model": model, "seq_len": 32, **changes}).resolve(changes.get("device", "cpu"))


def stored(folder: Path, spec: RunSpec, outcome: Outcome, reason: str = "") -> Store:
    store = Store(folder)
    samples = {"step_seconds": [1.0]} if outcome is Outcome.OK else {}
    store.save(dataclasses.replace(ended(spec, outcome, reason), samples=samples))
    return store


def made(folder: Path, *cells: RunSpec, room: plan.Limits = ROOM, retry: frozenset[str] = RETRY) -> list[plan.Step]:
    return plan.make(cells, Store(folder), MACHINE, RATES, room, retry)


def test_the_disk_is_that_of_the_cells_where_the_environment_names_it(tmp_path, monkeypatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(plan, "free_disk_bytes", lambda folder: asked.append(folder) or GB)
    monkeypatch.setenv("ZOBENCH_DISK_DIR", str(tmp_path))
    for disk_dir in (None, tmp_path / "option"):
        room = dataclasses.replace(plan.limits("cpu", disk_dir), host_bytes=24 * GB, disk_is_memory=False)
        folder = disk_dir or tmp_path
        misfit = plan.misfit(cell("OPT-13B", engine="offload", tier="disk"), disk_dir, room)
        assert f" in {folder}; name a folder of a larger disk" in misfit
        assert asked.pop() == folder


def test_an_ok_cell_is_always_kept(tmp_path: Path) -> None:
    stored(tmp_path, cell(), Outcome.OK)
    (step,) = made(tmp_path, cell(), retry=frozenset({"oom", "timeout", "failed", "skipped"}))
    assert (step.action, step.reason) == ("keep", "done")
    assert step.earlier.spec == cell()


def test_what_was_measured_stays_where_the_cell_can_no_longer_run(tmp_path, monkeypatch) -> None:
    def refused(spec: RunSpec) -> None:
        raise ValueError("the program is gone")

    store = stored(tmp_path, cell(), Outcome.OK)
    monkeypatch.setattr(plan.programs, "check", refused)
    (step,) = made(tmp_path, cell())
    assert (step.action, step.reason) == ("skip", "the program is gone")
    sweep.sweep([step], store)
    (kept,) = Store(tmp_path).load()
    assert kept.outcome is Outcome.OK


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.FAILED])
def test_any_other_outcome_is_kept_until_retry_names_it(tmp_path: Path, outcome: Outcome) -> None:
    stored(tmp_path, cell(), outcome, "it was so")
    (step,) = made(tmp_path, cell(), retry=frozenset())
    assert (step.action, step.reason) == ("keep", f"{outcome} before: it was so")
    (step,) = made(tmp_path, cell(), retry=frozenset({str(outcome)}))
    assert step.action == "run"
    assert step.earlier is not None
    (step,) = made(tmp_path, cell())
    assert step.action == ("run" if outcome in RETRY else "keep")


def test_a_skipped_cell_is_always_planned_again(tmp_path: Path) -> None:
    stored(tmp_path, cell(), Outcome.SKIPPED, "no room then")
    (step,) = made(tmp_path, cell(), retry=frozenset())
    assert (step.action, step.earlier) == ("run", None)


def test_another_machines_or_another_specs_result_is_not_kept(tmp_path: Path) -> None:
    stored(tmp_path, cell(seed=1), Outcome.OK)
    assert made(tmp_path, cell())[0].action == "run"
    assert plan.make([cell(seed=1)], Store(tmp_path), "other-1c-000000", RATES, ROOM, RETRY)[0].action == "run"


def test_a_checkpoint_needs_disk_space_once_its_journal_is_written_into_the_blocks(tmp_path: Path) -> None:
    tier: dict[str, Any] = {"engine": "offload", "tier": "checkpoint", "weights": "pretrained", "noise": "counter"}
    short, long = (
        cell("OPT-6.7B", dtype="bf16", writeback_every="inf", steps=steps, warmup=0, **tier) for steps in (256, 257)
    )
    steps = made(tmp_path, short, long, room=plan.Limits(device_bytes=None, host_bytes=24 * GB, disk_bytes=GB))
    assert [step.action for step in steps] == ["run", "skip"]
    assert steps[1].reason == "needs 12.9 GB of disk space, 1.0 GB are free (need predicted)"


def test_a_gpus_memory_is_its_own_limit(tmp_path: Path) -> None:
    room = plan.Limits(device_bytes=20 * GB, host_bytes=64 * GB, disk_bytes=40 * GB)
    cuda: dict[str, Any] = {"device": "cuda:0", "dtype": "fp16"}
    steps = made(
        tmp_path, cell("OPT-13B", **cuda), cell("OPT-13B", engine="offload", **cuda),
        cell("OPT-66B", engine="offload", **cuda), cell("OPT-66B", engine="offload", weights="shared", **cuda),
        room=room,
    )  # fmt: skip
    assert [step.action for step in steps] == ["skip", "run", "skip", "run"]
    assert "of device memory, 20.0 GB are free" in steps[0].reason
    assert "of host memory, 62.9 GB are free" in steps[2].reason


@pytest.mark.parametrize("engine", ["resident", "offload"])
def test_on_a_cpu_all_ranks_must_fit_the_one_host(tmp_path: Path, engine: str) -> None:
    alone, four = (
        cell("OPT-1.3B", engine=engine, batch_size=4, tier="auto", **how)
        for how in ({}, {"gpus": 4, "parallel": "2d"})
    )  # fmt: skip
    device, host, _ = footprint.memory(four)
    need = device + host + plan.HOST_RESERVE
    for free, action in ((need, "run"), (need - 1, "skip")):
        (step,) = made(tmp_path, four, room=plan.Limits(device_bytes=None, host_bytes=free, disk_bytes=500 * GB))
        assert step.action == action
    assert "of host memory, " in step.reason
    assert (
        made(tmp_path, alone, room=plan.Limits(device_bytes=None, host_bytes=need - 1, disk_bytes=GB * 500))[0].action
        == "run"
    )


def test_gpus_that_are_not_there_are_told_before_work_starts(tmp_path: Path) -> None:
    room = plan.Limits(device_bytes=80 * GB, host_bytes=500 * GB, disk_bytes=500 * GB, devices=2)
    two, four = (cell(device="cuda", batch_size=4, gpus=gpus, parallel=how) for gpus, how in ((2, "pertp"), (4, "2d")))
    steps = made(tmp_path, two, four, four.replace(nodes=2), four.replace(parallel="ddp", nodes=4), room=room)
    assert [step.action for step in steps] == ["run", "skip", "skip", "skip"]
    assert steps[1].reason == "needs 4 GPUs, 2 GPUs are visible"
    assert steps[2].reason == ("needs 2 nodes, this is one node; use --executor slurm, or --rendezvous on all nodes")
    single = dataclasses.replace(room, devices=1, meets=True)
    (step,) = made(tmp_path, four.replace(nodes=2), room=single)
    assert step.reason == "needs 2 GPUs on each node, 1 GPU is visible"
    (step,) = made(tmp_path, four.replace(nodes=2), room=dataclasses.replace(room, meets=True))
    assert step.action == "run"


def test_snapshots_need_room_on_the_disk(tmp_path: Path) -> None:
    saved = cell("OPT-1.3B", checkpoint="journal", checkpoint_every=2)
    steps = made(tmp_path, saved, room=plan.Limits(device_bytes=None, host_bytes=24 * GB, disk_bytes=12 * GB))
    assert steps[0].reason == "needs 15.8 GB of disk space, 12.0 GB are free (need predicted)"
