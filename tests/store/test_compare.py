"""Comparing runs: no verdict without evidence, the same evidence from both sides, and an exit code for regressions."""

import csv
import io
import itertools
import math
import random
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
from zobench.store.compare import Verdict, cautions, compare, judge, regressions, remarks, side

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


@pytest.mark.parametrize(("n", "m"), [(1, 39), (3, 5), (4, 4), (5, 5), (8, 6), (50, 50)])
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


def test_the_exact_and_the_normal_count_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ranks.critical(50, 50)
    ranks.critical.cache_clear()
    monkeypatch.setattr(ranks, "_EXACT", 0)
    assert abs(ranks.critical(50, 50) - exact) <= 1
    ranks.critical.cache_clear()


def test_the_least_number_of_step_times_is_the_least() -> None:
    assert ranks.critical(ranks.LEAST, ranks.LEAST) > 0
    assert ranks.critical(ranks.LEAST - 1, ranks.LEAST - 1) == 0


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=9), st.lists(st.floats(0.5, 2), min_size=4, max_size=9))
def test_the_ends_of_the_interval_are_ratios_of_pairs(a: list[float], b: list[float]) -> None:
    every = sorted(y / x for x in a for y in b)
    rank = ranks.critical(len(a), len(b))
    assert ranks.ratio_interval(a, b) == pytest.approx((every[rank - 1], every[-rank]))


def test_the_interval_covers_a_known_ratio_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(400):
        low, high = ranks.ratio_interval(steps(1, 0.05, 8, 2 * seed), steps(1.1, 0.05, 8, 2 * seed + 1)) or (0, 0)
        covered += low <= 1.1 <= high
    assert covered >= 0.93 * 400  # at least 95 %, less two standard deviations of this count


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


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_identical_samples_are_never_faster_or_slower(a: list[float]) -> None:
    assert judge(a, a, 0.02).verdict in (Verdict.SAME, Verdict.AMBIGUOUS)
    assert judge(a, a[::-1], 0.02).verdict in (Verdict.SAME, Verdict.AMBIGUOUS)


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_slowdown_of_a_tenth_is_found_among_twenty_steady_steps(seed: int) -> None:
    judged = judge(steps(1, 0.02, 20, seed), steps(1.1, 0.02, 20, 1000 + seed), 0.02)
    assert judged.verdict is Verdict.SLOWER
    assert judged.ratio == pytest.approx(1.1, rel=0.03)
    assert judged.interval is not None
    assert 1 < judged.interval[0] < judged.ratio < judged.interval[1] < 1.2


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_three_against_three_is_always_ambiguous_and_says_what_is_needed(a: list[float], factor: float) -> None:
    judged = judge(a, [factor * value for value in a], 0.02)
    assert (judged.verdict, judged.interval) == (Verdict.AMBIGUOUS, None)
    told = "3 against 3 step times cannot reach 5 %, whatever they are; measure at least 4 on each side (--set steps=4)"
    assert judged.reason == told


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
    found = compare(a, b)
    assert [(pair.a.spec, pair.b.spec) for pair in found.pairs] == [(spec, spec) for spec in SPECS[2:4]]
    assert ([one.spec for one in found.only_a], [one.spec for one in found.only_b]) == (SPECS[:2], SPECS[4:])


def test_only_the_index_of_the_device_may_differ() -> None:
    zero, one, cpu = (SPECS[0].replace(device=device) for device in ("cuda:0", "cuda:1", "cpu"))
    assert len(compare([cell(zero)], [cell(one)]).pairs) == 1
    with pytest.raises(ValueError, match=r"^A and B must share a cell, but none of 1 and 1 cells is in both; run the"):
        compare([cell(zero)], [cell(cpu)])
    with pytest.raises(ValueError, match=r"^A and B must share a cell"):
        compare([cell(zero)], [cell(one.replace(steps=21))])
    with pytest.raises(
        ValueError,
        match=rf"^B must have one result of each cell, but has two of .*: {MACHINE} on cuda:0; {MACHINE} on ",
    ):
        compare([cell(zero)], [cell(zero), cell(one)])


