"""Runs the checks, each in a process of its own: one that dies, hangs or breaks the device is one that failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench.execute.process import child_environment
from zobench.machine.memory import disk_folder
from zobench.machine.processes import end_group, end_with, ended_by
from zobench.machine.texts import first_line, last_line
from zobench.measure.environment import environment
from zobench.runspec import check_choice
from zobench.runspec.registry import resolve
from zobench.selftest import NEEDS_CUDA, Check, CheckSettings, Finding, SelftestVerdict, Status, absent

PATIENCE = 180.0
"""Seconds over twice its share that a check gets before it counts as hung: imports and compilers take a while."""


CHECKS = (
    Check("kernels", ["kernel bits"], 0.1, "zobench.selftest.bits:run"),
    Check("offload", ["offload = resident"], 0.1, "zobench.selftest.engines:offloading"),
    Check("devices", ["device = CPU"], 0.05, "zobench.selftest.engines:devices", needs_cuda=True),
    Check("races", ["late copies"], 0.1, "zobench.selftest.engines:races"),
    Check("memory", ["peak = ledger"], 0.1, "zobench.selftest.engines:memory", needs_cuda=True),
    Check("speed", ["main table", "link", "overlap"], 0.5, "zobench.selftest.speed:run"),
)
"""Every check, in order. The shares leave some time for the start of each."""


def chosen(names: Sequence[str]) -> list[Check]:
    """The checks of these names, in order; all if there are none. Raises ``ValueError`` for an unknown one."""
    checks = [check.name for check in CHECKS]
    for name in names:
        check_choice("--only", name, checks)
    return [check for check in CHECKS if not names or check.name in names]


def selftest(
    device: str, seconds: float, checks: Sequence[Check], changes: Mapping[str, Any] | None = None,
    disk_dir: Path | None = None, begin: Callable[[Check], None] = lambda check: None,
) -> SelftestVerdict:  # fmt: skip
    """Runs ``checks`` on ``device`` ("cpu" or "cuda:N") in about ``seconds`` seconds; calls ``begin`` before each."""
    began, findings = time.monotonic(), []
    for check in checks:
        begin(check)
        settings = CheckSettings(device=device, seconds=seconds * check.share, changes=changes or {}, disk_dir=disk_dir)
        findings += isolated(check, settings)
    return SelftestVerdict(
        device=device, machine=environment(device), findings=findings, seconds=time.monotonic() - began
    )


def isolated(check: Check, settings: CheckSettings) -> list[Finding]:
    """Returns the findings of ``check`` in a process of its own."""
    if check.needs_cuda and not settings.on_cuda:
        return absent(check.findings, NEEDS_CUDA)
    request = {
        "device": settings.device, "seconds": settings.seconds, "changes": dict(settings.changes),
        "disk_dir": str(settings.disk_dir.resolve()) if settings.disk_dir else None,
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "zobench.selftest.run", check.name, json.dumps(request), str(os.getpid())]
    variables = {**child_environment(), "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}  # one for all products
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=variables, stdout=answer, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(2 * settings.seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            return _died(check, f"took longer than {2 * settings.seconds + PATIENCE:.0f} s")
        finally:
            end_group(process)
        if process.returncode == 0:
            answer.seek(0)
            return [
                Finding(**{**row, "status": Status(row["status"])})
                for row in json.loads(answer.read().splitlines()[-1])
            ]
        errors.seek(0)
        code = process.returncode
        ending = f"ended by {ended_by(code)}" if code < 0 else f"ended with exit code {code}"
        return _died(check, ": ".join(filter(None, (ending, last_line(errors.read())))))


def _died(check: Check, why: str) -> list[Finding]:
    first, *others = check.findings
    return [Finding(first, Status.FAILED, why), *absent(others, f"{first} failed")]


def performed(check: Check, settings: CheckSettings) -> list[Finding]:
    """The findings of ``check`` in this process; an error is a failed check, with the error's line."""
    try:
        findings: list[Finding] = resolve(check.run)(settings)
        return findings
    except Exception as error:  # whatever it is, it is what this check found
        return _died(check, f"{type(error).__name__}: {first_line(error)}")


def main() -> None:
    """``python -m zobench.selftest.run CHECK PLACE PARENT``: the findings of a check, as JSON in the last line; ends
    with the process PARENT."""
    end_with(int(sys.argv[3]))
    (check,) = chosen([sys.argv[1]])
    request = json.loads(sys.argv[2])
    findings = performed(check, CheckSettings(**request | {"disk_dir": disk_folder(request.get("disk_dir"))}))
    rows = [{"name": f.name, "status": f.status, "told": f.told, "numbers": dict(f.numbers)} for f in findings]
    print("\n" + json.dumps(rows))


if __name__ == "__main__":
    main()
