"""One result from those of a cell's ranks."""

import math
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.support.submissions import TWO_RANKS, result_of
from zobench.execute.rank import _exchanged, _send, merged
from zobench.result import Outcome


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({0: {"outcome": Outcome.FAILED, "reason": "another rank of the run is gone, or ..."},
          1: {"outcome": Outcome.OOM, "reason": "host memory ran out: x"}},
         Outcome.OOM, "rank 1: host memory ran out: x"),
        ({0: {"outcome": Outcome.FAILED, "reason": "another rank of the run is gone, or ..."},
          1: {"outcome": Outcome.FAILED, "reason": "no"}},
         Outcome.FAILED, "rank 1: no"),
        ({0: {"outcome": Outcome.FAILED, "reason": "no"}, 1: {"outcome": Outcome.OOM, "reason": "full"}},
         Outcome.OOM, "rank 1: full"),
        ({number: {"outcome": Outcome.FAILED, "reason": "no such folder"} for number in range(2)},
         Outcome.FAILED, "no such folder"),  # said by all of them, told once
        ({1: {"outcome": Outcome.CONTAMINATED, "reason": "swapped"}}, Outcome.CONTAMINATED, "rank 1: swapped"),
        ({1: {"samples": {"step_seconds": [1.0], "loss": [2.5], "projected_grad": [3.0]}}},
         Outcome.FAILED, "rank 1 has another loss than rank 0: they did not stay equal"),
        ({}, Outcome.OK, ""),
    ],
)  # fmt: skip
def test_the_first_cause_is_the_reason(changes: dict[int, Any], outcome: Outcome, reason: str) -> None:
    result = merged(TWO_RANKS, {number: result_of(number, **changes.get(number, {})) for number in range(2)})
    assert (result.outcome, result.reason) == (outcome, reason)
    if outcome is Outcome.OK:
        assert result.samples["step_seconds"] == [2.0]


def test_ranks_with_the_same_loss_that_is_not_finite_stay_equal() -> None:
    """Rank 0's is NaN where the others', which came through JSON, is None; its trace goes nowhere, and stays."""
    store, samples = HashStore(), {"step_seconds": [1.0], "loss": [math.nan], "projected_grad": [math.inf]}
    _send(store, 1, result_of(1, samples=samples))
    result = _exchanged(TWO_RANKS, store, 0, result_of(0, samples=samples, trace={"traceEvents": [1]}))
    assert (result.outcome, result.reason, result.trace) == (Outcome.OK, "", {"traceEvents": [1]})
    assert result.samples["loss"] == [None]


def test_ranks_on_the_cpus_of_one_machine_count_its_energy_once() -> None:
    """Each of them has read the counters of the whole machine; GPUs have one for each rank."""
    joules = [{"power": {"energy_joules": 10.0 + number}} for number in range(4)]
    for spec, expected in (
        (TWO_RANKS, 10.0), (TWO_RANKS.replace(gpus=4, nodes=2), 10.0 + 12.0),
        (TWO_RANKS.replace(device="cuda"), 10.0 + 11.0),
    ):  # fmt: skip
        ranks = {number: result_of(number, spec=spec, **joules[number]) for number in range(spec.gpus)}
        assert merged(spec, ranks).power["energy_joules"] == expected


def test_of_each_number_the_result_has_what_bounds_all_ranks() -> None:
    """The slowest transfers, the rank that sends most, the fullest device, its CPUs' power, nobody else's cores."""
    values: list[dict[str, Any]] = [
        {"parts": {"exchanged_bytes": [9.0, 5.0]}, "memory": {"device_peak_bytes": 10, "host_rss_peak_bytes": 3},
         "power": {"energy_joules": 1.0, "mean_power_watts": None, "own_cpu_cores": 1.0, "other_cpu_cores": 3.0}},
        {"parts": {"exchanged_bytes": [7.0, 8.0]}, "memory": {"device_peak_bytes": 20, "host_rss_peak_bytes": 2},
         "power": {"energy_joules": 2.0, "mean_power_watts": 4.0, "own_cpu_cores": 2.0, "other_cpu_cores": 2.0}},
    ]  # fmt: skip
    result = merged(TWO_RANKS, {number: result_of(number, **fields) for number, fields in enumerate(values)})
    assert result.parts == {"exchanged_bytes": [9.0, 8.0]}
    assert result.memory == {"device_peak_bytes": 20, "host_rss_peak_bytes": 2}
    power = {"energy_joules": 1.0, "mean_power_watts": None, "own_cpu_cores": 3.0, "other_cpu_cores": 1.0}
    assert result.power == power
    assert [row["device_peak_bytes"] for row in result.environment.ranks] == [10, 20]
