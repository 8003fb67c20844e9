"""The selftest on the null GPU: every check that needs a GPU runs, and fails on the fault that it is there for."""

import json
import os
import subprocess
import textwrap

import pytest

from tests.nullcuda import build

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]


def findings(checks, planted="", **settings):
    """name -> (status, what is told) of the checks' findings on the null GPU, each in a process of its own; ``planted``
    is run first there."""
    program = textwrap.dedent(planted) + textwrap.dedent("""
    import json, sys
    from zobench.selftest import bits, engines, run
    bits.SIZES, bits.STARTS, engines.STEPS = (5, 4096), (0, 3), 3
    engines.FORMS = {name: engines.FORMS[name] for name in ("torch noise", "linear layers", "tiles")}
    run.main()
    """)
    found = {}
    for check in checks:
        place = {"device": "cuda:0", "seconds": 0.0}
        done = subprocess.run(
            [build.interpreter(), "-c", program, check, json.dumps(place)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
            capture_output=True,
            text=True,
            timeout=500,
        )
        if done.returncode:
            return {check: ("died", done.stderr.splitlines()[-1])}
        found |= {row["name"]: (row["status"], row["told"]) for row in json.loads(done.stdout.splitlines()[-1])}
    return found


def test_the_checks_of_the_numbers_are_ok():
    found = findings(["kernels", "offload", "devices", "races"])
    assert {name: status for name, (status, _) in found.items()} == {
        "kernel bits": "ok", "offload = resident": "ok", "device = CPU": "ok", "late copies": "ok",
    }  # fmt: skip
    assert found["device = CPU"][1].startswith("losses differ from the CPU's by 0.0e+00 of them at most")


MISSING_WAIT = """
    from zobench.engine.transfers.lanes import CudaLanes
    submit = CudaLanes.submit
    CudaLanes.submit = lambda self, op, action, after: submit(self, op, action, () if op.kind == {kind!r} else after)
    """
COLLECTED = """
    from tests.nullcuda.counts import runtime
    runtime().nullcuda_collect_races()
    """


@pytest.mark.parametrize("kind", ["upload", "compute"])
def test_a_missing_wait_gives_wrong_numbers(kind):
    status, told = findings(["races"], COLLECTED + MISSING_WAIT.format(kind=kind))["late copies"]
    assert status == "failed", told


def test_an_offload_that_waits_for_no_computation_ends_the_check():
    """No number differs here, where a computation is done when it is issued; the runtime knows better."""
    status, told = findings(["races"], MISSING_WAIT.format(kind="offload"))["races"]
    assert (status, told.partition(":")[0]) == ("died", "nullcuda")


LEAK = """
    from zobench.engine import build
    make, leaked = build.slot_maker, []
    def leaks(config):
        new = make(config)
        def slot(nbytes):
            if not leaked and config.device != "meta":
                leaked.append(new(nbytes // config.slots))
            return new(nbytes)
        return slot
    build.slot_maker = leaks
    """


def test_the_peak_is_the_ledgers_and_a_slot_that_leaks_is_found():
    status, told = findings(["memory"], NULLCUDA_VALUES="0")["peak = ledger"]
    assert status == "ok", told
    status, told = findings(["memory"], LEAK, NULLCUDA_VALUES="0")["peak = ledger"]
    assert status == "failed", told
    assert told.endswith(": more than half a slot of 14.2 MB apart")
