"""The search: a grid compared on dev, the test set looked at once and by the winner, everything kept."""

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_task import spec_of
from tests.support.watched import before
from zobench.result import Outcome, Result
from zobench.runspec import DECLARED, METHODS
from zobench.training import finetune as run
from zobench.training import grids
from zobench.training import search as module
from zobench.training.search import Trial, cells, search

AXES = {"lr": [1e-3, 1e-2, 3e-2], "eps": [1e-3]}


def short(spec: Any, **changes: Any) -> Any:
    return spec(steps=4, eval_every=2, **changes)


@pytest.fixture(scope="module")
def searched(
    weights_path: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Trial], Trial]:
    """The folder of a whole search, its trials and its winner."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, *search(short(partial(spec_of, weights_path)), AXES, folder=folder, data_dir=data_dir)


def test_the_winner_has_the_lowest_dev_loss_and_alone_is_tested(searched, data_dir, tmp_path) -> None:
    folder, trials, winner = searched
    assert [cell.changes for cell in trials] == [{"lr": lr, "eps": 1e-3} for lr in AXES["lr"]]
    lowest = min(trials, key=lambda cell: cell.result.evaluation["best"]["loss"])
    assert winner.changes == lowest.changes
    assert all("test" not in cell.result.evaluation for cell in trials)
    assert winner.result.evaluation["test"]["count"] == 16
    tested = [path for path in folder.glob("*/result.json") if "test" in json.loads(path.read_text())["evaluation"]]
    assert [path.parent.name for path in tested] == [winner.result.spec.hash]
    assert [path.parent.name for path in folder.glob("*/model")] == [winner.result.spec.hash]
    assert list(folder.glob("*/snapshot-*")) == []
    last = trials[-1].result  # alone it comes to the same
    alone = run(last.spec, folder=tmp_path / last.spec.hash, data_dir=data_dir)
    assert alone.evaluation["curve"] == last.evaluation["curve"]


def test_a_search_goes_on_where_it_stopped(
    searched: tuple[Path, list[Trial], Trial], spec: Any, data_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected = searched[2].result.evaluation
    runs = itertools.count()

    def stop(*_: Any, **__: Any) -> None:
        if next(runs) == 2:
            raise KeyboardInterrupt

    before(monkeypatch.setattr, module, "finetune", stop)
    with pytest.raises(KeyboardInterrupt):
        search(short(spec), AXES, folder=tmp_path / "parts", data_dir=data_dir)
    trials, winner = search(short(spec), AXES, folder=tmp_path / "parts", data_dir=data_dir)
    assert winner.result.evaluation == expected
    assert winner.result.memory["device_peak_bytes"] is None  # of all runs that this process has had
    assert any("shares its process" in text for text in winner.result.warnings)
    again = search(short(spec), AXES, folder=tmp_path / "parts", data_dir=tmp_path / "absent")
    assert again[1].result.evaluation == expected
    assert len(trials) == 3


def test_a_loser_cannot_be_tested(searched, data_dir) -> None:
    folder, trials, winner = searched
    loser = next(cell for cell in trials if cell.changes != winner.changes).result.spec
    message = rf"must be looked at once, but .*search.json has looked for {winner.result.spec.hash}, and "
    with pytest.raises(ValueError, match=message):
        run(loser, folder=folder / loser.hash, data_dir=data_dir)
    assert not (folder / loser.hash / "model").exists()


def test_a_search_without_a_test_may_end_with_another_winner(spec, data_dir, tmp_path) -> None:
    untested = spec(steps=2, eval_every=2, test_size=0)
    winners = [search(untested, {"lr": rates}, folder=tmp_path, data_dir=data_dir)[1] for rates in ([3e-2], AXES["lr"])]
    assert len({winner.result.spec.hash for winner in winners}) == 2
    assert all("test" not in winner.result.evaluation for winner in winners)


def test_what_is_kept_of_runs_that_diverged_is_json(spec, data_dir, tmp_path) -> None:
    search(spec(steps=2, eval_every=2), {"lr": [1e30]}, folder=tmp_path, data_dir=data_dir)
    record = json.loads((tmp_path / "search.json").read_text(), parse_constant=pytest.fail)
    assert (record["winner"]["dev_loss"], record["test"]["loss"]) == (None, None)


def test_a_test_that_the_folder_remembers_is_the_only_one(searched, spec, data_dir, tmp_path) -> None:
    _, _, winner = searched
    loser = next(trial for trial, point in cells(short(spec), AXES).items() if point != winner.changes)
    run(loser, folder=tmp_path / loser.hash, data_dir=data_dir)
    message = rf"^the test set must be looked at once, but .* holds the test of {loser.hash}, "
    with pytest.raises(ValueError, match=message):
        search(short(spec), AXES, folder=tmp_path, data_dir=data_dir)
    assert not (tmp_path / winner.result.spec.hash / "model").exists()


@pytest.mark.parametrize(
    ("losses", "accuracies", "wins"),
    [([0.5, 0.4], [0.9, 0.1], 1), ([0.5, 0.5], [0.5, 0.6], 1), ([None, 9.0], [1, 0], 1),
     ([float("nan"), 9.0], [1, 0], 1)],
)  # fmt: skip
def test_ranks(spec: Any, losses: list[Any], accuracies: list[float], wins: int) -> None:
    trials = [
        Trial(changes={"lr": n}, result=Result(
            spec=spec(), outcome=Outcome.OK, evaluation={"best": {"step": 1, "loss": loss, "accuracy": accuracy}}
        ))
        for n, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]  # fmt: skip
    assert min(trials, key=lambda cell: cell.result.rank_on_dev) is trials[wins]
    assert trials[0].row()["dev_loss"] == (None if losses[0] is None or losses[0] != losses[0] else losses[0])


def test_every_method_and_scheme_has_a_grid_that_can_run(spec: Any) -> None:
    for method in DECLARED["method"].choices:
        has_scheme = METHODS.get(method).scheme is not None
        for scheme in DECLARED["scheme"].choices[:1] if has_scheme else DECLARED["scheme"].choices:
            grid = grids.shipped(method, scheme)
            assert grids.checked(grid.axes) == grid.axes
            needs = {"zo_layers": 1} if method == "hybrid" else METHODS.get(method).changes(spec())
            assert len(cells(spec(method=method, scheme=scheme, **needs), grid.axes)) >= 2


@pytest.mark.parametrize(
    ("scheme", "lr", "eps"),
    [("full", [1e-6, 1e-7], [1e-3]), ("lora", [1e-4, 5e-5], [1e-2]), ("prefix", [1e-2, 1e-3], [1e-1])],
)
def test_the_published_grids(scheme: str, lr: list[float], eps: list[float]) -> None:
    for method in ("zo-sgd", "zo-adam", "zo-sgd-block"):
        assert grids.shipped(method, scheme) == grids.SearchGrid({"lr": lr, "eps": eps}, "ZO-Bench")


def test_what_a_run_is_not_told_is_the_papers() -> None:
    taken, note = grids.defaults({"method": "zo-sgd", "scheme": "lora"})
    assert taken == {"lr": 1e-4, "eps": 1e-2, "steps": 20_000, "batch_size": 16, "eval_every": 1000}
    assert note == (
        "not given, so taken: lr=0.0001, eps=0.01, steps=20000, batch_size=16 (ZO-Bench), "
        "eval_every=1000 (for 20 evaluations)"
    )
    assert grids.defaults({"method": "fo-adam", "lr": 1.0})[0] == {"steps": 625, "batch_size": 16, "eval_every": 31}
    assert grids.defaults({"steps": 3, "lr": 1, "eps": 1, "batch_size": 2, "eval_every": 0}) == ({}, "")
    assert "eps" not in grids.defaults({"method": "forward-grad"})[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 1e-6", r"^mine.toml: `lr` must be a list of values, but got 1e-06; write lr = \[...\]$"),
        ("lr = [-1.0]", "^mine.toml: `lr >= 0` must hold, but got lr=-1.0"),
        ("seed = [1, 2]", "^mine.toml: `seed` must be the same in a whole search, but is varied; vary lr, eps, "),
        ("", "^mine.toml: a grid must vary something, but is empty"),
    ],
)
def test_a_bad_grid_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        grids.load(path)
    assert "\n" not in str(caught.value)
