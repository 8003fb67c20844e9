"""The selftest: right where zobench is, and each check fails on the fault that it is there for."""

import json
import os
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.support.rates import estimate
from zobench import RunSpec
from zobench.engine.transfers.lanes import ThreadLanes
from zobench.engine.weights.tiers import HostTier
from zobench.kernels import cpu
from zobench.machine import texts
from zobench.result import Facts, Outcome, Result
from zobench.selftest import CheckSettings, Finding, SelftestVerdict, Status, bits, engines, run, speed
from zobench.session import matrices
from zobench.session.machine import LocalMachine

HERE = CheckSettings(device="cpu", seconds=0.0)
FACTS = Facts(
    description="a machine",
    versions={"zobench": "0.2.0", "torch": "2.13.0", "python": "3.11.7"},
    other={"cuda": None, "gpu": None},
)


@pytest.fixture
def few_forms(monkeypatch):
    forms = {name: engines.FORMS[name] for name in ("torch noise", "linear layers", "tiles")}
    monkeypatch.setattr(engines, "FORMS", forms)


def test_the_kernels_have_the_references_bits(monkeypatch):
    monkeypatch.setattr(bits, "SIZES", (5, 4096))
    (finding,) = bits.run(HERE)
    assert (finding.status, finding.numbers["seeds"]) == (Status.OK, 1)
    assert finding.numbers["elements"] > 80_000


@pytest.mark.parametrize(
    ("function", "written", "dtype", "named"),
    [("advance", 0, torch.float32, "updated weights"), ("advance", 4, torch.bfloat16, "W + eps z")],
)
def test_one_wrong_bit_of_one_number_is_found(function, written, dtype, named, monkeypatch):
    """``written``: the place among its arguments of what the function writes."""
    plain = getattr(cpu, function)
    monkeypatch.setattr(bits, "SIZES", (4096,))

    def wrong(*arguments):
        plain(*arguments)
        out = arguments[written]
        if out is not None and out.dtype == dtype and out.numel() == 4096:
            out.view(-1).view(torch.int32 if dtype == torch.float32 else torch.int16)[777] ^= 1

    monkeypatch.setattr(cpu, function, wrong)
    (finding,) = bits.run(HERE)
    assert finding.status is Status.FAILED
    assert finding.told.startswith(f"{named} of 4096 elements from 0"), finding.told
    assert ": 1 of 4096 differ, first number 777: " in finding.told


@pytest.mark.usefixtures("few_forms")
def test_offloaded_runs_have_the_resident_models_numbers_and_a_wrong_block_is_found(monkeypatch):
    (finding,) = engines.offloading(HERE)
    assert (finding.status, finding.numbers) == (Status.OK, {"runs": 6})
    upload = HostTier.upload
    monkeypatch.setattr(HostTier, "upload", lambda tier, block, *at: upload(tier, 0 if block == 1 else block, *at))
    (finding,) = engines.offloading(HERE)
    assert finding.status is Status.FAILED
    assert finding.told.startswith("torch noise, fp32: the loss of step 1 is ")


@pytest.mark.parametrize("kind", ["upload", "compute"])
def test_a_missing_wait_is_found(kind, monkeypatch):
    """Operations of this kind do not wait for those before them: a copy that is late comes too late. Offloads cannot
    run before a computation on a CPU, see tests/nullcuda."""
    submit = ThreadLanes.submit
    monkeypatch.setattr(
        ThreadLanes,
        "submit",
        lambda self, op, action, after: submit(self, op, action, () if op.kind == kind else after),
    )
    (check,) = run.chosen(["races"])
    (finding,) = run.performed(check, HERE)
    assert finding.status is Status.FAILED, finding.told


def test_with_every_wait_late_lanes_change_no_bit(monkeypatch):
    monkeypatch.setattr(engines, "LATE_SECONDS", 5e-4)
    (finding,) = engines.races(HERE)
    assert (finding.status, finding.numbers) == (Status.OK, {"runs": 9})


