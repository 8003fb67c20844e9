"""The machine's rates: measured once, kept for the next command, never kept or planned with from a busy time."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import CALIBRATION, RATES
from tests.support.submissions import MACHINE
from zobench import cost
from zobench.execute import rates
from zobench.execute.process import ask


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this user has kept before is none of these tests' business."""
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measured(monkeypatch: pytest.MonkeyPatch, *times: dict[str, Any]) -> list[dict[str, Any]]:
    """Makes each measurement of the machine the next of ``times``; returns those that are left."""
    left = list(times)
    monkeypatch.setattr(rates, "ask", lambda *_: json.dumps(left.pop(0)))
    return left


BEFORE_COUNTER_NOISE = json.dumps(CALIBRATION | {"noise_elements_per_second": 3e8})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        pytest.param("[" * 100_000, id="deep"),
        "é",
        '{"copy_bytes_per_second": null}',
        pytest.param(BEFORE_COUNTER_NOISE, id="old"),
    ],
)
def test_rates_that_cannot_be_used_are_measured_again(tmp_path, monkeypatch, text) -> None:
    path = rates.kept_in(tmp_path, MACHINE, "cpu")
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    monkeypatch.setattr(rates, "ask", lambda *_: json.dumps(CALIBRATION))
    assert rates.calibration(tmp_path, MACHINE, "cpu", None) == CALIBRATION
    assert json.loads(path.read_text()) == CALIBRATION


def test_rates_that_cannot_be_kept_are_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    monkeypatch.setattr(rates, "ask", lambda *_: json.dumps(CALIBRATION))
    served = rates.calibration(tmp_path / "results", MACHINE, "cpu", None)
    assert served["notes"][0].startswith("not kept, because ")
    assert cost.Rates.of(served) == RATES


@pytest.mark.parametrize(("others", "kept"), [(0.1, True), (None, True), (2.5, False)])
def test_rates_of_a_busy_machine_serve_once(tmp_path, monkeypatch, others, kept) -> None:
    monkeypatch.setattr(rates, "ask", lambda *_: json.dumps(CALIBRATION | {"other_cpu_cores": others}))
    served = rates.calibration(tmp_path, MACHINE, "cpu", None)
    assert cost.Rates.of(served) == RATES
    assert rates.kept_in(tmp_path, MACHINE, "cpu").exists() == kept
    assert any("kept 2.5 cores busy" in note for note in served["notes"]) != kept


def test_a_measurement_that_fails_is_one_line() -> None:
    with pytest.raises(OSError, match=r"^measuring this machine failed: ValueError: too slow$"):
        ask("raise ValueError('too slow')")
    with pytest.raises(OSError, match=r"^measuring this machine failed: exit code 3$"):
        ask("raise SystemExit(3)")


def test_a_user_measures_a_machine_once_for_all_results_folders(tmp_path, monkeypatch) -> None:
    left = measured(monkeypatch, CALIBRATION, CALIBRATION, CALIBRATION)
    for folder in ("one", "two", "two"):
        assert rates.calibration(tmp_path / folder, MACHINE, "cpu", tmp_path) == CALIBRATION
        assert rates.kept_in(tmp_path / folder, MACHINE, "cpu").exists()
    assert len(left) == 2
    rates.calibration(tmp_path / "two", MACHINE, "cuda:0", tmp_path)
    assert len(left) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", str(int(os.environ.get("OMP_NUM_THREADS", "1")) + 1))  # another rate
    rates.calibration(tmp_path / "two", MACHINE, "cpu", tmp_path)
    assert not left


def test_the_rates_in_a_results_folder_are_of_the_disk_that_cells_use(tmp_path, monkeypatch) -> None:
    """Those with another ``--disk-dir`` or ``ZOBENCH_DISK_DIR`` are measured there; a folder keeps both."""
    other = CALIBRATION | {"disk_read_bytes_per_second": 1e8}
    left = measured(monkeypatch, CALIBRATION, other)
    assert rates.calibration(tmp_path, MACHINE, "cpu", tmp_path) == CALIBRATION
    assert not rates.are_known(tmp_path, MACHINE, "cpu", Path("/proc"))
    assert rates.calibration(tmp_path, MACHINE, "cpu", Path("/proc")) == other
    assert rates.calibration(tmp_path, MACHINE, "cpu", tmp_path) == CALIBRATION
    monkeypatch.setenv("ZOBENCH_DISK_DIR", "/proc")
    assert rates.are_known(tmp_path, MACHINE, "cpu", None)
    assert rates.calibration(tmp_path, MACHINE, "cpu", None) == other
    assert not left


SLOW = CALIBRATION | {"matmul_flops_per_second": {"fp32": 2e10, "fp16": 1e10, "bf16": 2e11}}
OTHER_SOFTWARE = "cpu-2c-000000"


def test_a_busy_machine_is_planned_with_the_rates_of_an_idle_time(tmp_path, monkeypatch) -> None:
    measured(monkeypatch, CALIBRATION, SLOW | {"other_cpu_cores": 1.7}, SLOW | {"other_cpu_cores": 1.7})
    rates.calibration(tmp_path / "before", OTHER_SOFTWARE, "cpu", tmp_path)
    served = rates.calibration(tmp_path / "now", MACHINE, "cpu", tmp_path)
    assert served == CALIBRATION | {"notes": served["notes"]}
    assert served["notes"] == [
        "not kept, because other processes kept 1.7 cores busy; planned with those of an idle time"
    ]
    assert not rates.kept_in(tmp_path / "now", MACHINE, "cpu").exists()


def test_a_rate_far_below_the_last_one_is_measured_again_and_then_said(tmp_path, monkeypatch) -> None:
    left = measured(monkeypatch, CALIBRATION, SLOW, CALIBRATION, SLOW, SLOW)
    rates.calibration(tmp_path / "before", OTHER_SOFTWARE, "cpu", tmp_path)
    assert rates.calibration(tmp_path / "chance", MACHINE, "cpu", tmp_path) == CALIBRATION
    again = rates.calibration(tmp_path / "again", "cpu-2c-111111", "cpu", tmp_path)
    assert again["notes"] == ["slower than before, measured twice: matmul fp32; is the machine throttled?"]
    assert again["matmul_flops_per_second"] == SLOW["matmul_flops_per_second"]
    assert not left


def test_rates_of_a_busy_machine_serve_the_next_commands_for_a_while(tmp_path, monkeypatch, own_cache) -> None:
    left = measured(monkeypatch, SLOW | {"other_cpu_cores": 1.7}, CALIBRATION)
    first = rates.calibration(tmp_path / "one", MACHINE, "cpu", tmp_path)
    assert rates.calibration(tmp_path / "two", MACHINE, "cpu", tmp_path) == first
    assert len(left) == 1
    [kept] = (own_cache / "busy-rates").iterdir()
    os.utime(kept, (0, time.time() - rates.BUSY_SECONDS - 1))
    assert rates.calibration(tmp_path / "two", MACHINE, "cpu", tmp_path) == CALIBRATION


def test_a_rate_is_implausible_below_a_third_of_the_earlier_one() -> None:
    now, before = {"fp32": 1.0, "bf16": 1.0}, {"fp32": 3.5, "bf16": 2.5}
    slower = rates._slower({"matmul_flops_per_second": now}, {"matmul_flops_per_second": before})
    assert slower == ["matmul fp32"]
