"""What is left of a campaign: a round counts only whole, what ended badly is not tried again unasked; who is busy."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import contest
from tests.support.rates import RATES
from zobench.execute import campaign, plan
from zobench.execute.plan import Limits
from zobench.recipes.campaign import Part, PartOn
from zobench.result import Facts, Outcome, Result, Round
from zobench.runspec import RunSpec
from zobench.session import campaigns

ROOM = Limits(device_bytes=None, host_bytes=2**40, disk_bytes=2**40)
CELLS = [RunSpec(model="opt-tiny", seq_len=32, seed=seed).resolve("cpu") for seed in range(3)]


def run(spec: RunSpec, number: int = 0, began: float = 5.0, outcome: Outcome = Outcome.OK) -> Result:
    place = Round(number=number, began=began, place=0, cells=3, seed=1)
    reason = "" if outcome is Outcome.OK else "a reason"
    return Result(spec=spec, outcome=outcome, reason=reason, environment=Facts(machine="box-2c-abcdef"), round=place)


def left(runs: Sequence[Result], repeats: int = 2, first: int = 0, retry: Sequence[str] = ()) -> list[tuple[int, int]]:
    known = campaign.progress(CELLS, range(first, first + repeats), runs, retry)
    assert known.done + len(known.left) == len(known.wanted)
    return [(spec.seed, number) for spec, number in known.left]


def test_of_nothing_all_rounds_are_left_and_of_whole_rounds_none() -> None:
    assert left([]) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    whole = [run(spec, number, began=5.0 + number) for number in (0, 1) for spec in CELLS]
    assert left(whole) == []
    assert left(whole, first=1) == [(0, 2), (1, 2), (2, 2)]


def test_a_round_that_was_stopped_or_put_together_is_left_whole() -> None:
    assert left([run(spec) for spec in CELLS[:2]], repeats=1) == [(0, 0), (1, 0), (2, 0)]
    patched = [*(run(spec) for spec in CELLS[:2]), run(CELLS[2], began=6.0)]
    assert left(patched, repeats=1) == [(0, 0), (1, 0), (2, 0)]


def test_of_a_round_that_was_stopped_the_cells_with_a_task_stay() -> None:
    """An accuracy is not compared within a round, so hours of it are not repeated."""
    task = RunSpec(model="opt-tiny", seq_len=32, task="sst2").resolve("cpu")
    stored = [(task, run(task, began=4.0)), (CELLS[0], run(CELLS[0])), (CELLS[1], None)]
    assert campaign.unmeasured(stored, ()) == CELLS[:2]
    steps = [plan.decide(spec, result, [], None, ROOM, ()) for spec, result in stored]
    assert [step.action for step in campaign.whole_round(steps, ())] == ["keep", "run", "run"]


@pytest.mark.parametrize(("host_bytes", "action"), [(2**40, "run"), (0, "skip")])
def test_cells_of_two_rounds_run_again_unless_they_do_not_fit_any_more(host_bytes: int, action: str) -> None:
    room = dataclasses.replace(ROOM, host_bytes=host_bytes)
    stored = zip(CELLS[:2], [run(CELLS[0]), run(CELLS[1], began=6.0)], strict=True)
    steps = [plan.decide(spec, result, [], None, room, ()) for spec, result in stored]
    assert [step.action for step in steps] == ["keep", "keep"]
    again = [(step.action, "are free" in step.reason) for step in campaign.whole_round(steps, ())]
    assert again == [(action, action == "skip")] * 2


def test_runs_from_before_the_campaign_are_in_no_round_and_do_not_count() -> None:
    plain = [dataclasses.replace(run(spec), round=None) for spec in CELLS]
    assert left(plain, repeats=1) == [(0, 0), (1, 0), (2, 0)]


def test_what_ended_badly_is_wanted_in_no_further_round_unless_it_is_asked_for() -> None:
    first = [run(CELLS[0], outcome=Outcome.OOM), *(run(spec) for spec in CELLS[1:])]
    assert left(first) == [(1, 1), (2, 1)]
    assert left(first, retry=["oom"]) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_a_cell_that_ran_once_and_did_not_fit_later_is_not_left_out() -> None:
    later = run(CELLS[0], 1, outcome=Outcome.SKIPPED)
    assert campaign.fitting(CELLS, [run(CELLS[0]), later]) == list(CELLS)
    assert campaign.fitting(CELLS, [later]) == list(CELLS[1:])


def test_the_outlook_prices_all_rounds_and_those_that_are_left_and_leaves_out_what_does_not_fit() -> None:
    part = Part(name="a", matrix="m", reason="why", repeats=2, turns=False, changes={})
    huge = RunSpec(model="OPT-175B").resolve("cpu")
    on = PartOn(part=part, cells=(*CELLS, huge), first=0)
    room = dataclasses.replace(ROOM, host_bytes=8 * 10**9)
    known = campaign.outlook(on, [run(spec) for spec in CELLS], RATES, room)
    assert [step.spec.model for step in known.unfit] == ["OPT-175B"]
    assert (known.progress.done, len(known.progress.wanted), known.is_done) == (3, 6, False)
    assert known.left == pytest.approx(known.whole / 2)
    assert 12 < known.left < 60  # three processes


def test_a_protocol_is_done_without_the_method_whose_grid_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its winner will never be known, so its last stage is not left; where it can run now, all of it is."""
    made = contest.contest(contest.write(tmp_path))
    part = Part(name="a", matrix="mine", reason="why", repeats=1, turns=False, changes={})
    on = PartOn(part=part, cells=made.cells, first=0, contest=made)
    barred = [spec for spec in made.cells if spec.queries == 4]
    runs = contest.stored(contest.only(made, ["ZO-SGD", "FO-SGD"]), lambda header, seed: 0.8)
    runs += [Result(spec=spec, outcome=Outcome.SKIPPED, reason="too large") for spec in barred]
    assert campaign.part_progress(on, runs).left == ()
    assert len(campaign.part_progress(on, runs[: -len(barred)]).left) == 2 * 2 + 3  # points, tuning seeds; seeds

    def known(*, fits: bool) -> campaign.Outlook:
        def check(spec: RunSpec) -> None:
            if spec.queries == 4 and not fits:
                raise ValueError("too large")

        monkeypatch.setattr(plan.models, "check", check)
        return campaign.outlook(on, runs, RATES, ROOM)

    outlook = known(fits=False)
    assert (outlook.is_done, outlook.left, outlook.most) == (True, 0, 0)
    assert {step.spec.queries for step in outlook.unfit} == {4}
    assert len(known(fits=True).progress.left) == 2 * 2 + 3


