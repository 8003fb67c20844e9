"""Cells in turns: one steps while the others wait, what slows them all is in no ratio, and none outlives a sweep."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import command_of, gone
from tests.support.rates import estimate
from tests.support.stores import MACHINE
from zobench import programs
from zobench.execute import sweep, together
from zobench.execute.plan import HOST_RESERVE, Step
from zobench.execute.sweep import PROCESS_BYTES
from zobench.execute.together import run_together
from zobench.measure import threads
from zobench.measure.threads import ChildPipes, Neighbours
from zobench.result import Facts, Outcome, Result, Round
from zobench.result.repeats import seconds_of_pair
from zobench.runspec import RunSpec
from zobench.store import evidence
from zobench.store.measured import STEP_TIME

SPEC = RunSpec(model="opt-tiny", seq_len=32, steps=4, warmup=1).resolve("cpu")
STEPPER = """
import os, sys, time
from zobench.measure import threads
from zobench.runspec import RunSpec, order
name, steps, file = sys.argv[1], int(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)
order.begin(order.Order(spec=RunSpec(model="opt-tiny"), turn=(int(sys.argv[4]), int(sys.argv[5]))))
turn = threads.given()
for step in turn.each(range(steps)):
    os.write(file, f"{name} begins\\n".encode())
    time.sleep(0.02)
    if name == "dies" and step == 2:
        os._exit(1)
    if name == "hangs" and step == 2:
        time.sleep(600)
    os.write(file, f"{name} ends\\n".encode())
turn.end()
os.write(file, f"{name} is done\\n".encode())
"""
"""A process that steps in turns and writes down when it begins and ends a step."""


def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str, steps: Sequence[int] = (),
    timeout: float | None = None,
) -> tuple[list[str], list[Result]]:  # fmt: skip
    """The lines of processes of these names, each with so many steps (5), in the order in which they were written; and
    their results."""
    log = tmp_path / "log"
    log.touch()
    counts = iter(steps or [5] * len(names))
    waiting = iter([(name, next(counts)) for name in names])
    lock = threading.Lock()

    def run(spec: RunSpec, *, pipes: ChildPipes, while_waiting: Callable[[], None], **_: Any) -> Result:
        with lock:
            name, count = next(waiting)
        command = [sys.executable, "-c", STEPPER, name, str(count), str(log), *map(str, pipes.descriptors)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment, pass_fds=pipes.descriptors) as process:
            try:
                while process.poll() is None:
                    while_waiting()
                    time.sleep(0.01)
            finally:
                process.kill()
        return Result(spec=spec, outcome=Outcome.OK, environment=Facts(machine=MACHINE))

    monkeypatch.setattr(together, "run_in_process", run)
    results = run_together([SPEC] * len(names), order=random.Random(0), timeout=timeout)
    return log.read_text().splitlines(), results


def test_one_steps_at_a_time_and_each_once_before_any_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = played(tmp_path, monkeypatch, "a", "b", "c")
    steps, ends = lines[:30], lines[30:]
    assert all(second == first.replace("begins", "ends") for first, second in zip(steps[::2], steps[1::2], strict=True))
    turns = [[line[0] for line in steps[place : place + 6 : 2]] for place in range(0, 30, 6)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert sorted(ends) == ["a is done", "b is done", "c is done"]


def test_one_that_dies_in_its_turn_keeps_nobody_waiting_and_one_with_fewer_steps_waits_until_nobody_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, _ = played(tmp_path, monkeypatch, "a", "dies", "c", steps=(5, 5, 1))
    assert (lines.count("a ends"), lines.count("c ends"), lines.count("dies ends")) == (5, 1, 2)
    assert sorted(lines[-2:]) == ["a is done", "c is done"]


@pytest.mark.slow
def test_one_that_hangs_in_its_turn_is_ended_and_the_others_go_on(tmp_path, monkeypatch) -> None:
    lines, results = played(tmp_path, monkeypatch, "a", "hangs", "c", timeout=3.0)
    assert (lines.count("a ends"), lines.count("c ends"), lines.count("hangs ends")) == (5, 5, 2)
    assert sorted(result.outcome for result in results) == [Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
    (slow,) = (result for result in results if result.outcome is Outcome.TIMEOUT)
    assert slow.reason == "the cell took longer than the 3 s it was given"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not tell how busy it is")
def test_what_a_process_has_started_is_none_of_its_neighbours() -> None:
    """All that they used, and those that they started: a cell's start and its warm-up too."""
    apart, all_of_them = Neighbours(children=True), Neighbours()
    begin = time.monotonic()
    burn = "import time\nwhile time.process_time() < 1: pass"
    subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"])
    strangers, every = apart.cores(), all_of_them.cores()
    assert strangers is not None
    assert every is not None
    assert (every - strangers) * (time.monotonic() - begin) > 0.9


