"""Fixtures of this folder."""

from tests.support.command_line import zobench as zobench
