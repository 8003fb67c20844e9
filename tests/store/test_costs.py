"""Energy, money and time to an accuracy, as metrics: from what a run has measured, and what is said at its table."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import written
from tests.support.stores import run
from zobench.measure.sampler import HostReader, PackageEnergy
from zobench.result import Result, Round
from zobench.result.repeats import folded
from zobench.runspec import RunSpec
from zobench.runspec.registries import METRICS
from zobench.store import Store, evidence, frame

SPEC = RunSpec(model="opt-tiny", seq_len=50, batch_size=2).resolve("cpu")
OTHER = SPEC.replace(engine="offload", tier="disk")


def at(number: int, spec: RunSpec = SPEC, seconds: float = 2.0, joules: float | None = 30.0, **facts: Any) -> Result:
    """Three steps of ``seconds``, 100 tokens each, in a round."""
    made = run(spec, samples={"step_seconds": [seconds] * 3}, power={"energy_joules": joules})
    when = Round(number=number, began=float(number), place=0, cells=2, seed=0)
    return dataclasses.replace(made, round=when).with_facts(**facts)


def test_memory_of_a_process_is_nvmls_on_a_gpu_and_has_the_ratio_of_its_rounds() -> None:
    memory = METRICS.get("process_memory")

    def held(spec: RunSpec, number: int, **values: int) -> Result:
        return dataclasses.replace(at(number, spec), memory={"device_peak_bytes": 7, **values})

    assert memory.of(held(SPEC, 0)) == 7
    gpu = SPEC.replace(device="cuda:0")
    assert (memory.of(held(gpu, 0, device_process_peak_bytes=9)), memory.of(held(gpu, 0))) == (9, None)
    mine, base = (folded([held(spec, number, device_peak_bytes=size) for number in range(3)])[0]
                  for spec, size in ((SPEC, 600), (OTHER, 300)))  # fmt: skip
    known = evidence.ratio(mine, base, memory)
    assert (known.value, known.pairs) == (pytest.approx(2.0), 3)
    assert known.interval == pytest.approx((2.0, 2.0))
    assert memory.interval(mine) == pytest.approx((600, 600))


def test_memory_beside_a_papers_is_read_as_the_papers_read_it() -> None:
    memory, gpu = METRICS.get("gpu_memory"), SPEC.replace(device="cuda:0")

    def of(spec: RunSpec, **values: int) -> Result:
        return dataclasses.replace(at(0, spec), memory={"device_peak_bytes": 7, **values})

    by_nvml, by_torch = of(gpu, device_wide_peak_bytes=9), of(gpu)
    assert [memory.of(result) for result in (by_nvml, by_torch, of(SPEC, device_wide_peak_bytes=9))] == [9, 7, 7]
    assert ["Measured by NVML" in memory.remarks(result)[0] for result in (by_nvml, by_torch)] == [True, False]


def test_energy_is_of_all_tokens_and_cost_is_of_the_price_of_their_time() -> None:
    energy, cost = METRICS.get("energy_per_token"), METRICS.get("cost")
    assert energy.of(at(0)) == pytest.approx(30 / 300)
    assert (energy.of(at(0, joules=None)), cost.of(at(0))) == (None, None)
    assert cost.of(at(0, price_per_hour=3.6)) == pytest.approx(1e6 / 50 * 0.001)  # 50 tokens/s, a thousandth a second
    assert frame([at(0)])["energy_per_token_joules"][0] == pytest.approx(0.1)
    assert energy.of(at(0, warm_up_detected=2)) == pytest.approx(30 / 500)  # the counter ran during those steps as well


def test_the_time_to_an_accuracy_is_that_of_the_steps_before_it_was_first_seen() -> None:
    to, curve = METRICS.get("time_to_accuracy"), [[0, 2.0, 0.5], [2, 1.9, 0.7], [4, 1.8, 0.9], [6, 1.7, 0.8]]
    made = run(SPEC, samples={"step_seconds": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}, evaluation={"curve": curve})

    def reached(target: float | None, **changes: Any) -> float | None:
        return to.of(dataclasses.replace(made, **changes).with_facts(target_accuracy=target))

    assert [reached(target) for target in (None, 0.7, 0.75, 0.9, 0.95)] == [None, 3, 10, 10, None]
    assert reached(0.4) is None  # no step has led to what the start had
    assert reached(0.9, samples={"step_seconds": [1.0, None, 3.0, 4.0]}) is None  # a step that nobody timed
    assert reached(0.9, samples={"step_seconds": [1.0]}) is None
    other = {"curve": [[0, 2.0, None], [2, 1.9, 7.0]], "scores": ["perplexity"]}
    assert reached(0.9, evaluation=other) is None  # a perplexity is no accuracy, however large


def test_first_steps_that_are_slow_become_warm_up() -> None:
    made = run(SPEC, samples={"step_seconds": [5.0, 3.0, *[1.0] * 8], "loss": list(map(float, range(10)))})
    made = dataclasses.replace(made, warmup={"step_seconds": [9.0], "loss": [7.0]})
    settled = evidence.settled(made)
    assert (settled.samples["loss"], settled.warmup["loss"]) == (list(map(float, range(2, 10))), [7.0, 0.0, 1.0])
    assert settled.warmup["step_seconds"] == [9.0, 5.0, 3.0]
    assert settled.environment.warm_up_detected == 2
    assert evidence.settled(dataclasses.replace(made, samples={"step_seconds": [5.0, 1.0]})).warmup == made.warmup


TABLE = """
title = "Costs"
baseline = "resident"
columns = [
  { header = "resident", where = { engine = "resident" } },
  { header = "offload", where = { engine = "offload" } },
]
metrics = [{ name = "cost", header = "Cost", format = ".2f", better = "lower" }]
[where]
seq_len = [50]
batch_size = [2]
[rows.product]
model = ["opt-tiny"]
"""


def test_a_table_is_told_the_price_of_an_hour(tmp_path, zobench, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("tables/mine.toml"), TABLE)
    for number in range(6):
        Store(Path("results")).save(at(number))
        Store(Path("results")).save(at(number, OTHER, seconds=3.0))
    code, out, _ = zobench("table", "mine", "--price", "3.6")
    assert code == 0
    assert "20.00" in out
    assert "30.00 (x1.5000, 1.5000 to 1.5000)" in out
    assert "no price of an hour was named (--price)" in " ".join(zobench("table", "mine")[1].split())
    message = "zobench: `price > 0` must hold, but got 0; name the price of an hour, as 2.49\n"
    assert zobench("table", "mine", "--price", "0")[2] == message


def package(root: Path, name: str, count: int, whole: int = 1000, *, zone: str = "package-0") -> Path:
    written(root / name / "name", f"{zone}\n")
    written(root / name / "max_energy_range_uj", f"{whole}\n")
    return written(root / name / "energy_uj", f"{count}\n")


def test_packages_are_added_up_over_the_end_of_their_counters_and_parts_of_them_are_not(tmp_path: Path) -> None:
    first, two = package(tmp_path, "intel-rapl:0", 900), package(tmp_path, "intel-rapl:1", 100)
    package(tmp_path, "intel-rapl:0:0", 500, zone="core")
    whole = package(tmp_path, "intel-rapl:2", 100, zone="psys")  # of a laptop: the packages and all else
    energy = PackageEnergy(str(tmp_path))
    assert (energy.read(), energy.notes) == (0.0, [])
    first.write_text("950")
    two.write_text("130")
    whole.write_text("300")
    assert energy.read() == pytest.approx(80e-6)
    first.write_text("10")  # past the end of its counter: 50 and 10 more
    assert energy.read() == pytest.approx(140e-6)
    reader = HostReader(os.getpid(), powercap=str(tmp_path))
    two.write_text("230")
    assert reader.read()["energy_joules"] == pytest.approx(100e-6)
