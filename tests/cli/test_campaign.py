"""zobench campaign: parts in order, what is done is kept, a budget stops before a part, and nobody else may be busy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaigns import HEAD, MATRIX, PART
from tests.support.files import written
from tests.support.watched import before
from zobench.execute import sweep
from zobench.result.repeats import number_of, pairs
from zobench.runspec import RunSpec
from zobench.session import campaigns
from zobench.store import Store

TEXT = HEAD + PART.format("first") + PART.format("second") + "repeats = 2\naxes = { seed = [0, 7] }\ninclude = []\n"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mine(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign of two parts, with three cells in three rounds and two in two, one of them in both."""
    written(cwd / "runners" / "mine.toml", MATRIX.replace("[0, 1]", "[0, 3]"))
    written(cwd / "campaigns" / "c.toml", TEXT)
    monkeypatch.setattr(campaigns, "disturbance", lambda device, seconds: "")
    return cwd


def stored(folder: Path, machine: str) -> list[tuple[int, int]]:
    return sorted((run.spec.seed, number_of(run)) for run in Store(folder / "results").runs(machine))


def test_it_runs_all_rounds_of_all_parts_and_then_there_is_nothing_to_do(mine, machine, zobench, cells) -> None:
    code, out, _ = zobench("campaign", "c", "--plan")
    assert (code, cells) == (0, [])
    rows = [line.split() for line in out.splitlines()]
    assert [row[:6] for row in rows[2:4]] == [["first", "3", "3", "0", "of", "9"], ["second", "2", "2", "0", "of", "4"]]
    assert "2 of 2 parts are left, " in out
    code, _, err = zobench("campaign", "c")
    assert (code, len(cells)) == (0, 13)
    first = [(seed, number) for seed in (0, 3, 5) for number in range(3)]
    assert stored(mine, machine) == sorted([*first, *((seed, number) for seed in (0, 7) for number in (3, 4))])
    both, third, fifth, seventh = Store(mine / "results").load(machine)
    by_seed = {cell.spec.seed: cell for cell in (both, third, fifth, seventh)}
    assert (len(pairs(by_seed[0], by_seed[3])), len(pairs(by_seed[0], by_seed[7]))) == (3, 2)
    assert f"to send it: zobench results results --pack {machine}-c.tar.gz (docs/campaigns.md)" in err
    code, out, _ = zobench("campaign", "c")
    assert (code, len(cells)) == (0, 13)
    assert "all parts are done" in out
    code, out, _ = zobench("campaign")
    assert code == 0
    (row,) = [line for line in out.splitlines() if line.startswith("c ")]
    assert row.split() == ["c", "2", "of", "2", "13", "of", "13", "Mine"]


def test_parts_beyond_what_it_is_for_wait_until_they_are_asked_for(mine, zobench, cells) -> None:
    (mine / "campaigns" / "c.toml").write_text(TEXT + "more = true\n")
    out = zobench("campaign", "c", "--plan")[1]
    assert "second" not in out
    assert "1 of 1 parts are left" in out
    code, _, err = zobench("campaign", "c")
    assert (code, len(cells)) == (0, 9)
    assert "1 more part goes beyond what it is for: zobench campaign c --more" in err
    assert "second" in zobench("campaign", "c", "--plan", "--more")[1]
    assert zobench("campaign", "c", "--part", "second")[0] == 0
    assert len(cells) == 13
    assert "all parts are done" in zobench("campaign", "c", "--more")[1]


def test_an_interrupted_round_is_run_anew(mine, machine, zobench, cells, monkeypatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        if len(cells) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        before(patch.setattr, sweep, "run_in_process", stop)
        code, _, err = zobench("campaign", "c", "--part", "first")
    assert (code, len(cells)) == (130, 4)
    assert "to send it" not in err
    assert "the same command goes on from here" in err
    code, _, err = zobench("campaign", "c", "--part", "first")
    assert (code, len(cells)) == (0, 4 + 6)  # the second round had one cell of three
    assert "to send it" not in err  # not all of it is done
    result, other, last = Store(mine / "results").load(machine)
    assert {len(pairs(result, other)), len(pairs(result, last))} == {3}


def test_a_busy_machine_is_refused_in_one_line_unless_it_is_allowed(mine, zobench, cells, monkeypatch) -> None:
    monkeypatch.setattr(campaigns, "disturbance", lambda device, seconds: "other processes keep 1.5 cores busy")
    code, _, err = zobench("campaign", "c")
    assert (code, cells) == (2, [])
    assert err.splitlines()[-1] == (
        "zobench: a campaign needs an idle machine, but other processes keep 1.5 cores busy; wait for them, or add "
        "busy=True (--busy)"
    )
    assert zobench("campaign", "c", "--busy")[0] == 0
    assert len(cells) == 13


def test_a_part_without_its_weights_is_named_with_its_remedy_and_the_others_run(
    mine: Path, zobench: Command, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(mine / "empty"))
    lacks = 'base = { model = "Gemma-3-270M" }\n'
    (mine / "campaigns" / "c.toml").write_text(HEAD + PART.format("gemma") + lacks + PART.format("first"))
    obstacle = "mine.toml: Gemma-3-270M needs its weights, but they are not here; zobench model add gemma3-270m"
    code, out, _ = zobench("campaign", "c", "--plan")
    assert (code, cells) == (0, [])
    assert "1 of 2 parts are left" in out
    assert f"why; cannot run: {obstacle}" in " ".join(out.split())
    code, _, err = zobench("campaign", "c")
    assert (code, len(cells)) == (0, 9)
    assert "left: gemma; to go on: zobench campaign c" in err
    code, _, err = zobench("campaign", "c", "--part", "gemma")
    assert (code, err.splitlines()[-1]) == (2, f"zobench: part gemma: {obstacle}")
