"""Comparing runs: no verdict without evidence, the same evidence from both sides, and an exit code for regressions."""

import itertools
import math
import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.stores import ENVIRONMENT, MACHINE, run, specs
from zobench.result import Facts, Outcome, Result, Round
from zobench.result.record import DISTURBED
from zobench.result.repeats import folded
from zobench.runspec import RunSpec
from zobench.stats import LEVEL, ranks
from zobench.store import Store, evidence
from zobench.store.compare import cautions, compare, regressions, side
from zobench.store.judging import Verdict, judge

SPECS = list(itertools.islice(specs(), 6))
XEON = {"cpu": "Xeon", "cores": 16, "gpus": ["H200"]}
OTHER = replace(ENVIRONMENT, machine="h200-16c-0a1b2c", hardware=XEON)
INVERSE = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
times = st.lists(st.floats(0.5, 2), min_size=1, max_size=12)


def steps(mean: float, spread: float, count: int, seed: int) -> list[float]:
    noise = random.Random(seed)
    return [mean * (1 + noise.gauss(0, spread)) for _ in range(count)]


def cell(spec: RunSpec = SPECS[0], seconds: Sequence[float] = (), **changes: Any) -> Result:
    return run(spec, samples={"step_seconds": list(seconds or steps(1, 0.01, 20, 1))}, **changes)


# ---- statistics


@pytest.mark.parametrize(("n", "m"), [(1, 39), (4, 4), (8, 6), (50, 50)])
def test_the_interval_leaves_out_as_much_as_the_test_rejects(n: int, m: int) -> None:
    from scipy import stats

    rank = ranks.critical(n, m)
    assert rank >= 1

    def p_value(below: int) -> float:
        """Of samples in which exactly ``below`` pairs have b < a: b are whole numbers, a lie between them."""
        a, b = list(range(n)), [n + j for j in range(m)]
        full, part = divmod(below, n)
        a_values = [2.0 * value for value in a]
        b_values = [2.0 * n + j for j in b]
        for j in range(full):
            b_values[j] = -1.0 - j
        if part:
            b_values[full] = a_values[n - 1 - part] + 1
        assert sum(y < x for x in a_values for y in b_values) == below
        return float(stats.mannwhitneyu(b_values, a_values, method="exact").pvalue)

    assert p_value(rank - 1) <= LEVEL < p_value(rank)


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=9), st.lists(st.floats(0.5, 2), min_size=4, max_size=9))
def test_the_ends_of_the_interval_are_ratios_of_pairs(a: list[float], b: list[float]) -> None:
    every = sorted(y / x for x in a for y in b)
    rank = ranks.critical(len(a), len(b))
    assert ranks.ratio_interval(a, b) == pytest.approx((every[rank - 1], every[-rank]))


# ---- verdicts


@settings(deadline=None)
@given(times, times, st.sampled_from([0.0, 0.02, 0.5]))
def test_exchanging_the_sides_inverts_ratios_and_verdicts(a: list[float], b: list[float], tolerance: float) -> None:
    there, back = judge(a, b, tolerance), judge(b, a, tolerance)
    assert there.ratio == pytest.approx(1 / back.ratio) if back.ratio else there.ratio is None
    if there.interval is None or back.interval is None:
        assert there.interval is back.interval
    else:
        assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))
        edges = [1 + tolerance, 1 / (1 + tolerance)]  # rounding may put an interval's end on either side of these
        assume(not any(math.isclose(end, edge, rel_tol=1e-9) for end in there.interval for edge in edges))
    assert back.verdict is INVERSE.get(there.verdict, there.verdict)


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_slowdown_of_a_tenth_is_found_among_twenty_steady_steps(seed: int) -> None:
    judged = judge(steps(1, 0.02, 20, seed), steps(1.1, 0.02, 20, 1000 + seed), 0.02)
    assert judged.verdict is Verdict.SLOWER
    assert judged.ratio == pytest.approx(1.1, rel=0.03)
    assert judged.interval is not None
    assert 1 < judged.interval[0] < judged.ratio < judged.interval[1] < 1.2


def test_three_against_three_is_always_ambiguous_and_says_what_is_needed() -> None:
    judged = judge([1.0, 1.1, 1.2], [9.0, 9.1, 9.2], 0.02)
    assert (judged.verdict, judged.interval) == (Verdict.AMBIGUOUS, None)
    message = (
        "3 against 3 step times cannot reach 5 %, whatever they are; measure at least 4 on each side (--set steps=4)"
    )
    assert judged.reason == message