def test_whoever_gives_turns_may_be_gone() -> None:
    (given, gives), (hears, says) = os.pipe(), os.pipe()
    pipes = ChildPipes(given=given, says=says, threads=None)
    os.close(gives)
    os.close(hears)
    code = f"from zobench.measure.threads import Turns; turn = Turns(*{pipes.descriptors}); "
    code += "print(list(turn.each('abc'))); turn.end()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, pass_fds=pipes.descriptors, capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'b', 'c']\n"
    assert threads.given() is None


@pytest.mark.slow
def test_cells_in_turns_take_the_very_steps_that_they_take_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as this process has
    specs = [SPEC, SPEC.replace(engine="offload", tier="disk", writeback_every="inf", noise="counter")]
    alone = [programs.run(spec) for spec in specs]
    together_results = run_together(specs, order=random.Random(1), slowdowns=[0.0, 0.5])
    assert [run.outcome for run in together_results] == [Outcome.OK, Outcome.OK]
    assert [run.samples["loss"] for run in together_results] == [run.samples["loss"] for run in alone]
    assert [run.environment.planted_slowdown for run in together_results] == [None, 0.5]
    assert "each step was made 50 % longer on purpose, to test a comparison" in together_results[1].warnings
    first, second = (run.environment.turns for run in together_results)
    assert first == second
    assert time.time() - 600 < first < time.time()
    assert together_results[0].power["energy_joules"] is None


@pytest.mark.slow
def test_an_interrupted_game_leaves_no_process() -> None:
    before = set(os.listdir("/proc"))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together([SPEC, SPEC], order=random.Random(0), while_waiting=interrupted)
    for name in set(os.listdir("/proc")) - before:
        if name.isdigit() and "zobench.execute.child" in command_of(int(name)):
            assert gone(int(name))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": 2, "parallel": "ddp", "batch_size": 2}, "it has several ranks"),
        ({"checkpoint": "sync", "checkpoint_every": 2}, "its checkpoints are written between two steps"),
    ],
)
def test_a_cell_that_cannot_wait_is_refused(fields: dict[str, Any], why: str) -> None:
    spec = replace(SPEC, **fields)
    assert together.obstacle(spec) == why
    with pytest.raises(ValueError, match=f"^`turns` needs cells that do nothing .*: {why}; leave turns"):
        run_together([SPEC, spec], order=random.Random(0))


def test_what_slowed_both_for_a_while_is_in_no_ratio() -> None:
    def run(steps: Sequence[float], place: int, began: float | None) -> Result:
        samples = {"step_seconds": list[float | None](steps)}
        facts = Facts(machine=MACHINE, turns=began)
        moment = Round(number=0, began=1.0, place=place, cells=2, seed=0)
        return Result(spec=SPEC, outcome=Outcome.OK, samples=samples, environment=facts, round=moment)

    slow = [1.0, 1.0, 3.0, 3.0, 3.0]
    first_run, other = run([1.1 * s for s in slow], 0, 5.0), run([*slow[:2], 1.0, 3.0, 3.0], 1, 5.0)
    first, second = seconds_of_pair(first_run, other)
    assert first / second == pytest.approx(1.1)
    assert evidence.remarks(first_run) == ["steps in turns with those of other cells"]
    streamed = replace(first_run, spec=replace(SPEC, engine="offload", tier="disk"))
    assert evidence.remarks(streamed)[0].endswith(", each until its transfers were done")
    known = evidence.ratio(first_run, other, STEP_TIME)
    assert known.value == pytest.approx(1.1)
    later = run([1.1 * s for s in slow], 0, 6.0)  # in another game: only medians can be compared
    assert seconds_of_pair(later, other) == (pytest.approx(3.3), 1.0)


def test_steps_are_of_one_turn_however_many_each_counts_as_warm_up() -> None:
    """The machine was slow in turns 3 to 5, of which one cell begins to measure two turns later than the other."""
    turns = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 1.0, 1.0]

    def run(warmup: int, detected: int, factor: float) -> Result:
        seconds = list[float | None](factor * turn for turn in turns[warmup + detected :])
        facts = Facts(machine=MACHINE, turns=5.0, warm_up_detected=detected)
        spec = SPEC.replace(steps=8 - warmup, warmup=warmup)
        return Result(spec=spec, outcome=Outcome.OK, samples={"step_seconds": seconds}, environment=facts)

    first, second = seconds_of_pair(run(1, 0, 1.1), run(1, 2, 1.0))
    assert first / second == pytest.approx(1.1)
    first, second = seconds_of_pair(run(3, 0, 1.1), run(1, 0, 1.0))
    assert first / second == pytest.approx(1.1)


def test_as_many_run_side_by_side_as_memory_holds() -> None:
    def step(gib: float, action: str = "run") -> Step:
        return Step(spec=SPEC, action=action, reason="", estimate=estimate(1, device_bytes=int(gib * 2**30)))

    steps = [step(2), step(9, "keep"), step(3), step(1), step(50)]
    room = HOST_RESERVE + 6 * 2**30 + 2 * PROCESS_BYTES
    assert sweep._groups(steps, room) == [[1], [0, 2], [3], [4]]
    assert sweep._groups(steps, None) == [[1], [0, 2, 3, 4]]
