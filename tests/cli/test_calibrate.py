"""`zobench calibrate`: a file about this machine's device that plan and predict take, from rates given by hand; and how
near a CPU's own cells come to what such a file predicts."""

import datetime
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import published
from zobench.cost import Rates, hardware, local
from zobench.cost.hardware import measured as measured_file
from zobench.measure import calibrate as measured
from zobench.result import Outcome, Result

RATES: dict[str, Any] = {
    "matmul_flops_per_second": {"fp32": 15e12, "fp16": 60e12, "bf16": 5e10, "tf32": 15e12},
    "operators_per_second": {
        "fp32": {"attention": 6e12, "passes": 250e9, "losses": 100e9, "normals": 2e11, "fused": 1e11},
        "fp16": {"attention": 30e12, "passes": 250e9, "losses": 100e9, "normals": 1e11, "fused": 1e11},
        "bf16": {"attention": 1e10, "passes": 250e9, "losses": 100e9, "normals": 1e11, "fused": 1e11},
    },
    "copy_bytes_per_second": 250e9, "link_up_bytes_per_second": 10e9, "link_both_bytes_per_second": 15e9,
    "kernel_seconds": 7e-6, "other_cpu_cores": 0.0, "notes": [],
}  # fmt: skip


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    changed = dict(RATES)
    monkeypatch.setattr(measured, "calibrate", lambda device, seconds: changed)
    return changed


def test_a_cpus_file_says_what_was_measured_and_plans_with_it(rates: dict[str, Any], zobench: Any, cwd: Path) -> None:
    code, out, _ = zobench("calibrate", "--device", "cpu", "--out", "mine.toml")
    assert code == 0
    assert "zobench plan --model OPT-13B --gpu mine.toml" in out
    mine = hardware.load(str(cwd / "mine.toml"))
    assert mine.products("fp32") == pytest.approx(15e12, rel=1e-4)
    assert mine.products("bf16") == pytest.approx(5e10, rel=1e-4)
    assert mine.bandwidth == pytest.approx(250e9, rel=1e-4)
    assert mine.normals_per_second() == pytest.approx(2e11, rel=1e-4)
    assert mine.normals_per_second(2, counter=True) == pytest.approx(5e10, rel=1e-4)
    assert (mine.kernel, mine.fp32_attention, mine.driver) == pytest.approx((7e-6, 0.4, 0), rel=1e-4)
    assert {origin.source for key, origin in mine.origins.items() if key in hardware.PEAKS} == {"measured"}
    assert "~" in zobench("plan", "--model", "OPT-125M", "--gpu", str(cwd / "mine.toml"))[1]


def test_a_gpus_file_keeps_its_data_sheet_and_has_what_it_reaches(rates: dict[str, Any], tmp_path: Path) -> None:
    sheet, path = hardware.load("a100-40gb-pcie"), tmp_path / "own.toml"
    path.write_text(measured_file.of_gpu(sheet, rates, datetime.date(2026, 11, 22)))
    mine = hardware.load(str(path))
    assert (mine.fp16, mine.memory, mine.sms) == pytest.approx((sheet.fp16, sheet.memory, sheet.sms), rel=1e-4)
    assert mine.products("fp16") == pytest.approx(60e12, rel=1e-4)
    assert mine.pcie * mine.link_both == pytest.approx(7.5e9, rel=1e-4)
    assert mine.origins["fp16_products"].source == "measured"
    with pytest.raises(ValueError, match=r"`fp32_products` must be a share .* but 1\.85 of T4's were measured"):
        measured_file.of_gpu(hardware.load("t4"), rates, datetime.date(2026, 11, 22))


def test_rates_of_a_busy_machine_are_refused(rates: dict[str, Any], zobench: Any, cwd: Path) -> None:
    rates["other_cpu_cores"] = 1.5
    code, _, err = zobench("calibrate", "--device", "cpu", "--out", "mine.toml")
    assert code == 2
    assert "must be idle to be measured, but other processes kept 1.5 cores busy; run it again" in err
    assert not (cwd / "mine.toml").exists()
    assert "`--out` must end in .toml" in zobench("calibrate", "--out", "mine.json")[2]


def test_the_published_cells_of_a_cpu_in_32_bits_took_what_its_rates_predict() -> None:
    """Half within 13 %, nine of ten within 28 %, the hybrid's short steps the worst; attention counts as products where
    the results did not measure it. Of zobench's own steps, while nothing else ran, alone or in turns."""

    def error(result: Result) -> float:
        assert result.step_seconds
        rates = Rates.of(result.environment.calibration)
        return abs(local.predict(result.spec, rates).step_seconds / result.step_seconds - 1)

    plain = {"dtype": "fp32", "autocast": "none", "task": "none", "checkpoint": "none", "gpus": 1, "device": "cpu"}
    plain["program"] = "zobench"
    known = [shown for shown in published() if shown.outcome is Outcome.OK and shown.environment.calibration]
    quiet = [shown for shown in known if not any("cores busy" in warning for warning in shown.warnings)]
    cells = [shown for shown in quiet if all(getattr(shown.spec, name) == value for name, value in plain.items())]
    errors = sorted(map(error, cells))
    assert len(errors) >= 60
    assert statistics.median(errors) <= 0.13
    assert errors[int(0.9 * len(errors))] <= local.SHARE == 0.28
