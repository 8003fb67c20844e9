"""The sampler: light, honest about what it cannot read, and gone when its parent is; and memory over time, thinned
without losing a maximum."""

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import gone
from zobench import ZOSGD, Batch, Engine, EngineConfig, models
from zobench.measure import observe
from zobench.measure import sampler as sampler_module
from zobench.measure.observe import POINTS, memory_over_time
from zobench.measure.sampler import DeviceReader, HostReader, Recorder, Sampler
from zobench.measure.samples import FIELDS, Samples, contamination
from zobench.models import weights

SOURCE = Path(__file__).resolve().parents[2]
PID = 4242


def record(module, *, changes=(), uuid="abc", pid=PID, context_at_start=False):
    """Samples of a fake GPU: one sample before and one after each change."""
    reader = DeviceReader(uuid, pid, context_at_start, module)
    recorder = Recorder(HostReader(os.getpid()), reader)
    recorder.sample()
    for change in changes:
        change()
        recorder.sample()
    recorder.sample()
    return Samples(pid=pid, **recorder.result(0.0))


def test_every_reading_of_a_healthy_gpu(fake_nvml):
    module = fake_nvml()
    samples = record(module, changes=[lambda: module.process_bytes.update({PID: 3 * 10**9})])
    assert module.uuids == ["GPU-abc"]  # by UUID, in NVML's spelling, never by index
    assert samples.device_peak_bytes_device_wide == 5 * 10**9
    assert samples.device_peak_bytes_process == 3 * 10**9
    assert samples.energy_between(0.0, 1e9) == pytest.approx(10.0)
    assert samples.mean_power_watts == pytest.approx(250.0)
    assert samples.max_temperature_c == 61
    assert samples.series["sm_clock_hz"][0] == 1501e6
    assert samples.throttle_reasons == ["power cap"]
    assert samples.other_processes == []
    assert contamination(samples) == ""
    assert samples.notes == []


def test_of_a_busy_machine_the_cores_that_the_watched_process_may_use_count(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1} if pid == 7 else {0, 1})
    (tmp_path / "stat").write_text(
        "cpu 850 0 850 9 9 0 0 0\ncpu0 800 0 800 9 9 0 0 0\ncpu1 50 0 40 9 9 5 5 0\nintr 1\n"
    )
    busy = HostReader(7, str(tmp_path), str(tmp_path)).read()["machine_busy_seconds"]
    assert busy == 100 / os.sysconf("SC_CLK_TCK")


def test_each_failing_call_costs_only_its_own_reading(fake_nvml):
    calls = {
        "nvmlDeviceGetMemoryInfo": "device_used_bytes",
        "nvmlDeviceGetComputeRunningProcesses": "process_used_bytes",
        "nvmlDeviceGetTotalEnergyConsumption": "energy_joules",
    }
    healthy = set(calls.values()) - {"process_used_bytes"}
    for call, series in calls.items():
        samples = record(fake_nvml(fail=[call]))
        assert samples.series[series] == [None, None], call
        assert all(None not in samples.series[other] for other in healthy - {series}), call
        assert any("not supported" in note for note in samples.notes), call
        assert len(samples.notes) == len(set(samples.notes))
        assert contamination(samples) == ""


def test_without_a_driver_nothing_is_zero(fake_nvml):
    samples = record(fake_nvml(init_error="Driver Not Loaded"))
    assert "NVML: not available (driver not loaded)" in samples.notes
    assert all(value is None for name in FIELDS[1:9] for value in samples.series[name])
    assert samples.device_peak_bytes_device_wide is None
    assert samples.device_peak_bytes_process is None
    assert samples.energy_between(0.0, 1e9) is None
    assert samples.throttle_reasons is None


@pytest.mark.parametrize(
    ("before", "coming", "others"),
    [
        ({77: 10**9}, [PID], [77]),
        ({}, [88, PID], [88]),  # whoever comes before the watched process
        ({}, [900001], []),  # in a container the first new pid is ours
        ({}, [1, 2], [2]),
    ],
)
def test_who_else_used_the_gpu(fake_nvml, before, coming, others):
    module = fake_nvml(processes=before)
    changes = [lambda pid=pid: module.process_bytes.update({pid: 2 * 10**9}) for pid in coming]
    samples = record(module, changes=changes)
    assert samples.other_processes == others
    assert contamination(samples) == (f"another process used the GPU (pid {others[0]})" if others else "")
    assert samples.device_peak_bytes_process == 2 * 10**9


def test_in_a_container_with_a_context_from_before_the_start_one_is_ours(fake_nvml):
    alone = record(fake_nvml(processes={900001: 10**9}), context_at_start=True)
    assert contamination(alone) == ""
    assert alone.device_peak_bytes_process == 10**9
    crowd = record(fake_nvml(processes={900001: 10**9, 900002: 5}), context_at_start=True)
    assert len(crowd.other_processes) == 1


