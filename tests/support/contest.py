"""A small protocol of three methods, and made-up results of its runs, as a sweep would have stored them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.files import written
from zobench.cost import budget
from zobench.recipes import matrix
from zobench.recipes.protocol import Contest
from zobench.result import Facts, Outcome, Result
from zobench.result.examples import KEY, packed
from zobench.runspec import RunSpec

ZO_SGD = """[[methods]]
header = "ZO-SGD"
method = "zo-sgd"
lr = ["x1", "x3"]
"""
FO_SGD = """[[methods]]
header = "FO-SGD"
method = "fo-sgd"
lr = ["x10", "x100"]
"""
PROTOCOL = f"""
title = "Three methods"
tables = ["mine"]
[protocol]
forwards = 140
points = 2
extra = 2
tuning_seeds = [9, 10]
seeds = [0, 1, 2]
evaluations = 4
[base]
model = "opt-tiny"
weights = "pretrained"
weights_path = "tiny"
task = "sst2"
seq_len = 16
dev_size = 4
warmup = 0
lr = 1e-3
{ZO_SGD}[[methods]]
header = "Four queries"
method = "zo-sgd"
queries = 4
lr = ["x1", "x3"]
{FO_SGD}"""
TABLE = """
kind = "protocol"
title = "Three methods"
runner = "mine"
baseline = "ZO-SGD"
target = 0.7
[[claims]]
text = "FO-SGD is better"
source = "nobody"
metric = "accuracy"
of = ["FO-SGD", "ZO-SGD"]
at_least = 0.05
[[claims]]
text = "Four queries are as fast"
source = "nobody"
metric = "forwards"
of = ["Four queries", "ZO-SGD"]
at_most = 1.0
"""
FIGURE = """
kind = "pareto"
title = "Three methods"
table = "mine"
"""


def write(folder: Path, protocol: str = PROTOCOL, table: str = TABLE, figure: str = FIGURE) -> Path:
    """The recipes below ``folder``, from which they are found; returns the runner's file."""
    for kind, text in (("runners", protocol), ("tables", table), ("plots", figure)):
        written(folder / kind / "mine.toml", text)
    return folder / "runners" / "mine.toml"


def contest(path: Path, changes: Mapping[str, Any] | None = None) -> Contest:
    """The runs of the protocol in ``path`` on the CPU."""
    made = matrix.load(path, "cpu", changes, price=budget.price).contest
    assert made is not None
    return made


def only(contest: Contest, headers: Sequence[str]) -> Contest:
    """The runs of these methods alone."""
    return replace(contest, tuning={header: contest.tuning[header] for header in headers})


def result(
    spec: RunSpec, *, dev: Sequence[float], loss: float | None = 0.5, test: float | None = None, count: int = 1000,
    seconds: float = 0.1, peak: int = 50 << 20, watts: float | None = None, machine: str = "box-1", **changes: Any,
) -> Result:  # fmt: skip
    """A finished run: ``dev``, the accuracy of each evaluation from the start on; ``test``, of ``count`` examples, of
    which the first are right, and 1 less than that the loss."""
    steps = [min(spec.steps, number * spec.eval_every) for number in range(len(dev))]
    curve = [[step, loss, share] for step, share in zip(steps, dev, strict=True)]
    points = {
        name: {"step": row[0], "loss": row[1], "accuracy": row[2], "count": 500}
        for name, row in (("start", curve[0]), ("best", curve[-1]))
    }
    tested: dict[str, Any] = {}
    if test is not None:
        tested["test"] = {"step": curve[-1][0], "loss": 1 - test, "accuracy": test, "count": count}
        tested[KEY] = packed([(place < round(test * count), 1 - test) for place in range(count)])
    values: dict[str, Any] = {
        "spec": spec, "outcome": Outcome.OK, "environment": Facts(machine=machine, description="a box"),
        "samples": {name: [seconds] * spec.steps for name in ("step_seconds", "loss", "projected_grad")},
        "memory": {"device_peak_bytes": peak}, "power": {"mean_power_watts": watts},
        "evaluation": {
            "curve": curve, **points, **tested, "majority": {"dev": 0.5, "test": None}, "scores": ["accuracy"],
            "definition": "made up",
        },
    }  # fmt: skip
    return Result(**{**values, **changes})


def tuned(contest: Contest, loss: Callable[[RunSpec], float | None], **changes: Any) -> list[Result]:
    """All tuning results, of the grids and of the points that are added to them; ``loss`` gives that on dev."""
    made: dict[str, Result] = {}
    while wanted := [spec for spec in (*contest.cells, *contest.added(made)) if spec.hash not in made]:
        grid_runs = [result(spec, dev=[0.5, 0.6, 0.6, 0.65, 0.7], loss=loss(spec), **changes) for spec in wanted]
        made |= {run.spec.hash: run for run in grid_runs}
    return list(made.values())


def stored(contest: Contest, test: Callable[[str, int], float], *, best: int = 1, **changes: Any) -> list[Result]:
    """All results of all stages: of each grid the point ``best`` has the least loss on dev; ``test`` gives the accuracy
    on test of a method's header and a seed."""
    good = {specs[best].lr for specs in contest.tuning.values()}
    made = tuned(contest, lambda spec: 0.4 if spec.lr in good else 0.6, **changes)
    known = {run.spec.hash: run for run in made}
    winners = {contest.search(header, known).best: header for header in contest.tuning}
    for spec in contest.finals(known):
        header = next(winners[won] for won in winners if won and contest.final(won, spec.seed) == spec)
        made.append(result(spec, dev=[0.5, 0.6, 0.7, 0.7, 0.75], test=test(header, spec.seed), **changes))
    return made
