"""Faults of a fine-tuning run: what fails is told in one line, and costs no more than it must."""

import errno
import itertools
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.callbacks import Acting, MachineDownError, crash
from tests.support.watched import before
from zobench.durable import journal, snapshot
from zobench.methods.base import Taken
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.training import Interrupted
from zobench.training import finetune as run
from zobench.training.examine import best_weights

Run = Callable[..., Result]


@pytest.fixture
def go(data_dir: Path) -> Run:
    """Runs without a look at test; what it says goes to ``said``, and ``acts`` are done after so many steps."""

    def call(spec: RunSpec, folder: Path, said: list[str] | None = None, **acts: Callable[[], Any]) -> Result:
        listener = Acting({int(name.removeprefix("after_")): act for name, act in acts.items()})
        result = run(spec, folder=folder, data_dir=data_dir, examine=False, callbacks=[listener])
        if said is not None:
            said += listener.lines
        return result

    return call


def weights(spec: RunSpec, folder: Path) -> dict[str, torch.Tensor]:
    with best_weights(spec, folder, spec.steps, print) as built:
        return dict(built.engine.named_tensors())


def assert_same(spec: RunSpec, first: Path, other: Path, left: Result, right: Result) -> None:
    assert left.evaluation == right.evaluation
    assert left.samples["loss"] == right.samples["loss"]
    mine, theirs = weights(spec, first), weights(spec, other)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def damage(path: Path) -> None:
    """Changes one byte of a snapshot."""
    file = path / "0-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(("engine", "damaged"), [("resident", 2), ("offload", 1)])
def test_a_damaged_snapshot_is_left_out(spec: Any, go: Run, tmp_path: Path, engine: str, damaged: int) -> None:
    """The one before it, or the base, and the journal give the same."""
    wanted = spec(engine=engine)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = go(wanted, whole)
    with pytest.raises(MachineDownError):
        go(wanted, parts, after_9=crash)
    assert snapshot.steps(parts) == [4, 8]
    for step in (8, 4)[:damaged]:
        damage(parts / f"snapshot-{step}")
    said: list[str] = []
    resumed = go(wanted, parts, said)
    left_out = [line for line in said if line.startswith("warning: a snapshot is left out: ")]
    assert len(left_out) == damaged
    assert left_out == [
        line for line in said if "00001.safetensors` must be as it was written, but its checksum differs" in line
    ]
    assert f"goes on after step 9, from {parts / 'snapshot-4' if damaged == 1 else 'the base'}" in said
    assert_same(wanted, whole, parts, expected, resumed)
    assert snapshot.steps(parts)[-1] == 10  # and the damaged ones go, by and by


def test_a_snapshot_of_another_run_or_ahead_of_the_journal_is_not_used(spec: Any, go: Run, tmp_path: Path) -> None:
    wanted, parts = spec(), tmp_path / "parts"
    expected = go(wanted, tmp_path / "whole")
    go(spec(lr=2e-3, steps=3), tmp_path / "other")
    with pytest.raises(MachineDownError):
        go(wanted, parts, after_3=crash)
    shutil.copytree(tmp_path / "other" / "snapshot-3", parts / "snapshot-3")
    shutil.copytree(tmp_path / "whole" / "snapshot-10", parts / "snapshot-10")
    said: list[str] = []
    resumed = go(wanted, parts, said)
    assert f"warning: a snapshot is left out: `{parts / 'snapshot-3'}` is another run's; remove it" in said
    assert "goes on after step 3, from the base" in said
    assert_same(wanted, tmp_path / "whole", parts, expected, resumed)