@pytest.mark.parametrize(
    ("cores", "answer"), [([1.5, 0.1], ""), ([1.5, 1.5, 0.9], "other processes keep 0.9 cores busy")]
)
def test_a_machine_is_busy_if_it_is_whenever_it_is_watched(cores, answer, monkeypatch) -> None:
    rest = list(cores)

    class Watch:
        def cores(self) -> float | None:
            return rest.pop(0)

    monkeypatch.setattr(campaigns, "Neighbours", Watch)
    assert campaigns.lasting_disturbance("cpu", seconds=0, tries=3) == answer
    assert rest == []


def test_another_process_on_the_gpu_is_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def __init__(self, uuid: str, pid: int) -> None:
            self._uuid = uuid

        def processes(self) -> dict[int, int | None] | None:
            known: dict[str, dict[int, int | None]] = {"GPU-b": {4711: 3}, "GPU-a": {}}
            return known.get(self._uuid)

    monkeypatch.setattr(campaigns, "DeviceReader", Reader)
    monkeypatch.setattr(campaigns, "gpu_uuids", lambda: ("GPU-a", "GPU-b", "GPU-c"))
    busy = [campaigns.disturbance(f"cuda:{number}", seconds=0) for number in range(4)]
    assert busy == ["", "another process uses the GPU (pid 4711)", "", ""]
    assert campaigns.lasting_disturbance("cuda:1", seconds=0) == busy[1]
