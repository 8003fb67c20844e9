"""Fixtures of this folder."""

from tests.support.small_tiles import small_tiles as small_tiles
