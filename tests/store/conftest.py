"""Fixtures of this folder."""

from tests.support.commands import refused as refused
from tests.support.commands import zobench as zobench