def test_what_two_devices_may_differ_by_is_what_the_rounding_of_a_loss_allows():
    right = engines.trained("cpu", noise="counter")
    assert engines.differs(right, right) == ""
    loss, g = right.losses[0], right.gradients[0]
    near = right._replace(losses=[loss * (1 + 1e-6), *right.losses[1:]], gradients=[g + 1e-4, *right.gradients[1:]])
    assert engines.differs(near, right, engines.ROUNDING) == ""
    assert engines.differs(near, right).startswith("the loss of step 1 is ")
    sign = right._replace(gradients=[-g, *right.gradients[1:]])
    assert engines.differs(sign, right, engines.ROUNDING) == f"g of step 1 is {-g!r}, and {g!r} is right"
    start = engines.trained("cpu", noise="counter", placement="resident").weights
    name = next(name for name in start if name.endswith("fc1.weight"))
    still = right._replace(weights={**right.weights, name: right.weights[name] + 1e-3})
    assert engines.differs(still, right, engines.ROUNDING) == f"{name} differs by up to 0.001"
    nothing = right._replace(losses=[float("nan")] * engines.STEPS)
    assert engines.differs(nothing, right, engines.ROUNDING).startswith("the loss of step 1 is nan")


def test_a_device_that_computes_no_number_is_a_finding_that_json_holds(monkeypatch):
    right = engines.trained("cpu", noise="counter")
    broken = right._replace(losses=[*right.losses[:-1], float("nan")])
    monkeypatch.setattr(engines, "trained", lambda device, **changes: broken if device == "cuda:0" else right)
    (finding,) = engines.devices(replace(HERE, device="cuda:0"))
    assert (finding.status, finding.numbers["loss_difference"]) == (Status.FAILED, None)


# --- speed ------------------------------------------------------------------------------------------------------------


def test_overlap_is_what_the_shorter_hides_under_the_longer():
    hidden = speed.overlap({"transfer": 1.0, "compute": 3.0, "whole": 3.2})
    assert (hidden.status, hidden.numbers["hidden"]) == (Status.OK, pytest.approx(0.8))
    serial = speed.overlap({"transfer": 1.0, "compute": 3.0, "whole": 4.0})
    assert (serial.status, serial.numbers["hidden"]) == (Status.FAILED, 0.0)
    assert speed.overlap({"transfer": 0.01, "compute": 3.0, "whole": 3.0}).status is Status.ABSENT


@pytest.mark.parametrize(
    ("step", "peak", "message"),
    [(0.9, 95, ""), (0.3, 95, ": the step is more than 3 times off"), (1.0, 126, ": the peak is above 1.25 times")],
)
def test_a_cell_is_judged_by_its_prediction(step, peak, message):
    spec = RunSpec(model="OPT-125M", dtype="fp16", engine="offload", steps=1).resolve("cuda:0")
    result = Result(
        spec=spec, outcome=Outcome.OK, samples={"step_seconds": [step]}, memory={"device_peak_bytes": peak * 10**6}
    )
    guess = estimate(9.0, device_bytes=10**8, step_seconds=1.0)
    finding = speed.against_prediction(result, guess)
    assert finding.status is (Status.FAILED if message else Status.OK)
    assert finding.told.endswith(f"{peak} MB of device memory, predicted 100{message}")