def test_sides_without_a_common_cell_are_told_in_what_they_differ() -> None:
    spec = SPECS[0]
    short, narrow = spec.replace(seq_len=64), spec.replace(seq_len=64, dtype="bf16")
    wide = [spec.replace(seq_len=16 * n) for n in range(8, 13)]
    for a, b, told in (
        ([spec], [narrow],
         f"they differ in dtype ({spec.dtype} in A, bf16 in B), seq_len ({spec.seq_len} in A, 64 in B)"),
        ([short], wide, "they differ in seq_len (64 in A, 128, 144, 160, ... in B)"),
        ([short, spec.replace(dtype="bf16")], [narrow, spec],
         f"the nearest two differ in dtype ({spec.dtype} in A, bf16 in B)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must share a cell") as caught:
            compare([cell(one) for one in a], [cell(one) for one in b])
        assert str(caught.value).endswith(f"; run the same matrix on both sides: {told}")


def test_other_hardware_is_refused_unless_asked_for_and_other_software_is_not() -> None:
    newer = replace(ENVIRONMENT, machine="epyc-2c-000000", software={"torch": "9"})
    assert len(compare([cell()], [cell(environment=newer)]).pairs) == 1
    with pytest.raises(ValueError, match=rf"of the same hardware, but got {MACHINE} and h200-16c-0a1b2c; add --across"):
        compare([cell()], [cell(environment=OTHER)])
    assert len(compare([cell()], [cell(environment=OTHER)], across_machines=True).pairs) == 1
    told = r"^`--across-machines` needs one machine on each side, but got epyc-2c-fcab62, "
    with pytest.raises(ValueError, match=told):
        compare([cell(), cell(environment=OTHER)], [cell()], across_machines=True)
    with pytest.raises(ValueError, match=r"^A must have one result of each cell, but has two of "):
        compare([cell(), cell(environment=newer)], [cell()])


def test_two_machines_on_both_sides_are_compared_each_with_itself() -> None:
    both = [cell(), cell(environment=OTHER, seconds=[9.0] * 5)]
    found = compare(both, both[::-1])
    assert [pair.judgement.ratio for pair in found.pairs] == [1, 1]


def test_results_without_hardware_are_told_apart_by_their_machine() -> None:
    one, two = (Facts(machine=name) for name in ("one", "two"))
    assert len(compare([cell(environment=one)], [cell(environment=one)]).pairs) == 1
    with pytest.raises(ValueError, match=r"same hardware, but got one and two"):
        compare([cell(environment=one)], [cell(environment=two)])


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
    found = compare(before, after)
    worse = regressions(found, 0.05)
    assert worse[0].startswith(f"{slow.label}: a step takes 1.")
    assert worse[1:] == [
        f"{heavy.label}: 1.100 times the device memory",
        f"{gone.label}: ended ok in A and oom in B: device memory ran out",
    ]
    assert regressions(found, 0.2) == worse[2:]
    assert found.pairs[3].judgement.verdict is Verdict.AMBIGUOUS
    assert len(regressions(found, 0.01)) == 5
    assert regressions(compare(after[-1:], before[-1:]), 0.01) == []


@pytest.mark.parametrize("peaks", [(None, 5), (5, None), (0, 5)])
def test_memory_that_was_not_measured_has_no_ratio(peaks: tuple[int | None, int | None]) -> None:
    a, b = (cell(memory={"device_peak_bytes": peak}) for peak in peaks)
    assert compare([a], [b]).pairs[0].memory_ratio is None


def test_cells_that_ran_while_others_used_the_machine_are_named() -> None:
    told = f"{DISTURBED}1.3 cores busy meanwhile; expect slower steps"
    dirty = replace(ENVIRONMENT, source={"commit": "0123456789", "dirty": True})
    found = compare([cell(), cell(SPECS[1])], [cell(warnings=[told]), cell(SPECS[1], environment=dirty)])
    assert cautions(found) == [
        f"1 cell of B ran while others used the machine: {SPECS[0].label}",
        "1 cell of B ran with uncommitted changes",
    ]


def test_other_intervals_of_write_backs_are_told() -> None:
    """They are no part of the spec: the same cell then draws and moves more or less."""
    every = [cell(environment=replace(ENVIRONMENT, writeback_plan={"steps": n, "reason": ""})) for n in (16, 16, 64)]
    assert cautions(compare(every[:1], every[1:2])) == cautions(compare(every[:1], [cell()])) == []
    (told,) = cautions(compare(every[:1], every[2:]))
    assert told.startswith(
        "1 cell wrote pending updates after another number of steps in B than in A, as rates made it: "
    )


def test_another_number_of_threads_is_told() -> None:
    one, two = (cell(environment=replace(ENVIRONMENT, threads=count)) for count in (1, 2))
    assert cautions(compare([two], [two])) == cautions(compare([two], [cell()])) == []
    label = SPECS[0].label
    assert cautions(compare([two], [one])) == [
        f"1 cell computed with another number of threads in B than in A: {label}"
    ]


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


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("results", 2),
        (f"results/{MACHINE}", 1),
        (MACHINE, 1),
        ("h200-16c-0a1b2c", 1),
        ("ee3ca2f17", 1),
        ("ee3ca2f0000", 1),
    ],
)
def test_a_side_is_a_folder_a_machine_or_a_commit(root: Path, word: str, count: int) -> None:
    results, problems = side(word, root)
    assert (len(results), problems) == (count, [])


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("ee3ca2f",
         "'ee3ca2f' must name one thing, but got the commit ee3ca2f17f60ae0b2c4b8e4dfce74c7e24d3e945, the com"),
        ("ee3ca2", "A and B must be results folders, or machines or commits (7 digits or more) in results, but got "),
        ("epyc-2c-fcab63", f"in results, but got 'epyc-2c-fcab63'; did you mean {MACHINE}?"),
        ("./nothing", "but got './nothing'; results has no results"),
        ("empty", "'empty' must hold results, but has none that can be read; see `zobench results empty`"),
    ],
)  # fmt: skip
def test_a_word_that_names_nothing_or_two_things_is_one_line(root: Path, word: str, text: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=r".") as caught:
        side(word, root)
    assert text in str(caught.value)


