"""Tiles of a few rows, for the modules that ask for them."""

import pytest

from tests.support.fast import TILE
from zobench.engine.weights import blocks as units


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of a few rows also for tiny models."""
    monkeypatch.setattr(units.tiles, "__defaults__", (TILE["cpu"],))
