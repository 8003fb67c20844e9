"""The null CUDA runtime finds what is planted: a missing wait, memory that is reused too early, a gather that nobody
waited for; zobench finds its way on machines with these GPUs; the plugin holds a run to its lists: no skip that is not
listed, no listed test that passes; and every check of the selftest that needs a GPU runs, and fails on its fault."""

import json
import os
import re
import subprocess
import textwrap

import pytest

from tests.nullcuda import build, plugin
from tests.nullcuda.forked import python

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]

HEAD = """
import torch
from tests.nullcuda.counts import races, runtime
side = torch.cuda.Stream()
host = torch.ones(1 << 10).pin_memory()
"""


def run(program, **settings):
    """(output, errors, exit status) of a program on the null GPU."""
    done = python(HEAD + textwrap.dedent(program), **settings)
    return done.stdout.strip(), done.stderr, done.returncode


UPLOAD = """
    device = torch.zeros(1 << 10, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        device.copy_(host, non_blocking=True)
    result = device * 2
    print(bool((result.cpu() == 2).all()))
    """


def test_a_missing_wait_is_named_and_gives_wrong_values_or_ends_a_process_that_does_not_collect_races():
    output, errors, status = run(UPLOAD)
    assert (output, status < 0) == ("", True)
    for race in (errors, run("runtime().nullcuda_collect_races()\n" + textwrap.dedent(UPLOAD) + "print(races())")[0]):
        assert re.search(
            r"aten::mul.Tensor on stream .* reads 4096 bytes that a copy on stream .* wrote, without", race
        )
    assert race.startswith("False\n")


def test_memory_that_is_reused_without_record_stream_is_found():
    program = """
    runtime().nullcuda_collect_races()
    for recorded in (True, False):
        source = torch.full((1 << 10,), 7.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(source, non_blocking=True)
        if recorded:
            source.record_stream(side)
        del source
        other = torch.zeros(1 << 10, device="cuda")
        torch.cuda.synchronize()
        print(races() == "", bool((host == 7).all()))
    """
    assert run(program) == ("True True\nFalse False", "", 0)


def test_a_cell_whose_device_is_too_small_ends_so_and_offloaded_it_fits():
    program = """
    import json
    from zobench import RunSpec
    from zobench.execute.process import run_in_process
    fields = {"model": "OPT-350M", "dtype": "fp32", "seq_len": 64, "steps": 2, "device": "cuda", "noise": "counter"}
    for engine in ("resident", "offload"):
        result = run_in_process(RunSpec(engine=engine, **fields))
        print(result.outcome, result.reason)
    """
    output, errors, _ = run(program, NULLCUDA_GB="1", NULLCUDA_VALUES="0")
    resident, offload = output.splitlines() or [errors]
    assert resident.startswith("oom device memory ran out on cuda:0: CUDA out of memory. Tried to allocate")
    assert offload.split()[0] in ("ok", "contaminated")


# --- NCCL ------------------------------------------------------------------------------------------------------------

RANK = """
import os, sys
import torch, torch.distributed as dist
from tests.nullcuda.counts import races, runtime
runtime().nullcuda_collect_races()
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
slot = torch.zeros(4, device="cuda")
work = dist.all_gather_into_tensor(slot, slot[2 * rank : 2 * rank + 2].fill_(1), async_op=True)
other = slot * 2
work.wait()
print(races().replace(chr(10), ""), flush=True)
os._exit(0)
"""


def test_a_gather_that_nobody_waited_for_is_found(tmp_path):
    command = [build.interpreter(), "-W", "ignore", "-c", RANK]
    settings = {"OMP_NUM_THREADS": "1", "NULLCUDA_MACHINE": "2xh100", "MEETING": str(tmp_path / "meeting")}
    started = [
        subprocess.Popen(command, env={**os.environ, **settings, "RANK": rank}, text=True, stdout=subprocess.PIPE)
        for rank in "01"
    ]
    for output, _ in [process.communicate(timeout=120) for process in started]:
        assert output.startswith("aten::mul.Tensor on stream ")
        assert " reads 16 bytes that a collective on stream " in output


