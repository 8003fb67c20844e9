"""The selftest on the null GPU: every check that needs a GPU runs, and fails on the fault that it is there for."""

import json
import textwrap

import pytest

from tests.nullcuda import build
from tests.nullcuda.forked import python

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]


def findings(checks, planted="", **settings):
    """name -> (status, what is told) of the checks' findings on the null GPU, each in a process of its own; ``planted``
    is run first there."""
    program = textwrap.dedent(planted) + textwrap.dedent("""
    import json, os, sys
    from zobench.selftest import bits, engines, run
    bits.SIZES, bits.STARTS, engines.STEPS = (5, 4096), (0, 3), 3
    engines.FORMS = {name: engines.FORMS[name] for name in ("torch noise", "linear layers", "tiles")}
    sys.argv.append(str(os.getppid()))
    run.main()
    """)
    rows, place = {}, json.dumps({"device": "cuda:0", "seconds": 0.0})
    for check in checks:
        done = python(program, check, place, **settings)
        assert done.returncode == 0, done.stderr
        rows |= {row["name"]: (row["status"], row["told"]) for row in json.loads(done.stdout.splitlines()[-1])}
    return rows


def test_the_checks_of_the_numbers_are_ok():
    rows = findings(["kernels", "offload", "devices", "races"])
    assert {name: status for name, (status, _) in rows.items()} == {
        "kernel bits": "ok", "offload = resident": "ok", "device = CPU": "ok", "late copies": "ok",
    }  # fmt: skip
    assert rows["device = CPU"][1].startswith("losses differ from the CPU's by 0.0e+00 of them at most")


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


def test_a_slot_that_leaks_makes_the_peak_more_than_the_ledgers():
    status, reason = findings(["memory"], LEAK, NULLCUDA_VALUES="0")["peak = ledger"]
    assert status == "failed", reason
    assert reason.endswith(": more than half a slot of 14.2 MB apart")
