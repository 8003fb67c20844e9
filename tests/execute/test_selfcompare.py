"""A cell compared with itself: its rounds, its rule, what it finds on steady machines or not, what it plants."""

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.stores import MACHINE
from zobench.execute import selfcompare
from zobench.execute.selfcompare import self_test
from zobench.measure.observe import StepTimer
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

SPEC = RunSpec(model="opt-tiny", seq_len=32).resolve("cpu")


Processes = Callable[[RunSpec, Sequence[float], random.Random], list[Result]]


def machine(seed: int, offset: float = 0.01, drift: float = 0.002, detects: bool = True) -> Processes:
    """Processes with a speed of their own (``offset``, a share), on a machine that gets slower by ``drift`` each time,
    and that is half as slow again in one of thirty; without ``detects`` a slowdown has no effect."""
    draw, runs = random.Random(seed), [0]

    def result_of(spec: RunSpec, slowdown: float) -> Result:
        runs[0] += 1
        factor = math.exp(draw.gauss(0, offset)) * (1 + drift * runs[0]) * (1.5 if draw.random() < 1 / 30 else 1)
        seconds = [factor * math.exp(draw.gauss(0, 0.01)) * (1 + slowdown * detects) for _ in range(9)]
        samples = {"step_seconds": list[float | None](seconds)}
        return Result(spec=spec, outcome=Outcome.OK, environment=Facts(machine=MACHINE), samples=samples)

    return lambda spec, shares, order: [result_of(spec, share) for share in shares]


def test_a_steady_machine_shows_a_slowdown_of_a_twentieth_and_rarely_a_difference_of_equals() -> None:
    tests = [self_test(SPEC, machine(seed), seed=seed) for seed in range(20)]
    alarms = sum(pair.alarms for pair in tests)
    assert alarms <= 0.05 * 400 + 2 * math.sqrt(0.05 * 0.95 * 400)
    assert sum(pair.detected >= 18 for pair in tests) >= 19
    assert sum(pair.alarms <= 2 for pair in tests) >= 17  # 92.5 % of such machines, where one in twenty is an alarm
    assert all(6 <= pair.equal.pairs <= selfcompare.MOST for test in tests for pair in test.comparisons)
    assert 0.01 < tests[0].least < 0.05


def test_one_that_does_not_detect_and_one_that_is_unsteady_do_not_pass() -> None:
    blind = self_test(SPEC, machine(1, detects=False), seed=1)
    assert (blind.is_passed, blind.detected <= 2) == (False, True)
    unsteady = self_test(SPEC, machine(2, offset=0.2), seed=2)
    assert (unsteady.is_passed, {test.equal.pairs for test in unsteady.comparisons}) == (False, {selfcompare.MOST})
    assert unsteady.least > 0.1


def test_every_round_has_the_three_in_an_order_of_its_own() -> None:
    rounds: list[Sequence[float]] = []
    inner = machine(3)

    def run(spec: RunSpec, shares: Sequence[float], order: random.Random) -> list[Result]:
        rounds.append(shares)
        return inner(spec, shares, order)

    self_test(SPEC, run, seed=3, count=2, slowdown=0.1)
    assert all(sorted(round_order) == [0, 0, 0.1] for round_order in rounds)
    assert len({round_order.index(0.1) for round_order in rounds}) == 3


def test_a_round_in_which_others_had_a_core_does_not_count() -> None:
    """Each such process has half the threads, and takes twice the time."""
    inner, runs = machine(6, offset=0.001, drift=0), [0]

    def crowded(result: Result) -> Result:
        runs[0] += 1
        few = runs[0] % 5 == 0
        seconds = [second * (1 + few) for second in result.measured_seconds]
        slow = replace(result, samples={"step_seconds": list[float | None](seconds)})
        return slow.with_facts(threads=1 if few else 2)

    def run(spec: RunSpec, shares: Sequence[float], order: random.Random) -> list[Result]:
        return list(map(crowded, inner(spec, shares, order)))

    (result,) = self_test(SPEC, run, seed=6, count=1).comparisons
    assert result.equal.value == pytest.approx(1, abs=0.02)
    assert result.slowed.value == pytest.approx(1.05, abs=0.02)


def test_each_step_is_lengthened_by_a_share_of_its_own_time() -> None:
    timer = StepTimer("cpu", slowdown=0.5)
    for seconds in (0.01, 0.04):
        with timer:
            time.sleep(seconds)
    short, long = timer.seconds()
    assert 0.015 <= short < long
    assert long >= 0.06
    with pytest.raises(RuntimeError), timer:
        raise RuntimeError
    assert len(timer.seconds()) == 2


def test_the_command_tells_and_keeps_every_comparison(tmp_path, zobench, monkeypatch) -> None:
    inner = machine(5)
    monkeypatch.setattr(selfcompare, "in_turns", lambda *asked: inner(*asked))
    monkeypatch.setattr("secrets.randbits", lambda bits: 5)  # the order of processes, on which an alarm may depend
    monkeypatch.setattr(
        "zobench.session.single.fingerprint_without_torch", lambda: Facts(machine=MACHINE, description="a CPU")
    )
    common = ("compare", "--self-test", "model=opt-tiny,seq_len=32,device=cpu", "--results", str(tmp_path))
    code, out, err = zobench(*common)
    assert code == 0
    assert "20 comparisons of 6 to 15 rounds, each of three runs; how long is predicted once" in err
    first, second, _, last = out.splitlines()
    assert first.endswith(" of 20 comparisons of equals say a difference (at most 2 may)")
    assert second.startswith("a slowdown of 5 % is found in ")
    assert last == "this machine can be trusted with a difference of 5 %"
    (path,) = (tmp_path / ".selftest").glob(f"compare-{MACHINE}-*.json")
    monkeypatch.setattr("time.time", lambda: 2e9)
    kept = json.loads(path.read_text())
    assert (len(kept["comparisons"]), kept["slowdown"]) == (20, 0.05)
    assert err.count("slowed x1.0") == 20
    inner = machine(6, detects=False)
    code, out, _ = zobench(*common, "--comparisons", "5", "--slowdown", "10%")
    assert code == 1
    assert out.splitlines()[-1].startswith("this machine is too unsteady, or busy, for a difference of 10 %; ")
    assert len(list((tmp_path / ".selftest").glob("compare-*.json"))) == 2  # what was measured before is kept