def test_devices_of_one_process_give_each_other_their_slices():
    """What the machine's rate between ranks is measured with."""
    program = """
    from zobench.machine import accelerator
    devices = [each.device for each in accelerator.devices()]
    slices = [torch.full((3,), 1.0 + place, device=device) for place, device in enumerate(devices)]
    slots = [torch.zeros(6, device=device) for device in devices]
    accelerator.gather(slices, slots)
    print([slot.tolist() for slot in slots])
    """
    assert run(program, NULLCUDA_MACHINE="2xh100")[0] == str([[1.0] * 3 + [2.0] * 3] * 2)


# --- machines -----------------------------------------------------------------------------------------------------


def test_without_nvml_zobench_names_the_machine_after_torchs_gpus():
    program = """
    from zobench.measure import environment
    environment.glob.glob = lambda pattern: ["/dev/nvidia0"]
    print(environment.fingerprint_without_torch().hardware["gpus"])
    """
    settings = {"NULLCUDA_MACHINE": "2xh100", "CUDA_VISIBLE_DEVICES": "1", "NULLCUDA_NVML_DENY": "nvmlInit"}
    gpu = {"name": "NULL H100 80GB", "memory_mib": 76293}
    assert run(program, **settings)[0] == str([gpu, gpu])


@pytest.mark.parametrize("machine", ["2xh100", "mig"])
def test_a_gpu_is_found_again_by_the_uuid_that_zobench_gives_it(machine):
    """By NVML, and by CUDA in the processes of a pool."""
    program = """
    from zobench.execute import plan
    from zobench.machine import accelerator
    from zobench.machine.nvml import Nvml
    uuid, device = plan.gpu_uuids()[-1], accelerator.devices()[-1]
    print(uuid, Nvml().handle(device.uuid()) is not None, Nvml().handle(uuid) is not None)
    """
    uuid, *known = run(program, NULLCUDA_MACHINE=machine)[0].split()
    assert known == ["True", "True"]
    program = "print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    assert run(program, NULLCUDA_MACHINE=machine, CUDA_VISIBLE_DEVICES=uuid)[0] == f"1 {uuid[4:]}"


TESTS = """
    import pytest
    import torch

    def test_impossible_and_fails():
        assert torch.cuda.device_count() > 8

    def test_impossible_and_passes():
        pass

    def test_not_run():
        raise RuntimeError("it was run")

    @pytest.mark.skip(reason="for no listed reason")
    def test_skipped():
        pass

    @pytest.mark.parametrize("waits", [True, False])
    def test_races(waits):
        side, host = torch.cuda.Stream(), torch.ones(8).pin_memory()
        device = torch.zeros(8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            device.copy_(host, non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        device * 2
    """


FILE = "test_planted.py"


def test_a_list_that_is_not_true_is_an_error(tmp_path):
    (tmp_path / FILE).write_text(textwrap.dedent(TESTS))
    lists = {
        "IMPOSSIBLE": {f"{FILE}::test_impossible_{name}": "why" for name in ("and_fails", "and_passes")},
        "NOT_RUN": {f"{FILE}::test_not_run": "why"},
        "COUNTS_ONLY": set(),
    }
    lines = [f"plugin.{name} = {value!r}" for name, value in lists.items()]
    (tmp_path / "conftest.py").write_text("\n".join(["from tests.nullcuda import plugin", *lines]))
    command = [build.interpreter(), "-m", "pytest", "-p", "tests.nullcuda.plugin", "-rA", "--rootdir", ".", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    ended = {name: word for word, name in re.findall(r"^([A-Z]+) +test_planted\.py::(\S+)", done.stdout, re.MULTILINE)}
    assert ended == {
        "test_impossible_and_fails": "XFAIL",
        "test_impossible_and_passes": "FAILED",
        "test_skipped": "ERROR",
        "test_races[True]": "PASSED",
        "test_races[False]": "FAILED",
    }
    assert "not listed in tests/nullcuda/plugin.py" in printed
    assert "work on two streams without a wait between" in printed
    assert re.search(r"SKIPPED \[1\] .*: why$", printed, re.MULTILINE)


def test_a_listed_test_that_is_not_there_is_named():
    missing_file = next(iter(plugin.NOT_RUN)).partition("::")[0]
    assert plugin.absent({f"{missing_file}::test_another"}) == sorted(plugin.NOT_RUN)


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
