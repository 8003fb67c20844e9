"""Checkpoints beside the steps: what is restored from each is, bit for bit, the run that was never interrupted."""

import functools
import itertools
import json
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch

from tests.support.forked_ranks import run_ranks
from tests.support.parity import batches_of
from tests.support.save_rank import TOLD, Recorder, restored, weights_of
from tests.support.watched import before
from zobench import RunSpec
from zobench.durable import savers, snapshot
from zobench.durable.savers import Target, saving
from zobench.durable.snapshot import SnapshotWeights, Writer
from zobench.engine import Engine
from zobench.engine.weights.tiers import HostTier
from zobench.parallel.world import PeerGoneError
from zobench.programs.cell import run
from zobench.training.assemble import tuner

STEPS, AT = 6, 2
SLOW = 0.003

KINDS = ("sync", "async", "journal")
RUNS = {
    "torch resident": {},
    "torch pageable": {"engine": "offload", "tier": "pageable"},
    "second round": {"engine": "offload", "tier": "pageable", "fused_update": False},
    "counter pageable": {"engine": "offload", "tier": "pageable", "noise": "counter"},
    "every 4 resident": {"noise": "counter", "writeback_every": 4},
    "never": {"engine": "offload", "tier": "pageable", "noise": "counter", "writeback_every": "inf"},
    "some resident": {"engine": "offload", "tier": "pageable", "resident_blocks": 2},
    "fp8": {"engine": "offload", "tier": "disk", "wire": "fp8"},
    "adam": {"method": "zo-adam", "noise": "counter"},
    "sparse": {"engine": "offload", "tier": "disk", "method": "zo-sgd-sparse", "sparsity": 0.5},
    "forward-grad": {"engine": "offload", "tier": "pageable", "method": "forward-grad", "noise": "counter"},
}


def a_spec(run):
    switches = RUNS[run]
    return RunSpec(model="opt-tiny", seq_len=16, lr=1e-2, weight_decay=0.1, seed=3, **switches).resolve("cpu")


def run_with(spec, save=None, folder=None):
    """(losses, final weights, moments, what was saved) of a run of six steps, one evaluation among them."""
    target = Target(folder=folder, state=lambda step: {"run": "r", "base": "b", "step": step}, warn=TOLD.append)
    with tuner(spec) as built:
        recorder, losses, saved = Recorder(built.engine), [], []
        batches = batches_of(spec, STEPS)
        with saving(save, built.engine, target) if save else nullcontext() as saver:
            for step, batch in enumerate(batches, start=1):
                losses.append(built.method.step(built.engine, batch).loss)
                if saver is not None:
                    if step == AT:
                        saver.begin(step)
                    saver.after_step(step)
                    saved = saver.saved
                if step == AT + 1:
                    losses.append(built.engine.evaluate(batch))
        return losses, weights_of(built.engine), recorder.recorded(), saved


@functools.cache
def alone(run):
    return run_with(a_spec(run))[:2]


def differs(run, kind, folder):
    """Whether anything is not as in the run without checkpoints: its numbers, or what a checkpoint brings back."""
    TOLD.clear()
    losses, weights, moments, saved = run_with(a_spec(run), kind, folder)
    assert not TOLD
    assert saved
    assert all(made.seconds > 0 for made in saved)
    if (losses, weights) != alone(run):
        return True
    paths = [snapshot.path_of(folder, step) for step in snapshot.steps(folder)]
    assert [made.step for made in saved] == snapshot.steps(folder)
    return any(restored(a_spec(run), path, moments) != weights for path in paths)


