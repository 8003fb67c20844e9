"""A sweep, its plan, a campaign, a protocol and a comparison from Python alone, with stand-ins for the cells."""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import zobench
from tests.support import contest as support
from tests.support.campaigns import HEAD, MATRIX, PART
from tests.support.files import written
from zobench import RunSpec, Session, Store
from zobench.execute.monitor import Monitor
from zobench.result import Result
from zobench.result.repeats import number_of
from zobench.session import campaigns
from zobench.store import BusyError

API: Any = zobench
"""The package as one calls it who makes mistakes that a type checker would find."""


class Listener(Monitor):
    """Keeps the lines and the plans that it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.plans: list[tuple[str, int]] = []

    def say(self, text: str, style: str = "dim") -> None:
        self.lines.append((style, text))

    def show_plan(self, title: str, steps: Sequence[Any], budget: float | None) -> None:
        self.plans.append((title, len(steps)))


@pytest.fixture
def recipes(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A matrix of three cells, one of which fails, and a campaign of it in three rounds."""
    for folder, text in (("runners", MATRIX), ("campaigns", HEAD + PART.format("first"))):
        written(cwd / folder / "mine.toml", text)
    monkeypatch.setattr(campaigns, "disturbance", lambda device, seconds: "")
    return cwd


def test_a_sweep_and_its_plan(recipes: Path, machine: str, cells: list[RunSpec], capsys: Any) -> None:
    planned = zobench.plan("mine", device="cpu", changes={"steps": 3})
    assert [(step.action, step.spec.steps) for step in planned.steps] == [("run", 3)] * 3
    assert (cells, Store(recipes / "results").runs(machine)) == ([], [])
    summary = zobench.sweep(recipes / "runners" / "mine.toml", device="cpu", repeats=2, price=2.5, budget=3600)
    assert [str(result.outcome) for result in summary.results] == ["ok", "failed", "ok"]
    assert (summary.waiting, summary.interrupted, summary.unsaved) == (0, False, [])
    runs = Store(recipes / "results").runs(machine)
    assert sorted((run.spec.seed, number_of(run)) for run in runs) == [(0, 0), (0, 1), (1, 0), (5, 0), (5, 1)]
    assert [step.action for step in zobench.plan("mine", device="cpu", retry="none").steps] == ["keep"] * 3
    listener = Listener()
    few = zobench.sweep("mine", device="cpu", results="other", wanted=lambda spec: spec.seed == 5, monitor=listener)
    assert [result.spec.seed for result in few.results] == [5]
    lines = [line for _, line in listener.lines]
    begin = lines.index(f"{few.results[0].spec.label} begins")
    assert lines[begin + 1] == str(few.results[0])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: API.run("opt-tiny"), "`spec` must be a RunSpec, but got 'opt-tiny'; write RunSpec(model='opt-tiny')"),
        (lambda: API.Session("results"), "`store` must be a Store, but got 'results'; write Store('results')"),
        (lambda: API.run(RunSpec(model="opt-tiny"), steps=3), "'steps'; did you mean spec=RunSpec(steps=...)?"),
        (lambda: RunSpec(**{"model": "opt-tiny", "seqlen": 3}), "no argument 'seqlen'; did you mean seq_len or seed?"),
        (lambda: API.finetune(RunSpec(model="opt-tiny"), foldr="x"), "argument 'foldr'; did you mean folder?"),
        (lambda: API.finetune(RunSpec(model="opt-tiny"), folder="x"), "`task` must be given to fine-tune, but is none"),
        (lambda: API.sweep("mine", budgt=3), "`sweep` takes no argument 'budgt'; did you mean budget?"),
        (lambda: API.sweep("mine", devise="cpu"), "`sweep` takes no argument 'devise'; did you mean device?"),
        (lambda: API.sweep("mine", executor="x"), "'executor'; did you mean `zobench sweep --executor`?"),
        (lambda: API.plan("mine", steps=3), "`sweep` takes no argument 'steps'; did you mean changes={'steps': ...}?"),
    ],
)  # fmt: skip
def test_what_a_function_does_not_take_is_one_line(recipes: Path, call: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_another_sweep_has_run_since_the_plan_is_kept(recipes: Path, cells: list[RunSpec]) -> None:
    listener = Listener()
    waiting = Session(Store(recipes / "results"), "cpu", monitor=listener).matrix("mine", retry="none")
    planned = waiting.plan()
    zobench.sweep("mine", device="cpu")
    assert [str(result.outcome) for result in waiting.run(planned).results] == ["ok", "failed", "ok"]
    assert len(cells) == 3
    assert sum(text.startswith("kept, as another sweep has run it since") for _, text in listener.lines) == 3


def test_a_campaign_goes_on_where_its_budget_ended(recipes: Path, machine: str, cells: list[RunSpec]) -> None:
    listener = Listener()
    session = Session(Store(recipes / "results"), "cpu", monitor=listener)
    stopped = session.campaign("mine", budget=1)
    assert (stopped.results, stopped.waiting) == ([], 9)
    assert listener.lines[-1][1].startswith("stops before first, which needs ")
    assert len(session.campaign("mine", part="first").results) == 3
    assert (len(cells), len(Store(recipes / "results").runs(machine))) == (3 + 2 + 2, 7)  # a seed of 1 fails
    assert any(line.startswith("\npart 1 of 1, first: why; 9 runs, ") for _, line in listener.lines)
    done = session.campaign("mine")
    assert (done.results, done.waiting) == ([], 0)
    dry = Session(Store(recipes / "dry"), "cpu", dry=True)
    with pytest.raises(ValueError, match="a session with dry=True measures nothing"):
        dry.sweep("mine")
    (recipes / "campaigns" / "mine.toml").write_text(HEAD.replace('"cpu"', '"cuda"') + PART.format("first"))
    with pytest.raises(ValueError, match="the campaign mine is of cuda, but the session's device is cpu; "):
        session.campaign("mine")


def test_a_protocol_runs_all_its_stages(cwd: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    ran: list[RunSpec] = []

    def run(spec: RunSpec, **_: Any) -> Result:
        ran.append(spec)
        test = 0.7 if spec.test_size else None
        return support.result(spec, dev=[0.5, 0.6, 0.6, 0.65, 0.7], loss=spec.lr, test=test, machine=machine)

    monkeypatch.setattr("zobench.execute.sweep.run_in_process", run)
    support.write(cwd, support.PROTOCOL.replace('weights = "pretrained"\nweights_path = "tiny"\n', ""))
    listener = Listener()
    summary = zobench.sweep("mine", device="cpu", monitor=listener)
    titles = [title for title, _ in listener.plans]
    assert (titles[0], titles[-1]) == ("Three methods", "The best point of each method")
    assert "Beside the best point of each grid" in titles
    assert [spec.seed for spec in ran[-9:]] == [0] * 3 + [1] * 3 + [2] * 3  # three methods, three seeds
    assert all(spec.test_size for spec in ran[-9:])
    assert (len(summary.results), summary.waiting) == (len(ran), 0)


def test_a_part_of_a_protocol_without_time_says_how_many_runs_wait(cwd: Path, cells: list[RunSpec]) -> None:
    support.write(cwd, support.PROTOCOL.replace('weights = "pretrained"\nweights_path = "tiny"\n', ""))
    sweep = Session(Store(cwd / "results"), "cpu").matrix("mine")
    assert sweep.run_part(0.0).waiting == len(sweep.cells) + 9  # its grids, then three methods with three seeds
    assert cells == []


def test_no_selftest_runs_while_another_sweep_measures_into_the_store(
    recipes: Path, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[float] = []
    monkeypatch.setattr("zobench.session.matrices.selftest_first", lambda _, seconds: ran.append(seconds))
    (recipes / "runners" / "mine.toml").write_text(f'selftest = "1m"\n{MATRIX}')
    with Store(recipes / "results").lock(), pytest.raises(BusyError):
        zobench.sweep("mine", device="cpu")
    assert (ran, cells) == ([], [])
    zobench.sweep("mine", device="cpu")
    assert (ran, len(cells)) == ([60.0], 3)


def test_a_comparison_of_two_stores_says_what_cannot_be_read(recipes, cells, caplog) -> None:
    for folder in ("a", "b"):
        zobench.sweep("mine", device="cpu", results=folder)
    comparison = zobench.compare(Path("a"), Path("b"))
    assert [str(pair.judgement.verdict) for pair in comparison.pairs] == ["SAME", "AMBIGUOUS", "SAME"]
    assert (comparison.only_a, comparison.only_b) == ([], [])
    with pytest.raises(ValueError, match="`tolerance` must be a share from 0 to 1, but got 2; "):
        zobench.compare("a", "b", tolerance=2)
    next(Path("a").rglob("*opt*.json")).write_text("{")
    with caplog.at_level(logging.WARNING, "zobench"):
        assert len(zobench.compare("a", "b").pairs) == 2
    assert "not read: " in caplog.text