def test_a_folder_and_a_machine_of_one_name_are_two_things_unless_they_hold_the_same(root: Path) -> None:
    Store(Path(MACHINE)).save(cell(SPECS[2]))
    told = rf"must name one thing, but got the folder {MACHINE}, the machine {MACHINE}; wr"
    with pytest.raises(ValueError, match=told):
        side(MACHINE, root)
    assert [one.spec for one in side(f"./{MACHINE}", root)[0]] == [SPECS[2]]


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


@pytest.mark.parametrize("width", ["80", "140"])
def test_the_table_names_every_cell_and_why_one_is_ambiguous(tmp_path, zobench, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)
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
    assert max(map(len, out.replace(a, "").replace(b, "").splitlines())) <= int(width)


def test_a_name_cannot_command_the_terminal(tmp_path: Path, zobench: Any) -> None:
    told = f"{DISTURBED}1.3 cores busy"
    for name, mean in (("a", 1), ("b", 2)):
        spec = SPECS[0].replace(model="x\x1b[2J[red]")
        Store(tmp_path / name).save(cell(spec, steps(mean, 0.01, 9, mean), warnings=[told]))
    _, out, err = zobench("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-on-regression", "5%")
    assert "\x1b" not in out + err
    assert (out.count("[red]"), err.count("[red]")) == (1, 3)


