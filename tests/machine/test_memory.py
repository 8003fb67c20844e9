"""Host memory facts: container limits, peaks, free disk."""

import math
import mmap
from pathlib import Path

import pytest

from tests.support.files import written
from zobench.machine import memory, processes
from zobench.machine.directio import aligned

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        written(root / name, text)
    return str(root)


MEMINFO = {"proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemFree: 5 kB\nMemAvailable: {50 * 2**20} kB\n"}


def test_cgroup_v2_limit_of_any_level_less_what_cannot_be_reclaimed(tmp_path):
    files = {
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{5 * GIB}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon 7\ninactive_file {1 * GIB}\nactive_file {2 * GIB}\n",
    }
    root = tree(tmp_path, MEMINFO | files)
    assert memory.available_host_bytes(root) == 6 * GIB
    assert memory.total_host_bytes(root) == 8 * GIB


def test_cgroup_v1_in_a_container_that_sees_only_its_own_root(tmp_path):
    base = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n",
        f"{base}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{base}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{base}/memory.stat": f"inactive_file 1\ntotal_inactive_file {1 * GIB}\ntotal_active_file 0\n",
    }
    root = tree(tmp_path, MEMINFO | files)
    assert memory.available_host_bytes(root) == 2 * GIB
    (tmp_path / base / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory.available_host_bytes(root) == 50 * GIB


def test_a_quota_of_cores_is_the_least_of_the_cgroups_around(tmp_path):
    files = {"proc/self/cgroup": "0::/job/step\n", "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
             "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}  # fmt: skip
    assert processes.core_quota(tree(tmp_path / "second", files)) == 1.5
    base = "sys/fs/cgroup/cpu,cpuacct"
    files = {"proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/x\n", f"{base}/cpu.cfs_quota_us": "200000\n",
             f"{base}/cpu.cfs_period_us": "50000\n"}  # fmt: skip
    root = tree(tmp_path / "first", files)
    assert processes.core_quota(root) == 4
    written(Path(root) / base / "cpu.cfs_quota_us", "-1\n")
    assert processes.core_quota(root) == processes.core_quota(str(tmp_path)) == math.inf


def test_without_proc_the_answer_is_none(tmp_path):
    assert memory.available_host_bytes(str(tmp_path)) is None
    assert memory.total_host_bytes(str(tmp_path)) is None


def test_peak_restarts_where_permitted():
    if not memory.reset_peak():
        pytest.skip("the system does not permit it")
    with mmap.mmap(-1, 100 * 2**20) as pages:
        pages.write(b"x" * len(pages))
    high = memory.vm_hwm()
    assert memory.reset_peak()
    assert memory.vm_hwm() < high - 90 * 2**20


def test_peak_above_the_baseline_is_what_was_allocated():
    peak = memory.PeakMemory("cpu")
    peak.baseline()
    block = aligned(50 * 2**20)  # fresh pages: the heap may still hold as much that earlier tests have freed
    block.fill_(1)
    del block
    values = peak.peaks()
    assert values["device_peak_bytes"] == pytest.approx(50 * 2**20, rel=0.1)
    assert values["host_rss_peak_bytes"] - values["host_rss_baseline_bytes"] == values["device_peak_bytes"]


def test_the_kernels_count_of_kills_is_read_where_there_is_one(monkeypatch):
    for text, count in ((b"nr_free_pages 5\noom_kill 17\n", 17), (b"nr_free_pages 5\n", 0), (b"", 0)):
        monkeypatch.setattr(memory, "contents", lambda path, text=text: text)
        assert memory.oom_kills() == count
