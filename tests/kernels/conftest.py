"""One thread here too: see the engine's tests."""

from tests.engine.conftest import _one_thread  # noqa: F401