def test_the_csv_has_every_number_in_full(tmp_path: Path, zobench: Any) -> None:
    a, b = stored(tmp_path / "a", 1, 1), stored(tmp_path / "b", 1.1, 7)
    Store(Path(a)).save(cell(SPECS[2]))
    code, out, err = zobench("compare", a, b, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    found = compare(side(a, tmp_path)[0], side(b, tmp_path)[0])
    assert (code, err) == (0, "")
    assert [row["verdict"] for row in rows] == ["SLOWER", "SLOWER", "only in A"]
    for row, pair in zip(rows, found.pairs, strict=False):
        assert float(row["ratio"]) == pair.judgement.ratio
        assert (float(row["ratio_low"]), float(row["ratio_high"])) == pair.judgement.interval
        assert float(row["step_seconds_b"]) == pair.b.step_seconds


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tolerance", "some"], "`--tolerance` must be a percentage, but got 'some'; write 5%"),
        (["--tolerance", "0.05"], "`--tolerance` must have its sign below 1, but got '0.05'; write 5% or 0.05%"),
        (["--fail-on-regression", "-5%"], "`--fail-on-regression` must be 0% to 100%, but got '-5%'; write 5%"),
        (["--fail-on-regression", "nan"], "`--fail-on-regression` must be 0% to 100%, but got 'nan'; write 5%"),
        (["--format", "pdf"], "unknown format 'pdf'; use one of terminal, csv"),
        (["--results", "file"], "`results` must be a folder, but got 'file'; it is a file; name a folder"),
        ([], "A and B must be results folders, or machines or commits (7 digits or more) in results, but got 'a'; "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, refused, monkeypatch, arguments, text) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert refused("compare", "a", "b", *arguments).startswith(f"zobench: {text}")


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
    equal = [one.with_facts(threads=2) for one in both]
    assert evidence.times_ratio(*equal).interval is not None  # type: ignore[union-attr]
    assert evidence.times_ratio(*both).interval is None  # type: ignore[union-attr]


def test_a_disturbance_of_any_round_is_told() -> None:
    calm = repeated(SPECS[0], [1.0, 1.1, 1.2])
    told = [f"{DISTURBED}1.3 cores busy meanwhile; expect slower steps"]
    (loud,) = folded([*calm.runs[:2], replace(calm.runs[2], warnings=told)])
    assert cautions(compare([calm], [calm])) == []
    assert cautions(compare([calm], [loud])) == [f"1 cell of B ran while others used the machine: {SPECS[0].label}"]


def test_the_test_that_is_named_is_the_one_that_was_taken() -> None:
    def named(*counts: int) -> str:
        cells = zip(SPECS, counts, strict=False)
        results = [repeated(spec, [1 + 0.1 * n for n in range(count)]) for spec, count in cells]
        return " ".join(remarks(compare(results, results), []))

    signed, student = "From rounds: the signed-rank test", "From fewer than 6 rounds: Student's t test"
    assert (signed in named(6), student in named(6)) == (True, False)
    assert (signed in named(3), student in named(3)) == (False, True)  # of 3 pairs the least p of ranks is 0.25
    assert (signed in named(6, 3), student in named(6, 3)) == (True, True)


def test_threads_of_any_process_are_told_where_no_round_is_shared() -> None:
    both = [repeated(SPECS[0], [1.0, 1.1, 1.2, 1.3], began=began) for began in (1.0, 900.0)]
    even, odd = (replace(side, repeats=tuple(run.with_facts(threads=2) for run in side.runs)) for side in both)
    odd = replace(odd, repeats=(*odd.runs[:3], odd.runs[3].with_facts(threads=1)))
    assert cautions(compare([even], [even])) == []
    (caution,) = cautions(compare([even], [odd]))
    assert caution.startswith("1 cell computed with another number of threads in B than in A")


def test_too_few_processes_are_told_what_is_needed() -> None:
    one, two = repeated(SPECS[0], [1.0]), repeated(SPECS[0], [1.0])
    assert compare([one], [two]).pairs[0].judgement.values == "steps"
    few = compare([repeated(SPECS[0], [1, 1.1])], [repeated(SPECS[0], [1, 1.2, 1], began=9.0)])
    told = "2 against 3 processes cannot reach 5 %, whatever they are; measure at least 4 on each side (--repeats 4)"
    assert few.pairs[0].judgement.reason == told
    cut = repeated(SPECS[0], [1.0, 1.0, 2.0]).repeats[2]
    single = compare([repeated(SPECS[0], [1.0, 1.0, 2.0])], [cut]).pairs[0].judgement
    assert single.reason == "one round tells nothing of chance; repeat them (--repeats 6)"


def test_sides_can_be_conditions_whose_fields_may_differ(tmp_path: Path, zobench: Any) -> None:
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
    code, _, err = zobench("compare", "engine=resident", "seed=7", "--results", str(tmp_path))
    assert (code, err.startswith("zobench: 'seed=7' must name results, but none in ")) == (2, True)


WORK = RunSpec(model="opt-tiny", seq_len=32, method="zo-sgd").resolve("cpu")


@pytest.mark.parametrize(
    ("changes", "unit", "work"),
    [
        ({}, "step", 1),
        ({"batch_size": 4}, "token", 4),
        ({"seq_len": 64}, "token", 2),
        ({"batch_size": 2, "seq_len": 16}, "step", 1),
        ({"method": "fzoo", "queries": 7}, "token and forward pass", 4),
        ({"queries": 3, "seq_len": 64}, "token and forward pass", 6),
        ({"method": "fo-sgd"}, "step", 1),
        ({"method": "fo-sgd", "batch_size": 2}, "token", 2),
    ],
)
def test_where_the_work_of_a_step_differs_the_time_of_its_work_is_judged(changes, unit, work) -> None:
    a = WORK.replace(noise="counter")
    b = a.replace(noise="torch" if changes.get("method") == "fo-sgd" else "counter", **changes)
    differ = frozenset({"noise", "method", "queries", "batch_size", "seq_len"})
    one, other = cell(a, steps(1, 0.001, 9, 1)), cell(b, steps(0.9 * work, 0.001, 9, 2))
    judged = compare([one], [other], may_differ=differ).pairs[0].judgement
    assert (judged.verdict, judged.unit) == (Verdict.FASTER, unit)
    assert judged.ratio == pytest.approx(0.9, rel=0.01)
    rounds = repeated(a, [1 + 0.1 * n for n in range(7)]), repeated(b, [1.1 * work * (1 + 0.1 * n) for n in range(7)])
    judged = compare([rounds[0]], [rounds[1]], may_differ=differ).pairs[0].judgement
    assert (judged.verdict, judged.interval) == (Verdict.SLOWER, (pytest.approx(1.1), pytest.approx(1.1)))


def test_steps_of_different_tasks_are_not_judged(tmp_path: Path, zobench: Any) -> None:
    for name, task, batch, factor in (("a", "sst2", 8, 1.0), ("a", "cb", 8, 1.0), ("b", "sst2", 16, 2.0)):
        spec = WORK.replace(task=task, batch_size=batch, weights="pretrained")
        Store(tmp_path / name).save(cell(spec, steps(factor, 0.001, 9, batch)))
    a, b = (side(str(tmp_path / name), tmp_path)[0] for name in ("a", "b"))
    sst2, cb = sorted(a, key=lambda result: result.spec.task, reverse=True)
    judged = compare([cb], b, may_differ={"task", "batch_size"}).pairs[0].judgement
    assert (judged.verdict, judged.ratio) == (Verdict.AMBIGUOUS, None)
    assert judged.reason.startswith("steps of different tasks")
    assert compare([sst2], b, may_differ={"batch_size"}).pairs[0].judgement.unit == "example"
    Store(tmp_path / "both").save(sst2)
    Store(tmp_path / "both").save(b[0])
    _, out, _ = zobench("compare", "batch_size=8", "batch_size=16", "--results", str(tmp_path / "both"))
    assert "B / A is of the time per example, as the work of a step differs between A and B." in out
