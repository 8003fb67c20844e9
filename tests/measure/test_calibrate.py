"""Calibration and doctor: sane rates in little time, and a reason for each one that is missing."""

import math
import os
import time
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from tests.support.processes import listeners, side_by_side
from zobench.machine import accelerator
from zobench.machine.directio import DirectFile
from zobench.measure import calibrate, doctor


def test_rates_of_the_cpu(tmp_path):
    calibrate.calibrate("cpu", 0.01, tmp_path)  # compiles what is measured, 25 s of a slow core
    began = time.process_time()
    rates = calibrate.calibrate("cpu", 0.5, tmp_path)
    assert time.process_time() - began < 20  # half a second for each rate, on a busy machine too
    assert list(tmp_path.iterdir()) == []
    assert all(1e8 < rate < 1e15 for rate in rates["matmul_flops_per_second"].values())
    assert rates["copy_bytes_per_second"] > 1e8
    assert rates["touch_bytes_per_second"] > 1e7
    assert list(rates["matmul_flops_per_second"]) == ["fp32", "fp16", "bf16"]
    assert list(rates["noise_elements_per_second"]) == ["torch", "counter", "fused"]
    assert all(rate > 1e6 for rate in rates["noise_elements_per_second"].values())
    assert rates["disk_both_bytes_per_second"] > 0
    assert list(rates["operators_per_second"]) == ["fp32", "fp16", "bf16"]
    for rates_of_dtype in rates["operators_per_second"].values():
        assert set(rates_of_dtype) == {"attention", "passes", "losses", "normals", "fused"}
        assert all(0 < rate < math.inf for rate in rates_of_dtype.values())
    assert rates["between_ranks_bytes_per_second"] > 1e6
    assert rates["link_up_bytes_per_second"] is None
    assert "link: none, because the device is the CPU" in rates["notes"]


def test_an_operator_of_a_gpu_is_timed_without_its_launch_and_the_wait_for_it(monkeypatch):
    """On an H100 attention of 7 us was timed as 36: a floor from that rate lay above what a long row's step took."""
    launch, work, wake = 5e-6, 7e-6, 20e-6
    clock = SimpleNamespace(now=0.0, idle=0.0)

    def action():
        clock.now += launch
        clock.idle = max(clock.idle, clock.now) + work

    def synchronize():
        clock.now = max(clock.now, clock.idle) + wake

    monkeypatch.setattr(calibrate, "Accelerator", lambda device: SimpleNamespace(synchronize=synchronize))
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    for budget in (0.0, 0.01):
        assert calibrate.best_seconds("cuda:0", action, budget) == pytest.approx(work, rel=0.1)


def test_no_space_is_a_reason(tmp_path):
    notes = []
    rates = calibrate.disk_rates(tmp_path, 0.1, notes, nbytes=10**15)
    assert set(rates.values()) == {None}
    assert notes[0].startswith("disk: not measured (the disk tier needs 1000000.00 GB")


def test_a_failing_disk_thread_is_not_lost(tmp_path, monkeypatch):
    def broken(self, buffer, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DirectFile, "read_into", broken)
    notes = []
    assert calibrate.disk_rates(tmp_path, 0.1, notes, nbytes=2**23)["disk_read_bytes_per_second"] is None
    assert notes == ["disk: not measured (Input/output error)"]


def test_report_names_a_remedy_for_what_is_missing(tmp_path, monkeypatch, fake_nvml):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    lines = doctor.report("cpu", tmp_path, 0.3, fake_nvml(init_error="Driver Not Loaded"))
    by_item = {line.item: line for line in lines}
    assert {line.status for line in lines} <= {"ok", "missing", "info"}
    assert by_item["NVML"].status == "missing"
    assert "driver not loaded" in by_item["NVML"].value
    assert by_item["pyarrow"].value == "needed for results as Parquet: pip install 'zobench[report]'"
    assert by_item["noise fused"].value.endswith(" G elements/s")
    assert by_item["disk read"].value.endswith("GB/s")
    assert by_item["between ranks"].value.endswith("GB/s")


def test_two_ranks_have_each_others_half_and_listen_on_loopback_alone() -> None:
    store, slots = HashStore(), {rank: torch.full((10,), rank, dtype=torch.uint8) for rank in range(2)}
    listened: list[set[str]] = []
    before = listeners({os.getpid()})

    def rank(number: int) -> None:
        group = calibrate._gloo(store, number)
        calibrate._exchange_halves(group, slots[number])
        listened.append(listeners({os.getpid()}) - before)
        calibrate._exchange_halves(group, slots[number])  # so that neither is gone while the other looks

    side_by_side(rank, range(2))
    assert [slots[number].tolist() for number in range(2)] == [[0] * 5 + [1] * 5] * 2
    assert len(listened) == 2
    assert set().union(*listened) <= {"127.0.0.1"}


def test_without_peers_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(accelerator, "count", lambda: 1)
    assert calibrate.between_rate("cuda:0", notes) is None
    assert notes == ["between ranks: none, because one GPU is visible"]
