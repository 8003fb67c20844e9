"""A fixture of small tiles; the conftest of a folder that uses it imports it."""

import pytest

from zobench.engine.weights import blocks


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few rows also for tiny models."""
    monkeypatch.setattr(blocks.tiles, "__defaults__", (20_000,))
