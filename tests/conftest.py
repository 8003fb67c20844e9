"""For all tests: one thread, no deadline for an example of hypothesis, because a busy machine is no failure, and the
real data of the tasks for those that ask for it by the fixture ``real_data``."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

pytest.register_assert_rewrite("tests.support")

from tests.support import normals  # noqa: E402  # after what says that its asserts are rewritten
from tests.support.thinned import left_out  # noqa: E402

normals.draw_once()

hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")
DATA = os.environ.get("ZOBENCH_DATA_DIR")
"""The folder that holds SST-2/, RTE/ and so on: read here, before ``_without_data_dir`` removes the variable."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--products", action="store_true", help="run every case of the large products of parameters")


@pytest.hookimpl(tryfirst=True)  # before ``-m data`` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that use the real data; modules with slow tests come first, so that no worker ends with one. The
    sweep over transformers, and large products whole, run only where they are asked for."""
    if not config.option.products and (thinned := left_out(items)):
        config.hook.pytest_deselected(items=thinned)
        gone = {id(item) for item in thinned}
        items[:] = [item for item in items if id(item) not in gone]
    if "sweep" not in (config.option.markexpr or ""):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("sweep")])
        items[:] = [item for item in items if not item.get_closest_marker("sweep")]
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that ``ZOBENCH_DATA_DIR`` named when pytest started."""
    if not DATA:
        pytest.skip("needs the real data of the tasks: set ZOBENCH_DATA_DIR to its folder")
    return Path(DATA).absolute()


@pytest.fixture(scope="session", autouse=True)
def _without_data_dir() -> Iterator[None]:
    """zobench reads ``ZOBENCH_DATA_DIR`` too: a test and its processes see it only where the test sets it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ZOBENCH_DATA_DIR", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are no faster with more, and far slower on a machine whose cores are busy."""
    torch.set_num_threads(1)