SYNC = ("torch resident", "counter pageable", "never", "fp8", "adam", "sparse")
"""Between two steps nothing runs beside it, so that fewer runs show all of it."""


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        *((run, "sync") for run in SYNC),
        *((run, "async") for run in RUNS if "engine" in RUNS[run]),  # it saves what rests in a tier
        *((run, "journal") for run in RUNS),
    ],
)
def test_a_restored_run_equals_the_uninterrupted_one(run, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(savers.background, "GROUP", 100_000)  # several groups of a tiny model
    assert not differs(run, kind, tmp_path)


def slow(monkeypatch, owner, name, seconds=SLOW):
    before(monkeypatch.setattr, owner, name, lambda *_, **__: time.sleep(seconds))


PLACES = {
    "copier": (Engine, "read", 10 * SLOW), "writer": (Writer, "add"), "offloads": (HostTier, "offload"),
    "uploads": (HostTier, "upload"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["async", "journal"])
@pytest.mark.parametrize("run", ["torch pageable", "second round"])
def test_whoever_is_late(run, kind, place, tmp_path, monkeypatch):
    monkeypatch.setattr(savers.background, "GROUP", 100_000)
    slow(monkeypatch, *PLACES[place])
    assert not differs(run, kind, tmp_path)


@pytest.mark.parametrize("kind", ["async", "journal"])
def test_an_error_of_the_lanes_is_raised_and_nobody_waits_for_ever(kind, tmp_path, monkeypatch):
    def broken(*args):
        raise RuntimeError("the link is gone")

    monkeypatch.setattr(Engine, "read", broken)
    with pytest.raises(RuntimeError, match="the link is gone"):
        run_with(a_spec("torch pageable"), kind, tmp_path)
    assert_no_threads()


def assert_no_threads():
    assert not [thread for thread in threading.enumerate() if thread.name in ("zobench-copy", "zobench-save")]


@contextmanager
def first_step(kind, folder, spec=None, **more):
    """What was built and its saver, after a step whose checkpoint has begun."""
    spec = spec or a_spec("torch pageable")
    target = Target(folder=folder, state=lambda step: {}, warn=TOLD.append, **more)
    with tuner(spec) as built, saving(kind, built.engine, target) as saver:
        built.method.step(built.engine, *batches_of(spec, 1))
        saver.begin(1)
        saver.after_step(1)
        yield built, saver


@pytest.mark.parametrize("kind", ["async", "journal"])
def test_an_interrupted_run_leaves_no_snapshot_and_no_threads(kind, tmp_path, monkeypatch):
    slow(monkeypatch, Writer, "add", 0.05)

    def interrupted():
        with first_step(kind, tmp_path) as (built, _):
            built.method.step(built.engine, *batches_of(a_spec("torch pageable"), 1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.glob("snapshot-*"))
    assert_no_threads()


def test_the_time_that_a_run_is_held_is_measured(tmp_path, monkeypatch):
    slow(monkeypatch, Engine, "read", 0.05)  # six units, all of which a step waits for
    for kind in ("sync", "async", "journal"):
        folder = tmp_path / kind
        folder.mkdir()
        (made,) = run_with(a_spec("torch pageable"), kind, folder)[3]
        assert 0.05 <= made.stall <= made.seconds, kind
        files = sum(path.stat().st_size for path in folder.glob("snapshot-2/*.safetensors"))
        assert 0 < made.nbytes <= files, kind


def test_only_the_paper_s_scheme_keeps_a_second_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(savers.background, "GROUP", 100_000)
    held = {}
    with tuner(a_spec("torch pageable")) as built:
        for kind in ("async", "journal"):
            with saving(kind, built.engine, Target(folder=tmp_path, state=lambda step: {}, warn=TOLD.append)) as saver:
                held[kind] = saver.held_bytes
        weights = sum(built.engine.kept_bytes(unit) for unit in built.engine.units)
        largest = max(built.engine.kept_bytes(unit) for unit in built.engine.units)
    assert held["async"] == weights
    assert held["journal"] < max(100_000, largest) + 4096 < weights / 3


def test_a_method_that_backpropagates_saves_its_tensors(tmp_path):
    spec = RunSpec(model="opt-tiny", method="fo-adam", seq_len=16, lr=1e-3).resolve("cpu")
    with first_step("sync", tmp_path, spec) as (built, _):
        weights = dict(built.engine.named_tensors())
    saved = SnapshotWeights(tmp_path / "snapshot-1")
    for name, tensor in weights.items():
        out = torch.empty_like(tensor)
        saved.fill(name, out)
        assert torch.equal(out, tensor), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_stores_what_its_checkpoints_cost(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOBENCH_DISK_DIR", str(tmp_path))
    spec = RunSpec(
        model="opt-tiny", engine="offload", seq_len=16, steps=8, checkpoint=kind, checkpoint_every=2, device="cpu"
    )
    result = run(spec)
    assert result.outcome == "ok", result.reason
    count = len(result.parts["checkpoint_seconds"])
    assert 1 <= count <= 3  # after steps 2, 4 and 6, where the one before was on the disk by then
    assert len(result.parts["checkpoint_stall_seconds"]) <= len(result.parts["checkpoint_written_bytes"]) == count
    assert all(0 < seconds < 60 for seconds in result.parts["checkpoint_seconds"])
    assert result.memory["checkpoint_bytes"] > 0
    assert len(result.samples["step_seconds"]) == 8
    assert not list(tmp_path.iterdir())
    if count == 3:
        assert {lane for lane, *_ in result.timeline} >= ({"save"} if kind == "sync" else {"copy", "save"})


@pytest.mark.slow
def test_two_ranks_save_their_parts_of_one_checkpoint(tmp_path):
    """The ranks share the streamed weights, and each saves of them what only it writes back."""
    run_ranks("tests.support.save_rank", 2, (tmp_path,), tmp_path / "log")
    stored = json.loads((tmp_path / "found.json").read_text())
    assert len(stored) == 6
    assert set(map(str, stored.values())) == {str([True, ["0", "1"]])}, stored


class Ranks:
    """The first of two ranks, of which the other writes nothing, or is ``gone``."""

    rank = local_rank = 0
    local_ranks, leads = 2, True

    def __init__(self, gone):
        self.gone = gone

    def from_first(self, values):
        return list(values)

    def sum(self, table):
        if self.gone:
            raise PeerGoneError("another rank of the run is gone")
        return table


@pytest.mark.parametrize(
    ("kind", "when"), [*itertools.product(KINDS, ["at once"]), ("async", "at last"), ("journal", "at last")]
)
def test_a_rank_that_is_gone_is_not_waited_for(kind, when, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "WAIT", 5.0)  # a wait for another rank's shards, if there is one, fails
    monkeypatch.setattr(snapshot, "TimeoutError", AssertionError, raising=False)
    world = Ranks(gone=when == "at once")

    def four_steps():
        with first_step(kind, tmp_path, world=world) as (built, saver):
            for step, batch in enumerate(batches_of(a_spec("torch pageable"), 4)[1:], start=2):
                built.method.step(built.engine, batch)
                saver.after_step(step)
            world.gone = True

    with pytest.raises(PeerGoneError):
        four_steps()
    assert not list(tmp_path.iterdir())
    assert_no_threads()


@pytest.mark.parametrize("kind", KINDS)
def test_the_journal_is_on_the_disk_before_a_checkpoint_has_its_name_and_others_go_after(kind, tmp_path):
    order = []
    calls = {name: lambda name=name: order.append((name, snapshot.steps(tmp_path))) for name in ("seal", "kept")}
    with first_step(kind, tmp_path, **calls):
        pass
    assert order == [("seal", []), ("kept", [1])]
