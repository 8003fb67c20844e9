"""The script that sets predictions beside a CPU's own cells: its order, its errors, and that it goes on."""

from pathlib import Path

import pytest

from tests.support.rates import RATES
from tools import cpu_cells
from zobench.cost import local
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store

FACTOR = {"opt-tiny": 2.0, "opt-mini": 1.5}


def slow(spec: RunSpec) -> Result:
    """A machine on which each model takes so many times what the rates say, in the third round ten times that."""
    seconds = FACTOR[spec.model] * local.predict(spec, RATES).step_seconds * (10 if spec.seed == 2 else 1)
    peak = 2 * local.predict(spec, RATES).device_bytes
    environment = Facts(machine="cpu-2c-4f2a91")
    samples, memory = {"step_seconds": [seconds] * spec.steps}, {"device_peak_bytes": peak}
    return Result(spec=spec, outcome=Outcome.OK, environment=environment, samples=samples, memory=memory)


def test_cells_are_measured_in_rounds_and_a_second_start_goes_on(tmp_path: Path) -> None:
    specs, store, ran = cpu_cells.cells(["opt-tiny", "opt-mini"], 32, 2), Store(tmp_path), list[RunSpec]()

    def run(spec: RunSpec) -> Result:
        ran.append(spec)
        if len(ran) == 5:
            raise KeyboardInterrupt
        return slow(spec)

    assert len(specs) == len({spec.hash for spec in specs}) == 2 * 2 * 3
    with pytest.raises(KeyboardInterrupt):
        cpu_cells.measure(specs, 3, store, run, lambda text: None)
    cpu_cells.measure(specs, 3, store, run, lambda text: None)
    assert [spec.seed for spec in ran] == [0] * (12 + 1) + [1] * 12 + [2] * 12
    assert ran[4:6] == [specs[4], specs[4]]
    cpu_cells.measure(specs, 3, store, run, lambda text: None)
    assert len(ran) == 37
    assert cpu_cells.missing(specs, 3, store) == []

    found = cpu_cells.rows(store.load(), RATES)
    assert len(found) == len(specs)
    for row in found:  # the median of the rounds; the other model's factor corrects it
        other = FACTOR["opt-mini" if row.spec.model == "opt-tiny" else "opt-tiny"]
        assert row.alone == pytest.approx(1 / FACTOR[row.spec.model] - 1)
        assert row.corrected == pytest.approx(other / FACTOR[row.spec.model] - 1)
        assert row.memory == pytest.approx(-0.5)
    text = cpu_cells.table(found)
    assert "rates: n 12, median 41.7 %, p90 50.0 %; 10 % and 25 %: not met" in text
    assert "learned: n 12, median 29.2 %, p90 33.3 %; 10 % and 25 %: not met" in text
    assert "memory: n 12, median 50.0 %" in text
    assert text.count("opt-tiny") == text.count("opt-mini") == 6