def test_same_needs_an_interval_within_the_tolerance() -> None:
    a, b = steps(1, 0.005, 30, 1), steps(1, 0.005, 30, 2)
    assert judge(a, b, 0.02).verdict is Verdict.SAME
    narrow = judge(a, b, 0.0001)
    assert narrow.verdict is Verdict.AMBIGUOUS
    assert narrow.reason == "no difference is shown, nor that it is within 0.01 %; measure more steps"
    assert judge(steps(1, 0.3, 10, 1), steps(1, 0.3, 10, 2), 0.02).verdict is Verdict.AMBIGUOUS


def test_ranks_and_medians_that_disagree_are_ambiguous() -> None:
    a = [1.0] * 49 + [2.0] * 51
    b = [1.5] * 51 + [9.0] * 49
    assert statistics.median(b) < statistics.median(a)
    judged = judge(a, b, 0.02)
    assert (judged.verdict, judged.reason.partition(";")[0]) == (
        Verdict.AMBIGUOUS, "the ranks differ, but the medians do not agree"
    )  # fmt: skip


@pytest.mark.parametrize("values", [[], [0.0, 1.0, 1.0, 1.0], [-1.0, 1.0, 1.0, 1.0]])
def test_step_times_that_have_no_ratio_are_ambiguous(values: list[float]) -> None:
    assert judge([1.0] * 4, values, 0.02).reason == "a side has no step times above 0"


# ---- cells


def test_cells_are_matched_by_what_was_asked_and_the_rest_is_listed() -> None:
    a = [cell(spec) for spec in SPECS[:4]]
    b = [cell(spec) for spec in SPECS[2:]]
    comparison = compare(a, b)
    assert [(pair.a.spec, pair.b.spec) for pair in comparison.pairs] == [(spec, spec) for spec in SPECS[2:4]]
    assert ([run.spec for run in comparison.only_a], [run.spec for run in comparison.only_b]) == (SPECS[:2], SPECS[4:])


def test_only_the_index_of_the_device_may_differ() -> None:
    zero, first, cpu = (SPECS[0].replace(device=device) for device in ("cuda:0", "cuda:1", "cpu"))
    assert len(compare([cell(zero)], [cell(first)]).pairs) == 1
    with pytest.raises(ValueError, match=r"^A and B must share a cell, but none of 1 and 1 cells is in both; run the"):
        compare([cell(zero)], [cell(cpu)])
    with pytest.raises(
        ValueError,
        match=rf"^B must have one result of each cell, but has two of .*: {MACHINE} on cuda:0; {MACHINE} on ",
    ):
        compare([cell(zero)], [cell(zero), cell(first)])


def test_other_hardware_is_refused_unless_asked_for_and_other_software_is_not() -> None:
    newer = replace(ENVIRONMENT, machine="epyc-2c-000000", software={"torch": "9"})
    assert len(compare([cell()], [cell(environment=newer)]).pairs) == 1
    with pytest.raises(ValueError, match=rf"of the same hardware, but got {MACHINE} and h200-16c-0a1b2c; add --across"):
        compare([cell()], [cell(environment=OTHER)])
    assert len(compare([cell()], [cell(environment=OTHER)], across_machines=True).pairs) == 1
    message = r"^`--across-machines` needs one machine on each side, but got epyc-2c-fcab62, "
    with pytest.raises(ValueError, match=message):
        compare([cell(), cell(environment=OTHER)], [cell()], across_machines=True)
    with pytest.raises(ValueError, match=r"^A must have one result of each cell, but has two of "):
        compare([cell(), cell(environment=newer)], [cell()])
    with pytest.raises(ValueError, match=r"same hardware, but got one and two"):  # neither names its hardware
        compare([cell(environment=Facts(machine="one"))], [cell(environment=Facts(machine="two"))])


# ---- regressions


