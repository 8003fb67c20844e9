"""pytest on the null GPU: ``-p tests.nullcuda.plugin``. A race fails its test, and so does a skip that is not listed.

This is the one place that says what an emulator cannot do. A listed test that passes is an error too, and a list that
names a test which is not there.
"""

from collections.abc import Iterator

import pytest

from tests.nullcuda.counts import races, runtime

IMPOSSIBLE = {
    "tests/gpu/test_fast.py::test_uploads_run_under_computes": "needs time: nothing takes any on the null GPU",
}
"""Test -> why an emulator must fail it. They run, and do fail."""

NOT_RUN = {
    "tests/kernels/test_kernels.py::TestOnGpu::test_a_buffer_beyond_2_to_the_31_elements": (
        "a kernel's own arithmetic is all it shows, in 9 GB and minutes of a CPU's kernels"
    ),
}
"""Test -> why it is not run: it would pass, and say nothing."""

COUNTS_ONLY = {
    *IMPOSSIBLE,
    "tests/gpu/test_cuda.py::test_offloading_holds_the_resident_parts_and_the_slots_only",
    "tests/gpu/test_fast.py::test_a_step_takes_what_the_ledger_counts_on_the_meta_device",
}
"""Tests on a model of 1.3 billion parameters: their processes compute nothing."""


def name_of(item: pytest.Item) -> str:
    """The test without its parameters, as the lists name it."""
    return item.nodeid.partition("[")[0]


def absent(names: set[str]) -> list[str]:
    """The listed tests that are not among ``names``, though others of their file are."""
    files = {name.partition("::")[0] for name in names}
    return sorted(name for name in {*IMPOSSIBLE, *NOT_RUN, *COUNTS_ONLY} - names if name.partition("::")[0] in files)


def pytest_configure() -> None:
    runtime().nullcuda_collect_races()  # a race in a process that a test starts ends that process


@pytest.hookimpl(tryfirst=True)  # before ``-k`` and ``-m`` select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in argument for argument in config.args) and (gone := absent({name_of(item) for item in items})):
        raise pytest.UsageError(f"tests/nullcuda/plugin.py lists tests that are not there: {', '.join(gone)}")
    for item in items:
        if reason := IMPOSSIBLE.get(name_of(item)):
            item.add_marker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
        if reason := NOT_RUN.get(name_of(item)):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if name_of(item) in COUNTS_ONLY:
            patch.setenv("NULLCUDA_VALUES", "0")
        races()
        yield
    if race := races():
        pytest.fail(f"work on two streams without a wait between:\n{race}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and name_of(item) not in NOT_RUN:
        report.outcome = "failed"
        report.longrepr = f"skipped on the null GPU, and not listed in tests/nullcuda/plugin.py: {report.longrepr}"
    return report
