"""The fake NVML, for every test of measure/."""

import pytest

from tests.support.fake_nvml import FakeNvml


@pytest.fixture
def fake_nvml():
    return FakeNvml