# --- processes, page, command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo 'CUDA error' >&2; kill -ABRT $$", "ended by SIGABRT: CUDA error"), ("sleep 60", "took longer than 0 s")],
)
def test_a_check_whose_process_dies_or_hangs_is_failed_and_the_rest_goes_on(script, message, monkeypatch, tmp_path):
    program = tmp_path / "python"
    good = json.dumps([{"name": "late copies", "status": "ok", "told": "fine", "numbers": {}}])
    program.write_text(f"#!/bin/sh\ncase $* in *races*) echo '{good}'; exit 0;; esac\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(run, "sys", SimpleNamespace(executable=str(program)))
    monkeypatch.setattr(run, "PATIENCE", 0.4)
    monkeypatch.setattr(run, "environment", lambda device: FACTS)
    begun = []
    verdict = run.selftest("cpu", 0.0, run.chosen(["offload", "races"]), begin=lambda check: begun.append(check.name))
    assert [(finding.name, finding.status, finding.told) for finding in verdict.findings] == [
        ("offload = resident", Status.FAILED, message),
        ("late copies", Status.OK, "fine"),
    ]
    assert (verdict.failed, begun) == (True, ["offload", "races"])


def test_the_page_and_the_json_say_what_was_found_and_of_the_machine_what_may_be_sent():
    said = "OSError: [Errno 28] No space: 5 GB/s of 1/2"
    findings = [Finding("kernel bits", Status.FAILED, said, {"seeds": 1}), Finding("link", Status.ABSENT, "no GPU")]
    gpu = {"name": "NVIDIA H100", "uuid": "GPU-8d3b1f0a"}
    machine = replace(FACTS, notes=["read /home/mary/nvml.so"], gpu=gpu)
    verdict = SelftestVerdict(device="cpu", machine=machine, findings=findings, seconds=90.0)
    assert verdict.page() == (
        "a machine; device cpu\nzobench 0.2.0, torch 2.13.0, Python 3.11.7\n\n"
        f"failed    kernel bits  {said}\nnot run   link         no GPU\n\n"
        "0 ok, 1 failed, 1 not run, in 1.5 minutes"
    )
    document = verdict.to_dict()
    assert (document["schema_version"], document["verdict"], document["device"]) == (1, "failed", "cpu")
    assert document["findings"][0] == {"name": "kernel bits", "status": "failed", "told": said, "numbers": {"seeds": 1}}
    assert document["machine"] == {"versions": FACTS.versions, "cuda": None, "gpu": {"name": "NVIDIA H100"}}


def test_the_command_prints_the_page_writes_the_json_and_ends_in_1_if_a_check_failed(tmp_path, monkeypatch, zobench):
    """One check in its own process, as a user runs it; those that need a GPU say so."""
    file = tmp_path / "selftest.json"
    arguments = ["selftest", "--device=cpu", "--minutes=0.001", "--only=kernels", "--only=memory", f"--json={file}"]
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.01)
    code, page, err = zobench(*arguments)
    assert code == 0
    assert "\nchecking kernels for " in err
    assert "\nok        kernel bits    1.0 M elements of noise" in page
    assert "\nnot run   peak = ledger  needs a CUDA device\n" in page
    document = json.loads(file.read_text())
    assert [finding["status"] for finding in document["findings"]] == ["ok", "not run"]
    assert os.uname().nodename not in file.read_text() or len(os.uname().nodename) < 3
    monkeypatch.setattr(run, "isolated", lambda check, place: [Finding(check.name, Status.FAILED, "wrong")])
    assert zobench(*arguments[:-1])[0] == 1


# --- a sweep that begins with it --------------------------------------------------------------------------------------


def test_a_matrix_can_begin_with_the_selftest_once_for_a_machine_that_passes(monkeypatch, tmp_path, zobench):
    calibration = {"notes": []}
    happened, outcome = [], [Status.FAILED, Status.OK]

    def tested(device, seconds, checks, disk_dir=None):
        happened.append((device, seconds))
        findings = [Finding("kernel bits", outcome[min(len(happened) // 2, 1)], "what was found")]
        return SelftestVerdict(device=device, machine=FACTS, findings=findings, seconds=1.0)

    def ran(*_, whole):
        happened.append("cells")
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "selftest", tested)
    monkeypatch.setattr(matrices.MatrixSweep, "_run", ran)
    monkeypatch.setattr(LocalMachine, "rates", calibration)
    monkeypatch.setattr(LocalMachine, "plan", lambda *_: SimpleNamespace(steps=[], rates=calibration))
    file = tmp_path / "mine.toml"
    file.write_text('selftest = "90s"\n[base]\nmodel = "opt-tiny"\n')
    words = ["sweep", str(file), "--device=cpu", f"--results={tmp_path / 'results'}"]
    for times in range(3):
        said = zobench(*words)[2]
        assert ("what was found" in said) == (times < 2)
    assert "selftest: ok before, see " in said
    assert happened == [("cpu", 90.0), "cells", ("cpu", 90.0), "cells", "cells"]
    (kept,) = (tmp_path / "results" / ".selftest").iterdir()
    assert json.loads(kept.read_text())["verdict"] == "ok"
    kept.write_text("{")  # torn
    said = zobench(*words)[2]
    assert happened[-2:] == [("cpu", 90.0), "cells"]
    assert f"not read: {kept} (JSONDecodeError); the selftest runs again" in said
