"""When ``writeback_every=inf`` writes pending updates: as a machine's rates make it, where there is a choice."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from tests.support.rates import CALIBRATION, RATES
from zobench import cost
from zobench.cost import Rates, interval, local
from zobench.cost.seconds import floor_share
from zobench.engine.base import CONSOLIDATE_AFTER
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec


def drawing(rates: Rates, speed: float) -> Rates:
    """The rates with counter noise of so many normals per second."""
    return dataclasses.replace(
        rates, operators={name: {**operators, "fused": speed} for name, operators in rates.operators.items()}
    )


SLOW_NOISE = drawing(RATES, 1e8)
SLOW_DISK = drawing(
    Rates.of(CALIBRATION | {f"disk_{way}_bytes_per_second": 5e7 for way in ("read", "write", "both")}), 1e12
)


def cell(device: str = "cpu", **changes: Any) -> RunSpec:
    return RunSpec(**{
        "model": "OPT-1.3B", "engine": "offload", "tier": "disk", "noise": "counter", "writeback_every": "inf",
        "steps": 100, **changes,
    }).resolve(device)  # fmt: skip


def training_seconds(spec: RunSpec, rates: Rates, steps: int) -> float:
    """A step in the mean of a long run, with that interval as a user would ask for it."""
    return local.predict(spec.replace(writeback_every=steps, steps=interval.LONG_RUN), rates).step_seconds


@pytest.mark.parametrize("rates", [SLOW_DISK, SLOW_NOISE])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_interval_that_may_be_chosen_is_faster(dtype: str, rates: Rates) -> None:
    spec = cell(dtype=dtype)
    consolidation = cost.estimate(spec, rates).consolidation
    assert consolidation is not None
    allowed = interval.INTERVALS if dtype == "fp32" else (CONSOLIDATE_AFTER,)
    seconds = {steps: training_seconds(spec, rates, steps) for steps in allowed}
    assert seconds[consolidation.steps] <= interval.SAME * min(seconds.values())
    assert (
        f"written every {consolidation.steps} steps, a step takes {seconds[consolidation.steps]:.3g} s"
        in consolidation.reason
    )


def test_slow_draws_make_it_short_and_a_slow_disk_long() -> None:
    noise, disk = (cost.estimate(cell(), rates).consolidation for rates in (SLOW_NOISE, SLOW_DISK))
    assert noise is not None
    assert disk is not None
    assert noise.steps == min(interval.INTERVALS)
    assert disk.steps > 4 * noise.steps


def test_in_16_bits_at_rest_it_is_never_shorter_than_without_rates() -> None:
    """Each write-back rounds, and what is below half a unit in the last place is lost."""
    for changes in ({"dtype": "bf16"}, {"dtype": "fp32", "wire": "fp16"}, {"dtype": "fp32", "wire": "fp8"}):
        consolidation = cost.estimate(cell(**changes), SLOW_NOISE).consolidation
        assert consolidation.steps == CONSOLIDATE_AFTER


@pytest.mark.parametrize(
    "changes",
    [
        {"writeback_every": 4}, {"engine": "resident", "tier": "auto"}, {"wire": "int8"}, {"steps": 15},
        {"nodes": 2, "gpus": 2, "tier": "pageable", "parallel": "pertp"},
    ],
)  # fmt: skip
def test_where_there_is_nothing_to_choose_nothing_is_chosen(changes: dict[str, Any]) -> None:
    assert cost.estimate(cell(**changes), RATES).consolidation is None


def test_the_floor_of_a_result_counts_what_was_written() -> None:
    spec = cell(steps=40)
    plain = Result(
        spec=spec, outcome=Outcome.OK, samples={"step_seconds": [10.0] * 40}, environment=Facts(calibration=CALIBRATION)
    )
    floors = [floor_share(plain)]
    for steps in (16, 64):  # of 41 steps none is the 64th
        plan = {"steps": steps, "reason": "why"}
        floors.append(floor_share(plain.with_facts(writeback_plan=plan)))
    written = dataclasses.replace(plain, spec=spec.replace(writeback_every=16))
    assert floors == [floors[0], floor_share(written), floors[0]]


def test_the_first_of_those_that_are_equally_good_is_the_simplest() -> None:
    for seconds in itertools.permutations([1.0, 1.015, 1.5, math.inf]):
        ways = dict(enumerate(seconds))
        best = interval.simplest(ways, ways.__getitem__)
        assert ways[best] <= interval.SAME
        assert all(ways[other] > interval.SAME for other in range(best))