@pytest.mark.parametrize(
    ("bits", "reason"),
    [(0x1 | 0x2 | 0x4, ""), (0x8 | 0x40, "the GPU lowered its clocks: hardware slowdown, thermal (hardware)")],
)
def test_throttling_that_is_not_normal(fake_nvml, bits, reason):
    assert contamination(record(fake_nvml(throttle=bits))) == reason


def test_swapping():
    series = {name: [None, None] for name in FIELDS} | {"t": [0.0, 1.0], "swapped_bytes": [5.0, 5.0 + 64 * 2**20]}
    assert contamination(Samples(pid=1, series=series)) == "the machine swapped 64 MiB"


def test_window_keeps_who_was_there_when_it_began():
    series = {name: [0.0, 1.0, 2.0, 3.0] for name in FIELDS}
    samples = Samples(pid=1, series=series, presence=[(0.0, [9]), (0.5, [1]), (2.5, [1, 8])])
    inner = samples.window(1.0, 2.0)
    assert len(inner) == 2
    assert inner.energy_between(1.0, 2.0) == 1.0
    assert inner.other_processes == []
    assert samples.other_processes == [8, 9]


def test_energy_of_steps_between_two_samples_is_their_share_of_what_the_counter_grew():
    """A step of a tenth of a second falls between two samples: the counter's growth within the window would be 0."""
    nothing = {name: [None] * 4 for name in FIELDS}
    samples = Samples(pid=1, series=nothing | {"t": [0.0, 1.0, 2.0, 3.0], "energy_joules": [5.0, 15.0, 15.0, 35.0]})
    assert samples.energy_between(0.2, 0.3) == pytest.approx(1.0)
    assert samples.energy_between(0.5, 2.5) == pytest.approx(15.0)
    assert samples.energy_between(1.25, 1.75) == 0.0
    assert samples.energy_between(-1.0, 9.0) == 30.0  # not more than was read
    assert samples.energy_between(0.0, 0.0) is None
    assert Samples(pid=1, series=nothing | {"t": [0.0, 1.0, 2.0, 3.0]}).energy_between(0.0, 1.0) is None


def test_a_spike_of_200_mb_is_in_the_series():
    with Sampler(interval=0.02) as sampler:
        with mmap.mmap(-1, 200 * 10**6) as spike:  # not malloc, which may have as much from before
            for _ in range(200):
                spike.write(b"x" * 10**6)
            time.sleep(0.15)
        time.sleep(0.1)
    rss = [value for value in sampler.samples.series["rss_bytes"] if value is not None]
    assert max(rss) - rss[0] > 190e6
    assert max(rss) - rss[-1] > 190e6
    assert sampler.samples.series["cpu_seconds"][-1] > 0
    assert sampler.samples.notes == []