def test_a_regression_is_shown_slower_or_more_memory_or_an_end_that_is_not_ok() -> None:
    slow, heavy, gone, noisy, fine = SPECS[:5]
    peak = {"device_peak_bytes": 1000}
    before = [cell(spec, steps(1, 0.01, 20, 1), memory=peak) for spec in SPECS[:5]]
    before[3] = cell(noisy, [0.9, 1.0, 1.1], memory=peak)
    after = [
        cell(slow, steps(1.1, 0.01, 20, 2), memory=peak),
        cell(heavy, steps(1, 0.01, 20, 2), memory={"device_peak_bytes": 1100}),
        cell(gone, outcome=Outcome.OOM, reason="device memory ran out"),
        cell(noisy, [1.2, 1.3, 1.4], memory=peak),
        cell(fine, steps(1.02, 0.001, 20, 2), memory={"device_peak_bytes": 1040}),
    ]
    comparison = compare(before, after)
    worse = regressions(comparison, 0.05)
    assert worse[0].startswith(f"{slow.label}: a step takes 1.")
    assert worse[1:] == [
        f"{heavy.label}: 1.100 times the device memory",
        f"{gone.label}: ended ok in A and oom in B: device memory ran out",
    ]
    assert regressions(comparison, 0.2) == worse[2:]
    assert comparison.pairs[3].judgement.verdict is Verdict.AMBIGUOUS
    assert len(regressions(comparison, 0.01)) == 5
    assert regressions(compare(after[-1:], before[-1:]), 0.01) == []


def cell_with(**facts: Any) -> Result:
    return cell(environment=replace(ENVIRONMENT, **facts))


BUSY = f"{DISTURBED}1.3 cores busy meanwhile; expect slower steps"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (cell(), cell(warnings=[BUSY]), "1 cell of B ran while others used the machine: "),
        (cell(), cell_with(source={"commit": "0123456789", "dirty": True}), "1 cell of B ran with uncommitted changes"),
        (cell_with(writeback_plan={"steps": 16, "reason": ""}), cell_with(writeback_plan={"steps": 64, "reason": ""}),
         "1 cell wrote pending updates after another number of steps in B than in A, as rates made it: "),
        (cell_with(threads=2), cell_with(threads=1),
         "1 cell computed with another number of threads in B than in A: "),
    ],
)  # fmt: skip
def test_what_makes_two_runs_unlike_is_told(a: Result, b: Result, message: str) -> None:
    assert cautions(compare([a], [a])) == []
    (caution,) = cautions(compare([a], [b]))
    assert caution.startswith(message)


# ---- sides


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two machines and two commits in ./results, and the current folder beside it."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "results")
    store.save(cell())
    commit: dict[str, Any] = {"commit": "ee3ca2f0000000000000000000000000000000000", "dirty": False}
    store.save(cell(SPECS[1], environment=replace(OTHER, source={**commit, "commit": commit["commit"][:40]})))
    return Path("results")


@pytest.mark.parametrize(("word", "count"), [("results", 2), (MACHINE, 1), ("ee3ca2f17", 1)])
def test_a_side_is_a_folder_a_machine_or_a_commit(root: Path, word: str, count: int) -> None:
    results, problems = side(word, root)
    assert (len(results), problems) == (count, [])
    with pytest.raises(ValueError, match="A and B must be results folders, or machines or commits"):
        side(word * 500, root)


# ---- the command


def stored(folder: Path, mean: float, seed: int, count: int = 20) -> str:
    for index, spec in enumerate(SPECS[:2]):
        Store(folder).save(cell(spec, steps(mean, 0.01, count, seed + index)))
    return str(folder)


def test_the_exit_code_says_whether_there_is_a_regression(tmp_path: Path, zobench: Any) -> None:
    a, b = stored(tmp_path / "a", 1, 1), stored(tmp_path / "b", 1.1, 7)
    code, out, err = zobench("compare", a, b, "--fail-on-regression", "5%")
    assert (code, err.count("regression: OPT-125M")) == (1, 2)
    assert "2 cells: 2 SLOWER" in out
    assert zobench("compare", a, b)[0] == 0
    assert zobench("compare", a, b, "--fail-on-regression", "20%")[0] == 0
    assert zobench("compare", b, a, "--fail-on-regression", "5")[0] == 0


