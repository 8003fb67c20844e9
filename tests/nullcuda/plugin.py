"""pytest on the null GPU: ``-p tests.nullcuda.plugin``. It lists what an emulator cannot do; a race fails its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nullcuda.counts import races, runtime

IMPOSSIBLE = {
    "tests/gpu/test_cuda.py::test_uploads_run_under_computes": "needs time: nothing takes any on the null GPU",
    "tests/gpu/test_fast.py::test_uploads_run_under_computes": "needs time: nothing takes any on the null GPU",
    "tests/gpu/test_fast.py::test_the_passes_against_a_copy": "needs bandwidth, and kernels that compute",
}
"""Beginning of a test's name -> what an emulator cannot do of it."""

COUNTS_ONLY = {
    "tests/gpu/test_cuda.py::test_offloading_holds_the_resident_parts_and_the_slots_only",
    "tests/gpu/test_fast.py::test_a_step_takes_what_the_ledger_counts_on_the_meta_device",
}
"""Tests of bytes on a model of 1.3 billion parameters: their processes compute nothing."""


def _begins(item: pytest.Item, names: dict[str, str] | set[str]) -> str | None:
    return next((name for name in names if item.nodeid.startswith(name)), None)


def pytest_configure() -> None:
    runtime().nullcuda_collect_races()  # a race in a process that a test starts ends that process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if name := _begins(item, IMPOSSIBLE):
            item.add_marker(pytest.mark.skip(reason=IMPOSSIBLE[name]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if _begins(item, COUNTS_ONLY):
            patch.setenv("NULLCUDA_VALUES", "0")
        races()
        yield
    if found := races():
        pytest.fail(f"work on two streams without a wait between:\n{found}")
