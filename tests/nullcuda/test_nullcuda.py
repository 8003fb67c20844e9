"""The null CUDA runtime finds what is planted: a missing wait, a wrong device, late work on freed or reused memory, a
leak of a slot, a wait in every block; and NVML answers as machines with these GPUs do."""

import json
import os
import subprocess
import textwrap

import pytest

from tests.nullcuda import build
from tests.nullcuda.forked import python

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(build.missing()), reason=build.missing())]

HEAD = """
import torch
from tests.nullcuda.counts import counts, races, runtime
side = torch.cuda.Stream()
host = torch.ones(1 << 10).pin_memory()
ones = torch.ones(1 << 10)
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
    {wait}
    result = device * 2
    print(bool((result.cpu() == 2).all()))
    """


def test_with_its_waits_a_copy_on_another_stream_is_seen():
    program = UPLOAD.format(wait="torch.cuda.current_stream().wait_stream(side)")
    assert run(program) == ("True", "", 0)


def test_a_missing_wait_gives_wrong_values_and_is_named():
    program = "runtime().nullcuda_collect_races()\n" + textwrap.dedent(UPLOAD.format(wait="")) + "print(races())"
    output, _, status = run(program)
    assert status == 0
    wrong, race = output.splitlines()[:2]
    assert wrong == "False"
    assert race.startswith("aten::mul.Tensor on stream")
    assert " reads 4096 bytes that a copy on stream " in race
    assert race.endswith(" wrote, without a wait"), race


def test_a_missing_wait_ends_a_process_that_does_not_collect_races():
    output, errors, status = run(UPLOAD.format(wait=""))
    assert (output, status < 0) == ("", True)
    assert "nullcuda: data race: aten::mul.Tensor" in errors


@pytest.mark.parametrize(
    ("order", "expected"),
    [("computed, read", True), ("read, computed", True), ("read too early", False), ("written too early", False)],
)
def test_both_directions_of_a_wait_are_checked(order, expected):
    """What late copies alone cannot show: the read that should have come after, the write that should have waited."""
    steps = {
        "computed, read": "device.mul_(2); side.wait_stream(main); read()",
        "read, computed": "side.wait_stream(main); read(); main.wait_stream(side); device.mul_(2)",
        "read too early": "side.wait_stream(main); device.mul_(2); read()",
        "written too early": "side.wait_stream(main); read(); device.mul_(2)",
    }[order]
    program = f"""
    runtime().nullcuda_collect_races()
    main, device = torch.cuda.current_stream(), torch.ones(1 << 10, device="cuda")
    def read():
        with torch.cuda.stream(side):
            host.copy_(device, non_blocking=True)
    {steps}
    print(races() == "")
    """
    assert run(program) == (str(expected), "", 0)


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


def test_late_work_on_memory_that_was_given_back_stops_the_process():
    program = """
    device = torch.ones(1 << 22, device="cuda")
    from tests.nullcuda.values import on_host
    alias = on_host(device)
    print(float(alias[0]), flush=True)
    del device
    torch.cuda.empty_cache()
    print(float(alias[0]))
    """
    output, _, status = run(program)
    assert (output, status) == ("1.0", -11)


def test_memory_without_a_value_is_poisoned():
    program = "print(torch.empty(3, device='cuda').cpu().tolist(), torch.zeros(2, device='cuda').cpu().tolist())"
    assert run(program)[0] == "[nan, nan, nan] [0.0, 0.0]"


@pytest.mark.parametrize("planted", ["a copy on a stream of the other device", "a copy across the edge", "none"])
def test_copies_that_cuda_refuses_or_nobody_means_fail(planted):
    program = f"""
    target = torch.zeros(1 << 10, device="cuda:1")
    planted = {planted!r}
    runtime_of = torch.cuda.cudart()
    if planted == "a copy across the edge":
        whole = torch.zeros(1 << 12)
        runtime_of.cudaHostRegister(whole.data_ptr(), 4096, 0)
        source = whole[: 1 << 11]
        target = torch.zeros(1 << 11, device="cuda:0")
    try:
        if planted == "a copy on a stream of the other device":
            import ctypes
            stream = ctypes.c_void_p(side.cuda_stream)  # of cuda:0
            code = runtime().cudaMemcpyAsync(
                ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(64), 1, stream
            )
            print("refused" if code else "done")
        elif planted == "none":
            target.copy_(host, non_blocking=True)
            print("done", bool((target.cpu() == 1).all()))
        else:
            target.copy_(source, non_blocking=True)
            print("done")
    except RuntimeError as error:
        print("refused")
    """
    output, errors, _ = run(program, NULLCUDA_MACHINE="2xh100")
    expected = {
        "a copy on a stream of the other device": ("refused", "is on a stream of another device than the memory"),
        "a copy across the edge": ("refused", "crosses the edge of pinned memory"),
        "none": ("done True", ""),
    }[planted]
    assert (output, expected[1] in errors) == (expected[0], True)


