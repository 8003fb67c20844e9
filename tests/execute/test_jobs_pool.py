"""The local pool: never two cells on one GPU, as many at once as asked, and what is killed or cancelled."""

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes import poll, side_by_side
from tests.support.site import Site
from tests.support.submissions import submitted
from zobench.execute import jobs, pool
from zobench.runspec import RunSpec

GPUS = ("GPU-a", "GPU-b")
CPU = RunSpec(model="opt-tiny").resolve("cpu")
SINGLE, TWO = CPU.replace(device="cuda:0"), CPU.replace(device="cuda", gpus=2, parallel="ddp", batch_size=2)


@pytest.fixture(autouse=True)
def _own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LEASES", tmp_path / "leases")
    monkeypatch.setattr(pool, "WAIT_SECONDS", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def handed_over(results: Path, *cells: RunSpec, gpus: tuple[str, ...] = GPUS) -> jobs.Submission:
    """Cells for the workers of this machine's pool."""
    groups = (tuple(range(len(cells))),)
    return submitted(results, executor="local", cells=cells, groups=groups, gpus=gpus, place=pool.host_name())


def test_a_cell_sees_the_gpus_that_it_has_leased_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = handed_over(tmp_path, SINGLE, TWO, CPU)
    seen: list[tuple[int, str]] = []

    def run(submission: jobs.Submission, cell: int, **_: object) -> bool:
        seen.append((cell, os.environ["CUDA_VISIBLE_DEVICES"]))
        return True

    monkeypatch.setattr(pool, "run_cell", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pool.leased(GPUS, 1) as first, pool.leased(GPUS, 1) as second, pool.leased(GPUS, 0) as none:
        assert (first, second, none) == (("GPU-a",), ("GPU-b",), ())
    pool.PoolWorker(str(submission.folder), 0)()
    assert seen == [(0, "GPU-a"), (1, "GPU-a,GPU-b"), (2, "")]
    short = handed_over(tmp_path, TWO, gpus=GPUS[:1])  # it gets all there are, so that its plan says what it lacks
    pool.PoolWorker(str(short.folder), 0)()
    assert seen[3:] == [(0, "GPU-a")]


def test_a_cell_that_waits_for_its_gpu_is_queued(tmp_path: Path) -> None:
    submission = handed_over(tmp_path, SINGLE, SINGLE.replace(seed=1))
    jobs.write_json(submission.folder / "jobs.json", ["worker 0"])
    with pool._alive(submission, 0):
        assert pool._next(submission, 0) == 0
        seen = pool.look(submission)
        assert seen is not None
        assert [(seen[n].state, seen[n].reason) for n in (0, 1)] == [("queued", "waits for a GPU"), ("queued", "")]
        said = jobs.progress(submission, 0)
        assert said is not None
        jobs.write_report(submission, 0, replace(said, machine="mine"))
        seen = pool.look(submission)
        assert seen is not None
        assert (seen[0].state, seen[0].reason) == ("running", "")


def test_a_lease_can_be_locked_by_another_user() -> None:
    before = os.umask(0o077)
    try:
        with pool.leased(GPUS, 1):
            assert (pool.LEASES / "GPU-a").stat().st_mode & 0o777 == 0o644
            assert pool.LEASES.stat().st_mode & 0o1777 == 0o1777
    finally:
        os.umask(before)


def test_many_cells_never_share_a_gpu_and_those_that_need_two_get_both() -> None:
    """Each thread takes one or two of the GPUs; while it has them, nobody else does."""
    using: set[str] = set()
    twice: list[str] = []
    done: list[int] = []

    def work(count: int) -> None:
        with pool.leased(GPUS, count) as held:
            twice.extend(using & set(held))
            using.update(held)
            time.sleep(0.01)
            using.difference_update(held)
        done.append(count)

    side_by_side(work, (1, 2, 1, 2, 1, 1, 2, 1), 20)
    assert (twice, sorted(done)) == ([], [1, 1, 1, 1, 1, 2, 2, 2])


def test_no_cell_is_begun_by_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = handed_over(tmp_path, *(CPU.replace(seed=seed) for seed in range(12)))
    progress = jobs.progress
    monkeypatch.setattr(jobs, "progress", lambda *given: (progress(*given), time.sleep(0.001))[0])  # others look too
    begun: list[int] = []

    def work(number: int) -> None:
        while (cell := pool._next(submission, number)) is not None:
            begun.append(cell)

    side_by_side(work, range(4), 20)
    assert sorted(begun) == list(range(12))


def test_how_many_workers() -> None:
    assert [pool.workers([CPU] * 4, (), jobs) for jobs in (None, 3, 9)] == [1, 3, 4]
    assert [pool.workers([SINGLE] * 4, GPUS, jobs) for jobs in (None, 1)] == [2, 1]
    assert pool.workers([SINGLE], GPUS, None) == 1
    assert pool.workers([SINGLE, TWO], GPUS, None) == 2
    assert pool.workers([SINGLE, TWO], GPUS[:1], None) == 1


def worker(site: Site, number: int) -> int:
    """The process of a worker of the pool."""
    return int((site.submission().folder / f"worker-{number}.lock").read_text())


SWEEP = ("sweep", "cells.toml", "--executor", "local", "--device", "cpu")


@pytest.mark.slow
def test_a_sweep_in_the_background_runs_as_many_cells_at_once_as_asked(tmp_path: Path) -> None:
    site, seen = Site.of(tmp_path, 2), []
    output = "".join(site.zobench(*SWEEP, "--jobs", "1"))
    assert "2 cells handed over to 1 worker in the background; `zobench status cells` shows them" in output
    assert "are queued or running in cells" in "".join(site.zobench(*SWEEP, code=1))
    poll(lambda: (seen.append(site.now()), not {"queued", "running"} & set(seen[-1]))[1], 240)
    assert max(states.count("running") for states in seen) == 1
    assert seen[-1] == ["ok"] * 2
    assert [str(result.outcome) for result in site.stored()] == ["ok"] * 2
    assert "0 of 2 cells to run" in "".join(site.zobench(*SWEEP))
    assert len(jobs.submissions(site.results)) == 1


def test_a_killed_worker_loses_its_cell_and_cancel_ends_the_others(tmp_path: Path) -> None:
    site = Site.of(tmp_path, 4, steps=10**6)
    site.zobench(*SWEEP, "--jobs", "2")
    poll(lambda: site.now() == ["running", "running", "queued", "queued"], 60)
    submission = site.submission()
    first = jobs.progress(submission, 0)
    assert first is not None
    status = Path(f"/proc/{worker(site, first.worker)}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
    assert ignored >> (signal.SIGHUP - 1) & 1  # the terminal that it was started from may be closed
    os.kill(worker(site, first.worker), signal.SIGKILL)
    poll(lambda: site.now() == ["lost", "running", "queued", "queued"], 60)
    other = replace(submission, folder=jobs.new_folder(site.results), name="others", place="another", submitted=0.0)
    other.write()
    refused = "".join(site.zobench("cancel", code=2))  # and ends those that it can
    assert ": 1 running, 2 queued\n" in refused
    assert "another" in refused
    shutil.rmtree(other.folder)
    poll(lambda: site.now() == ["cancelled"] * 4, 60)
    assert "".join(site.zobench("cancel")) == "nothing is queued or running\n"
    assert site.stored() == []
