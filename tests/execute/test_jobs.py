"""Submitted sweeps: their records, how a cell stands, what is asked of Slurm, and options that do not go together."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import script, written
from tests.support.rates import CALIBRATION
from tests.support.submissions import MACHINE, cell, ended, submitted
from zobench.execute import jobs, slurm
from zobench.execute.jobs import JobReport, QueueEntry
from zobench.result import Outcome
from zobench.runspec import RunSpec
from zobench.session.submitted import refuse_twice
from zobench.store import BusyError, Store


def test_a_sweep_is_read_back_as_it_was_written_also_after_its_folder_moved(tmp_path: Path) -> None:
    made = submitted(tmp_path / "a", gpus=("GPU-1",), disk_dir="/scratch")
    assert jobs.submissions(tmp_path / "a") == [made]
    assert made.results == tmp_path / "a"
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert jobs.submissions(tmp_path / "b") == [replace(made, folder=tmp_path / "b" / ".jobs" / made.id)]


def test_what_is_not_whole_is_no_sweep_and_the_store_sees_no_result_in_any(tmp_path: Path) -> None:
    made = submitted(tmp_path)
    jobs.write_report(made, 0, JobReport(job="7_0", host="n1", began=1.0))
    whole = json.loads((made.folder / "sweep.json").read_text())
    later, absurd = json.dumps(whole | {"executor": "later"}), json.dumps(whole | {"submitted": 1e300})
    texts = {"aaaa": "", "bbbb": "{}", "cccc": '{"cells": 3}', "dddd": later, "eeee": absurd}
    for name, text in texts.items():
        written(tmp_path / ".jobs" / name / "sweep.json", text)
    assert jobs.submissions(tmp_path) == [made]
    assert Store(tmp_path).load() == []


def test_how_each_cell_stands(tmp_path: Path) -> None:
    made = submitted(tmp_path, 7)
    jobs.write_json(made.folder / "jobs.json", ["7"])
    begun = JobReport(job="7_0", host="n1", began=10.0, action="run", machine=MACHINE)
    jobs.write_report(made, 0, replace(begun, ended=12.5, outcome="ok"))
    jobs.write_report(made, 1, replace(begun, job="7_1", ended=11.0, outcome="failed", reason="it broke"))
    jobs.write_report(made, 2, replace(begun, job="7_2"))
    jobs.write_report(made, 3, replace(begun, job="7_3"))  # put back into the queue
    jobs.write_report(made, 4, replace(begun, job="7_4"))  # killed
    seen = {
        2: QueueEntry(job="7_2", state="running", host="n1"),
        3: QueueEntry(job="7_3", state="queued", reason="BeginTime"),
        6: QueueEntry(job="7_6", state="queued"),
    }  # fmt: skip
    rows = jobs.states(made, seen)
    assert [row.state for row in rows] == ["ok", "failed", "running", "queued", "lost", "lost", "queued"]
    assert [row.job for row in rows] == [f"7_{number}" for number in range(7)]
    assert [row.host for row in rows] == ["n1", "n1", "n1", "", "n1", "", ""]
    assert [row.seconds for row in rows[:2]] == [2.5, 1.0]
    assert [row.reason for row in rows[1:5]] == ["it broke", "", "BeginTime", rows[4].reason]
    assert rows[4].reason == "its job ended without a result; the same sweep runs it again"
    assert [row.state for row in jobs.states(made, None)][2:] == ["unknown"] * 5
    assert jobs.states(made, None)[6].reason == "no squeue here to ask"
    jobs.mark_cancelled(made)
    assert [row.state for row in jobs.states(made, {})] == ["ok", "failed"] + ["cancelled"] * 5


def test_a_cell_is_done_if_a_machine_of_this_kind_has_it_and_retry_does_not_name_it(tmp_path: Path) -> None:
    made, store = submitted(tmp_path), Store(tmp_path)
    for seed, outcome in enumerate((Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)):
        store.save(ended(cell(seed), outcome, "so"))
    assert jobs.machines([made], "slurm", "partition=p") == set()  # none has begun
    jobs.write_report(made, 0, JobReport(job="7_0", host="n1", began=1.0, machine=MACHINE))
    assert jobs.machines([made], "slurm", "partition=q") == set()
    assert jobs.machines([made], "slurm", "partition=p") == {MACHINE}
    assert list(jobs.kept(made.cells, store, {MACHINE}, ["oom"])) == [cell(seed=0), cell(seed=1)]
    assert list(jobs.kept(made.cells, store, {MACHINE}, ["failed"])) == [cell(seed=0)]
    assert jobs.kept(made.cells, store, {"other-1c-000000"}, []) == {}
    store.save(replace(ended(cell()), partial=True))  # cut off by a budget: a job has time for all of it
    assert jobs.kept(made.cells, store, {MACHINE}, ["failed"]) == {}


def test_two_sweeps_of_one_cell_are_refused_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = submitted(tmp_path)
    monkeypatch.setattr(slurm, "look", lambda number: {2: QueueEntry(job="7_2", state="queued")})
    refuse_twice(tmp_path, [cell(seed=0), cell(seed=9)])
    with pytest.raises(BusyError) as error:
        refuse_twice(tmp_path, [cell(seed=2), cell(seed=9)])
    assert str(error.value) == (
        f"a cell must be in one sweep at a time, but 1 of these are queued or running in mine {made.id}; wait for it "
        f"(zobench status --results {tmp_path}), end it (zobench cancel {made.id} --results {tmp_path}), or name "
        "another --results"
    )


CUDA: dict[str, Any] = {"device": "cuda", "parallel": "ddp", "batch_size": 8}


@pytest.mark.parametrize(
    ("gres", "spec", "asked"),
    [
        (None, cell(), {"exclusive": True}),
        ("gpu:1", cell(device="cuda:0"), {"gres": "gpu:1"}),
        (None, cell(device="cuda:0"), {"gres": "gpu:1"}),
        ("gpu:a100", cell(gpus=8, nodes=2, **CUDA), {"gres": "gpu:a100:4", "nodes": 2}),
        ("disk:1,gpu:a100:1", cell(gpus=2, **CUDA), {"gres": "disk:1,gpu:a100:2"}),
        (None, cell(gpus=2, nodes=2, parallel="ddp", batch_size=2), {"exclusive": True, "nodes": 2}),
    ],
)
def test_what_a_job_asks_for(gres: str | None, spec: RunSpec, asked: dict[str, Any]) -> None:
    usual = {"nodes": 1, "ntasks_per_node": 1, "time": 6}
    assert slurm.resources(slurm.Request(gres=gres, time=301), spec) == usual | asked


def test_cells_that_need_equal_nodes_are_one_array() -> None:
    double = {"gpus": 2, "parallel": "ddp", "batch_size": 2}
    assert slurm.groups([cell(), cell(**double), cell(seed=1), cell(seed=1, **double)]) == ((0, 2), (1, 3))


def test_a_cell_ends_before_its_job_does() -> None:
    """90 s before the job's: submitit asks for a warning 30 s before, and Slurm may send it 60 s early."""
    assert slurm.Request(time=3600).cell_seconds == 3420
    assert slurm.Request(time=300).cell_seconds == 120
    with pytest.raises(ValueError, match=r"^`--time >= 5m` must hold, .* but got 299s; give it more"):
        slurm.Request(time=299)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("sweep smoke --executor slurm --device cuda", 2,
         "`device=cuda` needs jobs with a GPU, but got no --gres; add --gres gpu:1"),
        ("sweep smoke --executor slurm --slurm gres=gpu:1", 2, "`--slurm` takes options that a sweep does not set, but "
         "got gres; use --gres"),
        ("sweep smoke --executor slrum", 2, "`--executor` must be here, local or slurm, but got 'slrum'; did you mean "
         "slurm?"),
        ("sweep smoke --gres gpu:1", 2, "`--gres` needs --executor slurm, but got --executor here; leave it out"),
        ("status smoke", 2, "no sweep 'smoke' was submitted into results; "
         "submit one with `zobench sweep NAME --executor slurm`"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(line, code, message, tmp_path, monkeypatch, zobench) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended, _, err = zobench(*line.split())
    assert (ended, err.splitlines()[-1]) == (code, f"zobench: {message}")


def test_a_job_that_is_no_array_goes_by_its_own_number(tmp_path: Path) -> None:
    made = submitted(tmp_path, 3, groups=((0, 2), (1,)))
    jobs.write_json(made.folder / "jobs.json", ["7", "9"])
    assert [row.job for row in jobs.states(made, {})] == ["7_0", "9", "7_1"]
    jobs.write_json(made.folder / "jobs.json", ["7"])  # the submitter ended between the two
    assert [row.job for row in jobs.states(made, {})] == ["7_0", "", "7_1"]


def test_squeue_that_fails_says_why_and_none_is_nobody_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = submitted(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.look(made) is None
    script(tmp_path / "squeue", "echo 'slurm_load_jobs error: no\n way' >&2\nexit 1")
    with pytest.raises(OSError, match=r"^squeue failed: slurm_load_jobs error: no way$"):
        slurm.look(made)
    script(tmp_path / "squeue", "exec /bin/sleep 60")
    monkeypatch.setattr(slurm, "ANSWER_SECONDS", 0.2)
    with pytest.raises(OSError, match=r"^squeue must answer within 0\.2 s, but did not; try again later$"):
        slurm.look(made)


@pytest.mark.parametrize(
    ("executor", "place", "message"),
    [
        ("slurm", "partition=p", "`--executor slurm` needs Slurm's commands, but sbatch, srun, squeue, scancel cannot "
         "be found; run it on a login node, or use --executor local"),
        ("local", "host=elsewhere", "`cancel` must run where the pool does, but mine was started with host=elsewhere, "
         "and this is "),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_reached_is_not_said_to_be_over(
    executor: str, place: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    zobench: Any,
) -> None:  # fmt: skip
    made = submitted(tmp_path, executor=executor, place=place)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)  # only who submits needs it
    code, _, err = zobench("cancel", "--results", str(tmp_path))
    assert code == 2
    assert err.startswith(f"zobench: {message}")
    assert not jobs.is_cancelled(made)
    code, out, _ = zobench("status", "--results", str(tmp_path))
    assert code == 0
    assert "3 unknown" in out


def test_arrays_that_slurm_had_taken_are_cancelled_when_it_refuses_the_next(tmp_path, monkeypatch) -> None:
    """A Slurm of shell scripts: the second sbatch is refused."""
    cells = (cell(), cell(gpus=2, parallel="ddp", batch_size=2))
    made = submitted(tmp_path, cells=cells, groups=((0,), (1,)))
    taken, ended = tmp_path / "taken", tmp_path / "ended"
    scripts = {
        "sbatch": f"if [ -e {taken} ]; then echo 'sbatch: error: over the limit' >&2; exit 1; fi\n"
        f"touch {taken}\necho Submitted batch job 7",
        "scancel": f'echo "$@" >> {ended}',
        "srun": "exit 0",
    }
    for name, text in scripts.items():
        script(tmp_path / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ValueError, match=r"^`sbatch` must take the jobs, but said: over the limit; see --partition"):
        slurm.submit(made, slurm.Request())
    assert jobs.job_ids(made) == ["7"]
    assert ended.read_text().splitlines() == [f"--name zobench-{made.id}-{number}" for number in range(2)]


def test_nothing_is_submitted_into_a_store_that_a_sweep_writes(tmp_path: Path, zobench: Any) -> None:
    words = ("sweep", "smoke", "--executor", "local", "--device", "cpu", "--results", str(tmp_path))
    with Store(tmp_path).lock():
        code, _, err = zobench(*words)
    assert code == 1
    error = f"zobench: {tmp_path} must have one writer, but another sweep uses it; wait, or name another --results"
    assert err.splitlines()[-1] == error
    assert jobs.submissions(tmp_path) == []


def test_a_sweep_here_looks_for_submitted_cells_before_it_plans_and_once_it_has_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zobench: Any
) -> None:
    locked: list[bool] = []

    def refuse(results: Path, cells: object) -> None:
        try:
            with Store(results).lock():
                locked.append(False)
        except BusyError:
            locked.append(True)
        if len(locked) == 2:
            raise BusyError("queued elsewhere")

    monkeypatch.setattr("zobench.session.submitted.refuse_twice", refuse)
    monkeypatch.setattr("zobench.session.machine.calibration", lambda *_: CALIBRATION)
    monkeypatch.setattr("zobench.execute.sweep.run_in_process", lambda *_, **__: pytest.fail("it ran"))
    code, _, err = zobench("sweep", "smoke", "--device", "cpu", "--results", str(tmp_path))
    assert (code, err.splitlines()[-1]) == (1, "zobench: queued elsewhere")
    assert locked == [False, True]