def test_device_memory_ends():
    program = """
    try:
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("out of memory", torch.cuda.mem_get_info()[1])
    """
    assert run(program, NULLCUDA_GB="2")[0] == "out of memory 2000000000"


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


def test_what_is_not_waited_for_is_counted_and_what_is_too():
    program = """
    device = torch.ones(1 << 10, device="cuda")
    before = counts()
    for _ in range(3):
        device.copy_(host, non_blocking=True)
        device.add_(1)
    device[0].item()
    print({name: value - before[name] for name, value in counts().items() if value != before[name]})
    """
    found = json.loads(run(program)[0].replace("'", '"'))
    assert (found["h2d_pinned"], found["launches"], found["bytes_d2h"], found["stream_syncs"]) == (3, 3, 4, 1)
    assert not {"device_syncs", "mallocs", "h2d_pageable"} & found.keys()


# --- NCCL ------------------------------------------------------------------------------------------------------------

RANK = """
    import os, sys
    import torch.distributed as dist
    runtime().nullcuda_collect_races()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
    slot = torch.zeros(4, device="cuda")
    mine = slot[2 * rank : 2 * rank + 2]
    try:
        {body}
        print(races().replace(chr(10), ""))
    except RuntimeError as error:
        print("refused")
    sys.stdout.flush()
    os._exit(0)
    """