def test_gpu_through_the_real_process(tmp_path, monkeypatch):
    fake = (Path(__file__).parents[1] / "support" / "fake_nvml.py").read_text()
    body = "\n_gpu = FakeNvml()\ndef __getattr__(name): return getattr(_gpu, name)\n"
    (tmp_path / "pynvml.py").write_text(fake + body)
    (tmp_path / "sitecustomize.py").write_text("print('what a user has every Python print')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Sampler(device="GPU-abc", interval=0.01) as sampler:
        time.sleep(0.1)
    assert sampler.samples.device_peak_bytes_device_wide == 5 * 10**9
    assert sampler.samples.notes == []


def test_the_ends_of_the_steps_are_read_however_rare_samples_are():
    """On a GPU in a virtual machine two samples lay up to 4.4 s apart, and the steps of a cell took 1.7 s."""
    watching = observe.Observer("cpu", interval=60.0)
    watching.mark()
    began = time.monotonic()
    time.sleep(0.05)
    ended = time.monotonic()
    watching.mark()
    seen = watching._sampler
    power = watching.stop((began, ended)).power
    assert power["samples"] == 2
    assert power["own_cpu_cores"] is not None
    _, before, after, _ = seen.samples.series["t"]
    assert before <= began < ended <= after < ended + 5


def test_mean_power_is_what_the_counter_of_energy_grew_by():
    """A reading of a GPU's power is a mean of its last second: 298 W of steps that used 410."""
    rows = {"t": [0.0, 1.0, 3.0, 4.0], "energy_joules": [0.0, 100.0, 900.0, 900.0], "power_watts": [100.0, 250.0] * 2}
    seen = Samples(pid=1, series={name: [None] * 4 for name in FIELDS} | rows)
    assert observe._power(seen, seen.window(1.0, 3.0), (1.0, 3.0))["mean_power_watts"] == 400.0
    without = Samples(pid=1, series=seen.series | {"energy_joules": [None] * 4})
    assert observe._power(without, without.window(1.0, 3.0), (1.0, 3.0))["mean_power_watts"] == 175.0
    of_a_cpu = Samples(pid=1, series=seen.series | {"power_watts": [None] * 4})
    assert observe._power(of_a_cpu, of_a_cpu.window(1.0, 3.0), (1.0, 3.0))["mean_power_watts"] == 400.0


def test_a_mark_that_nobody_waited_for_loses_no_samples(monkeypatch):
    sampler = Sampler(interval=60.0)
    sampler.start()
    with monkeypatch.context() as impatient:
        impatient.setattr(sampler_module, "PATIENCE", 0.0)
        sampler.mark()
    samples = sampler.stop()
    assert len(samples) >= 2
    assert samples.notes == []


def test_ends_when_its_parent_is_killed():
    code = (
        "import time; from zobench.measure.sampler import Sampler; s = Sampler(); s.start();"
        "print(s._process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=SOURCE, stdout=subprocess.PIPE, text=True)
    sampler = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(sampler, 5)


def test_a_lost_sampler_is_a_note_and_not_an_error():
    sampler = Sampler()
    sampler.start()
    sampler._process.kill()
    samples = sampler.stop()
    assert samples.notes == ["sampler: ended early (exit code -9)"]
    assert len(samples) == 0
    assert contamination(samples) == ""


def test_survives_ctrl_c_and_a_watched_process_that_ends():
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Sampler(watched.pid, interval=0.02) as sampler:
        sampler._process.send_signal(signal.SIGINT)
        watched.communicate(b"\n")
        time.sleep(0.1)
    assert sampler.samples.series["rss_bytes"][0] > 0
    assert sampler.samples.series["rss_bytes"][-1] is None


def test_readings_that_cost_much_are_taken_less_often() -> None:
    """A reading of 10 ms of CPU may come every 2 s: half a percent of a core (COST_LIMIT), not every 20 ms."""
    slow = (
        "import time, zobench.measure.sampler as sampler\n"
        "class Slow(sampler.HostReader):\n"
        "    def read(self):\n"
        "        begin = time.process_time()\n"
        "        while time.process_time() - begin < 0.01: pass\n"
        "        return super().read()\n"
        "sampler.HostReader = Slow\n"
        f"sampler.main({os.getpid()}, 0.02, None, False)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow], cwd=SOURCE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    output, _ = process.communicate("stop\n", timeout=20)
    assert len(json.loads(output)["series"]["t"]) <= 4  # at the start, once or twice, at the end


def seen(**series: list[float | None]) -> Samples:
    count = max(map(len, series.values()))
    times: list[float | None] = [100 + index / 10 for index in range(count)]
    empty: dict[str, list[float | None]] = {name: [None] * count for name in FIELDS}
    return Samples(pid=1, series={**empty, "t": times, **series})


def test_the_devices_use_is_the_processs_where_it_is_known_and_else_the_whole_devices() -> None:
    both = seen(rss_bytes=[1.0, 1.0], process_used_bytes=[None, 3.0], device_used_bytes=[9.0, 9.0])
    assert memory_over_time(both)["device_bytes"] == [None, 3]
    assert memory_over_time(seen(rss_bytes=[1.0], device_used_bytes=[9.0]))["device_bytes"] == [9]
    assert "device_bytes" not in memory_over_time(seen(rss_bytes=[1.0]))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 1500), st.randoms(use_true_random=False))
def test_thinning_keeps_order_ends_and_the_maximum_of_every_stretch(count: int, chance: random.Random) -> None:
    rss, device = ([chance.choice([None, float(chance.randrange(10**9))]) for _ in range(count)] for _ in range(2))
    trace = memory_over_time(seen(rss_bytes=rss, process_used_bytes=device))
    seconds = [s for s in trace["seconds"] if s is not None]
    kept = [round(10 * s) for s in seconds]
    assert len(kept) <= POINTS
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert len(kept) == count or count > POINTS
    for name, values in (("rss_bytes", rss), ("device_bytes", device)):
        if name not in trace:
            assert set(values) == {None}
            continue
        assert trace[name] == [values[index] for index in kept]
        stretches = 1 if count <= POINTS else 99
        for number in range(stretches):
            part = range(number * count // stretches, (number + 1) * count // stretches)
            highest = max((values[index] or 0 for index in part), default=0)
            assert highest == max((values[index] or 0 for index in kept if index in part), default=0)


@pytest.mark.parametrize("reusable_memory", [True, False])
def test_weights_and_the_steps_after_are_those_without(reusable_memory):
    def run(measured):
        model = models.build("opt-tiny", "fp32")
        config = EngineConfig(slots=2, reusable_memory=reusable_memory)
        batch = Batch(torch.arange(12).view(2, 6) + 4, torch.arange(12).view(2, 6) + 4)
        with Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine:
            method = ZOSGD(lr=1e-4, eps=1e-3, seed=1)
            method.step(engine, batch)
            if measured:
                engine.drain()
                engine.record()
                observe.alone(engine.pipeline, len(engine.blocks), repeats=1)
                kinds = [event[1] for event in engine.timeline()]
                assert kinds.count("offload") == len(engine.blocks)
                assert kinds.count("upload") == 3 * len(engine.blocks)
            return method.step(engine, batch).loss, dict(engine.named_tensors())

    (loss, tensors), (plain_loss, plain) = run(True), run(False)
    assert loss == plain_loss
    assert all(torch.equal(tensors[name], plain[name]) for name in plain)