def test_other_weights_than_the_run_began_with_are_refused(
    spec: Any, go: Run, data_dir: Path, tmp_path: Path, weights_path: Path
) -> None:
    """Also of a run that has ended, before its weights are looked at test with."""
    folder = tmp_path / "weights"
    shutil.copytree(weights_path, folder)
    wanted = spec(weights_path=str(folder))
    go(wanted, tmp_path / "run")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.fc1.weight"))
    tensors[name][-1, 0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    content = (tmp_path / "run" / "journal.bin").read_bytes()
    with pytest.raises(
        ValueError,
        match=r"journal.bin` must go with the weights that it began from \(sha256 .*\), but the weights are ",
    ):
        run(wanted, folder=tmp_path / "run", data_dir=data_dir)
    assert (tmp_path / "run" / "journal.bin").read_bytes() == content
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_disk_that_is_full_for_a_snapshot_ends_no_run(spec, go, tmp_path, monkeypatch, form) -> None:
    wanted = spec(engine="offload", tier="pageable", checkpoint=form, checkpoint_every=4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = go(wanted, whole)
    count = itertools.count()

    def refuse(*_: Any) -> None:
        if next(count) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before(monkeypatch.setattr, snapshot._Shard, "add", refuse)
    said: list[str] = []
    resumed = go(wanted, parts, said)
    assert [line for line in said if "snapshot" in line or "checkpoint" in line] == [
        "warning: the checkpoint after 4 steps could not be written, and the run goes on without it: [Errno 28] No "
        "space left on device; the journal holds the run"
    ]
    assert not list(parts.glob(".snapshot-*"))
    kept = snapshot.steps(parts)  # beside the steps, the next begins when the threads are done, if ever
    assert kept[:1] == [8] if form == "sync" else all(step >= 8 for step in kept)
    assert_same(wanted, whole, parts, expected, resumed)


@pytest.mark.parametrize(
    ("changes", "most", "refused"),
    [
        ({"method": "fo-adam"}, 100_000, "snapshot-4"),
        ({}, 100_000, "model"),
        ({"scheme": "lora"}, 8_000, "adapter_model.safetensors"),
    ],
)
def test_a_disk_that_refuses_tensors_is_one_line_that_names_them(
    spec: Any, data_dir: Path, tmp_path: Path, changes: dict[str, Any], most: int, refused: str
) -> None:
    """Files may become ``most`` bytes long; what writes the tensors has errors of its own, which no command catches."""
    wanted, before = spec(steps=4, **changes), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OSError, match=f"File too large.*{refused}"):
            run(wanted, folder=tmp_path, data_dir=data_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run(wanted, folder=tmp_path, data_dir=data_dir)


def test_a_torn_journal_costs_the_steps_that_it_lost(spec: Any, go: Run, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = go(spec(), whole)
    with pytest.raises(MachineDownError):
        go(spec(), parts, after_7=crash)
    path = parts / "journal.bin"
    os.truncate(path, path.stat().st_size - 2 * journal.SIZE - 3)
    said: list[str] = []
    resumed = go(spec(), parts, said)
    assert f"goes on after step 6, from {parts / 'snapshot-4'}" in said
    assert_same(spec(), whole, parts, expected, resumed)


def test_clocks_that_jump_change_nothing(spec: Any, go: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and wall clocks say nothing of what comes after what."""
    wanted = spec(checkpoint="journal", checkpoint_every=2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = go(wanted, whole)
    clock = itertools.count(2_000_000_000, -86_400)
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    with pytest.raises(MachineDownError):
        go(wanted, parts, after_7=crash)
    for number, path in enumerate(sorted(parts.rglob("*"))):
        os.utime(path, (1_000_000_000 - number * 1000,) * 2)
    assert_same(wanted, whole, parts, expected, go(wanted, parts))


def test_a_run_that_is_told_to_end_does_so_between_two_steps(spec: Any, go: Run, tmp_path: Path) -> None:
    """Slurm sends SIGTERM and leaves a grace period; all that takes time, a snapshot, is not needed to go on."""
    wanted = spec(engine="offload", tier="pageable", checkpoint="async", checkpoint_every=3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = go(wanted, whole)
    for step in (2, 5):
        with pytest.raises(Interrupted, match=f"stopped after {step} steps"):
            go(wanted, parts, **{f"after_{step}": lambda: os.kill(os.getpid(), signal.SIGTERM)})
        taken = [item for item in journal.read(parts / "journal.bin")[1] if isinstance(item, Taken)]
        assert len(taken) == step
    assert_same(wanted, whole, parts, expected, go(wanted, parts))