def test_the_table_names_every_cell_and_why_one_is_ambiguous(tmp_path, zobench, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    a, b = stored(tmp_path / "a", 1, 1, count=3), stored(tmp_path / "b", 1, 7, count=3)
    Store(Path(b)).save(cell(SPECS[2]))
    bad = tmp_path / "b" / MACHINE / "bad.json"
    bad.write_text("{")
    code, out, err = zobench("compare", a, b)
    assert code == 0
    for spec in SPECS[:2]:
        assert spec.label in out
    assert "AMBIGUOUS 1: 3 against 3 step times cannot reach 5 %" in out
    assert f"Only in B, 1: {SPECS[2].label} ({SPECS[2].hash[:7]})" in out.replace("\n", " ")
    assert err.startswith(f"not read: {bad}: ")
    assert max(map(len, out.replace(a, "").replace(b, "").splitlines())) <= 80


def test_a_name_cannot_command_the_terminal(tmp_path: Path, zobench: Any) -> None:
    message = f"{DISTURBED}1.3 cores busy"
    for name, mean in (("a", 1), ("b", 2)):
        spec = SPECS[0].replace(model="x\x1b[2J[red]")
        Store(tmp_path / name).save(cell(spec, steps(mean, 0.01, 9, mean), warnings=[message]))
    _, out, err = zobench("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-on-regression", "5%")
    assert "\x1b" not in out + err
    assert (out.count("[red]"), err.count("[red]")) == (1, 3)


# ---- repeats


def repeated(spec: RunSpec, speeds: Sequence[float], began: float = 1.0) -> Result:
    """A cell with a process in each round, of that median step."""
    return folded(
        cell(spec, [speed] * 3, round=Round(number=n, began=began + n, place=0, cells=2, seed=0))
        for n, speed in enumerate(speeds)
    )[0]


def test_pairs_of_rounds_show_what_processes_alone_do_not() -> None:
    drift = [1 + 0.05 * n for n in range(8)]
    slower = [1.02 * speed * (1 + 0.001 * (-1) ** n) for n, speed in enumerate(drift)]
    a, b = repeated(SPECS[0], drift), repeated(SPECS[0], slower)
    (pair,) = compare([a], [b]).pairs
    assert (pair.judgement.verdict, pair.judgement.values) == (Verdict.SLOWER, "8 rounds")
    assert pair.judgement.ratio == pytest.approx(1.02, abs=0.001)
    (pair,) = compare([a], [repeated(SPECS[0], slower, began=900.0)]).pairs  # of another day: no pairs
    assert (pair.judgement.verdict, pair.judgement.values) == (Verdict.AMBIGUOUS, "processes")
    assert pair.judgement.reason.endswith("measure more processes")
    assert compare([a], [a]).pairs[0].judgement.verdict is Verdict.SAME


def test_a_ratio_of_unequal_threads_has_no_interval() -> None:
    both = [
        cell(SPECS[0], [speed] * 9, environment=replace(ENVIRONMENT, threads=threads))
        for speed, threads in ((1.0, 2), (1.9, 1))
    ]
    equal = [run.with_facts(threads=2) for run in both]
    assert evidence.times_ratio(*equal).interval is not None  # type: ignore[union-attr]
    assert evidence.times_ratio(*both).interval is None  # type: ignore[union-attr]


def test_a_disturbance_of_any_round_is_told() -> None:
    calm = repeated(SPECS[0], [1.0, 1.1, 1.2])
    (loud,) = folded([*calm.runs[:2], replace(calm.runs[2], warnings=[BUSY])])
    assert cautions(compare([calm], [calm])) == []
    assert cautions(compare([calm], [loud])) == [f"1 cell of B ran while others used the machine: {SPECS[0].label}"]


def test_sides_can_be_conditions_whose_fields_may_differ(tmp_path, zobench, monkeypatch) -> None:
    resident = RunSpec(model="opt-tiny", seq_len=32).resolve("cpu")
    offload = resident.replace(engine="offload", tier="disk")
    for spec, factor in ((resident, 1.0), (offload, 2.0)):
        for run_ in repeated(spec, [factor * (1 + 0.1 * n) for n in range(7)]).runs:
            Store(tmp_path).save(run_)
    sides = ("engine=resident,tier=device", "engine=offload,tier=disk")
    code, out, _ = zobench("compare", *sides, "--results", str(tmp_path))
    assert code == 0
    assert "2.000 to 2.000" in out
    assert "7 rounds" in out
    assert "1 cell: 1 SLOWER" in out
    code, _, err = zobench("compare", "engine=resident", "engine=offload", "--results", str(tmp_path))
    assert code == 2
    assert err.splitlines()[-1].endswith(
        "is in both; add tier=device to A and tier=disk to B: they differ in tier (device in A, disk in B)"
    )
    for rank, factor in ((2, 1.0), (4, 2.0)):
        lozo = resident.replace(method="lozo", noise="counter", options={"rank": rank})
        for run_ in repeated(lozo, [factor * (1 + 0.1 * n) for n in range(7)]).runs:
            Store(tmp_path).save(run_)
    shutil.copytree(tmp_path, tmp_path / (name := "engine=all,tier=all"))
    monkeypatch.chdir(tmp_path)
    assert zobench("compare", name, str(tmp_path))[0] == 0, "a folder's name says nothing of fields"
    code, out, _ = zobench("compare", "options.rank=2,method=lozo", "options.rank=4", "--results", str(tmp_path))
    assert (code, "1 cell: 1 SLOWER" in out) == (0, True)
    code, _, err = zobench("compare", "method=zo-sgd", "method=lozo", "--results", str(tmp_path))
    assert code == 2
    assert "is in both; add noise=torch to A and noise=counter,options.rank=2 to B: they differ" in err
    advised = ("method=zo-sgd,noise=torch", "method=lozo,noise=counter,options.rank=2")
    assert zobench("compare", *advised, "--results", str(tmp_path))[0] == 0
    code, _, err = zobench("compare", "engine=resident", "seed=7", "--results", str(tmp_path))
    assert (code, err.startswith("zobench: 'seed=7' must name results, but none in ")) == (2, True)


WORK = RunSpec(model="opt-tiny", seq_len=32, method="zo-sgd").resolve("cpu")


@pytest.mark.parametrize(
    ("changes", "unit", "work"),
    [
        ({}, "step", 1),
        ({"batch_size": 4}, "token", 4),
        ({"batch_size": 2, "seq_len": 16}, "step", 1),
        ({"method": "fzoo", "queries": 7}, "token and forward pass", 4),
        ({"method": "fo-sgd", "batch_size": 2}, "token", 2),
    ],
)
def test_where_the_work_of_a_step_differs_the_time_of_its_work_is_judged(changes, unit, work) -> None:
    a = WORK.replace(noise="counter")
    b = a.replace(noise="torch" if changes.get("method") == "fo-sgd" else "counter", **changes)
    differ = frozenset({"noise", "method", "queries", "batch_size", "seq_len"})
    first, other = cell(a, steps(1, 0.001, 9, 1)), cell(b, steps(0.9 * work, 0.001, 9, 2))
    judged = compare([first], [other], may_differ=differ).pairs[0].judgement
    assert (judged.verdict, judged.unit) == (Verdict.FASTER, unit)
    assert judged.ratio == pytest.approx(0.9, rel=0.01)
    rounds = repeated(a, [1 + 0.1 * n for n in range(7)]), repeated(b, [1.1 * work * (1 + 0.1 * n) for n in range(7)])
    judged = compare([rounds[0]], [rounds[1]], may_differ=differ).pairs[0].judgement
    assert (judged.verdict, judged.interval) == (Verdict.SLOWER, (pytest.approx(1.1), pytest.approx(1.1)))


def test_steps_of_different_tasks_are_not_judged(tmp_path: Path) -> None:
    for name, task, batch, factor in (("a", "sst2", 8, 1.0), ("a", "cb", 8, 1.0), ("b", "sst2", 16, 2.0)):
        spec = WORK.replace(task=task, batch_size=batch, weights="pretrained")
        Store(tmp_path / name).save(cell(spec, steps(factor, 0.001, 9, batch)))
    a, b = (side(str(tmp_path / name), tmp_path)[0] for name in ("a", "b"))
    sst2, cb = sorted(a, key=lambda result: result.spec.task, reverse=True)
    judged = compare([cb], b, may_differ={"task", "batch_size"}).pairs[0].judgement
    assert (judged.verdict, judged.ratio) == (Verdict.AMBIGUOUS, None)
    assert judged.reason.startswith("steps of different tasks")
    assert compare([sst2], b, may_differ={"batch_size"}).pairs[0].judgement.unit == "example"


@pytest.mark.parametrize(("other", "verdict"), [("opt-tiny", Verdict.AMBIGUOUS), ("theirs", Verdict.FASTER)])
def test_passes_that_depend_on_a_model_nobody_knows_are_equal_to_its_own_alone(other: str, verdict: Verdict) -> None:
    theirs = WORK.replace(model="theirs", config_hash="0" * 12, method="zo-sgd-block")
    a = theirs.replace(seq_len=64) if other == "theirs" else theirs.replace(model=other, config_hash="")
    sides = [cell(a, steps(4, 0.001, 9, 1))], [cell(theirs, steps(1, 0.001, 9, 2))]
    judged = compare(*sides, may_differ={"model", "config_hash", "seq_len"}).pairs[0].judgement
    assert judged.verdict is verdict