def ranks(body, folder, **settings):
    """What each of two ranks on two devices prints, errors at its end."""
    program = textwrap.dedent(RANK).replace("{body}", textwrap.dedent(body).strip().replace("\n", "\n    "))
    command = [build.interpreter(), "-W", "ignore", "-c", HEAD + program]
    own = {"OMP_NUM_THREADS": "1", "NULLCUDA_MACHINE": "2xh100", "MEETING": str(folder / "meeting"), **settings}
    started = [
        subprocess.Popen(
            command, env={**os.environ, **own, "RANK": rank}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in "01"
    ]
    return ["".join(process.communicate(timeout=120)) for process in started]


def test_two_ranks_give_each_other_what_they_have(tmp_path):
    body = """
    dist.all_gather_into_tensor(slot, mine.fill_(rank + 1))
    total, told = torch.full((2,), rank + 1.0, device="cuda"), torch.full((2,), 7 * rank, device="cuda")
    dist.all_reduce(total)
    dist.broadcast(told, src=1)
    for _ in range(100):  # megabytes in all: what both have read is given back
        large = torch.full((1 << 14,), float(rank), device="cuda")
        dist.all_reduce(large, dist.ReduceOp.MAX)
    print(slot.tolist(), total.tolist(), told.tolist(), bool((large == 1).all()))
    """
    assert ranks(body, tmp_path) == ["[1.0, 1.0, 2.0, 2.0] [3.0, 3.0] [7, 7] True\n\n"] * 2


def test_a_gather_that_nobody_waited_for_is_found(tmp_path):
    body = "work = dist.all_gather_into_tensor(slot, mine.fill_(1), async_op=True); other = slot * 2; work.wait()"
    for told in ranks(body, tmp_path):
        assert told.startswith("aten::mul.Tensor on stream ")
        assert " reads 16 bytes that a collective on stream " in told


@pytest.mark.parametrize(
    ("planted", "said"),
    {
        "dist.all_reduce(slot if rank else mine)": "the ranks do not ask for the same",
        "dist.reduce_scatter_tensor(mine, slot)": "ncclReduceScatter is not written",
        "dist.all_reduce(slot); rank and dist.all_reduce(slot)": "a rank does not come",
        "dist.all_reduce(slot.half())": "this reduction is not written",
    }.items(),
)
def test_what_ranks_may_not_do_is_refused(planted, said, tmp_path):
    told = ranks(planted, tmp_path, NULLCUDA_PATIENCE="2")
    assert f"nullcuda: NCCL: {said}" in "".join(told)  # the second to ask may find the first one gone
    assert told[1].startswith("refused")


@pytest.mark.parametrize(
    ("machine", "why"), [("2xh100", ""), ("2xa100", "cuda:0 and cuda:1 have no NVLink between them")]
)
def test_slices_are_for_gpus_that_are_linked(machine, why):
    program = """
    from zobench.machine.nvml import Nvml
    from zobench.parallel.hosts import _slow_pair
    print(_slow_pair(2, Nvml()))
    """
    assert run(program, NULLCUDA_MACHINE=machine)[0] == why


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


@pytest.mark.parametrize(
    ("machine", "expected"),
    [("h100", ["h100", 1]), ("a100", ["a100", 1]), ("2xh100", ["h100", 2]), ("mig", ["mig", 1])],
)
def test_cuda_and_nvml_agree_on_the_machine(machine, expected):
    program = """
    import json, pynvml
    pynvml.nvmlInit()
    found = [torch.cuda.get_device_name(i).lower() for i in range(torch.cuda.device_count())]
    prefix = "MIG-" if "mig" in found[0] else "GPU-"
    uuids = [prefix + str(torch.cuda.get_device_properties(i).uuid) for i in range(len(found))]
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(uuid)).lower() for uuid in uuids]
    print(json.dumps([found, names]))
    """
    output, errors, _ = run(program, NULLCUDA_MACHINE=machine)
    cuda, nvml = json.loads(output or errors)
    assert cuda == nvml
    assert len(cuda) == expected[1]
    assert expected[0] in cuda[0]


def test_visible_devices_are_those_that_were_asked_for():
    program = "print([str(torch.cuda.get_device_properties(i).uuid)[:4] for i in range(torch.cuda.device_count())])"
    for told, expected in (("1", "['1212']"), ("1,0", "['1212', '1111']"), ("GPU-1111", "['1111']")):
        assert run(program, NULLCUDA_MACHINE="2xh100", CUDA_VISIBLE_DEVICES=told)[0] == expected


def test_without_nvml_zobench_names_the_machine_after_torchs_gpus():
    program = """
    from zobench.measure import environment
    environment.glob.glob = lambda pattern: ["/dev/nvidia0"]
    print(environment.fingerprint_without_torch().hardware["gpus"])
    """
    settings = {"NULLCUDA_MACHINE": "2xh100", "CUDA_VISIBLE_DEVICES": "1", "NULLCUDA_NVML_DENY": "nvmlInit"}
    gpu = {"name": "NULL H100 80GB", "memory_mib": 76293}
    assert run(program, **settings)[0] == str([gpu, gpu])


@pytest.mark.parametrize("machine", ["h100", "2xh100", "mig"])
def test_a_gpu_is_found_again_by_the_uuid_that_zobench_gives_it(machine):
    """By NVML, and by CUDA in the processes of a pool."""
    program = """
    from zobench.execute import plan
    from zobench.machine import accelerator
    from zobench.machine.nvml import Nvml
    uuid, device = plan.gpu_uuids()[-1], accelerator.devices()[-1]
    print(uuid, Nvml().handle(device.uuid()) is not None, Nvml().handle(uuid) is not None)
    """
    uuid, *found = run(program, NULLCUDA_MACHINE=machine)[0].split()
    assert found == ["True", "True"]
    program = "print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    assert run(program, NULLCUDA_MACHINE=machine, CUDA_VISIBLE_DEVICES=uuid)[0] == f"1 {uuid[4:]}"


def readings(**settings):
    program = """
    import json
    from zobench.machine.nvml import Nvml
    nvml = Nvml()
    handle = nvml.handles()[0]
    names = ("PowerUsage", "CurrentClocksThrottleReasons")
    found = {name: nvml.ask(name, f"nvmlDeviceGet{name}", handle) for name in names}
    found["processes"] = [p.pid for p in nvml.ask("processes", "nvmlDeviceGetComputeRunningProcesses", handle) or []]
    print(json.dumps({**found, "notes": nvml.notes}))
    """
    return json.loads(run(program, **settings)[0])


def test_nvml_tells_of_throttling_of_other_processes_and_of_what_it_may_not_tell():
    assert readings() == {"PowerUsage": 250000, "CurrentClocksThrottleReasons": 0, "processes": [], "notes": []}
    busy = readings(NULLCUDA_NVML_PROCESSES="17:1000,18:5", NULLCUDA_NVML_THROTTLE="0x40")
    assert (busy["processes"], busy["CurrentClocksThrottleReasons"]) == ([17, 18], 0x40)
    assert readings(NULLCUDA_NVML_DENY="PowerUsage") == {
        "PowerUsage": None,
        "CurrentClocksThrottleReasons": 0,
        "processes": [],
        "notes": ["NVML PowerUsage: not available (insufficient permissions)"],
    }
