"""Texts without what they tell of a machine and its user: paths, and the names of both."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable
from typing import Any

_PATH = re.compile(r"(?:(?<![\w.])|(?<=-[IL]))(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\'\":,;()]+)+[/\\]([^\s/\\'\":,;()]*)")

_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)|(?<= at )[\w.:\[\]-]+(?=:\d{4,5}\b)")
"""An IPv4 address, or any machine's where its port is told."""


def without_paths(text: str) -> str:
    """``text`` with the last name of each path in place of the path."""
    return _PATH.sub(r"\1", text)


def without_places(text: str) -> str:
    """:func:`without_paths`, and without the names of this machine and its user, and addresses of others."""
    text, host = _ADDRESS.sub("HOST", without_paths(text)), socket.gethostname()
    for name, word in ((host, "HOST"), (host.partition(".")[0], "HOST"), (_user(), "USER")):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, text) if len(name) > 2 else text
    return text


def _user() -> str:
    """The user's name, or "" of one that has none, as in a container that runs under any number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def anonymous(value: Any, change: Callable[[str], str] = without_places) -> Any:
    """``value``, of JSON types, with every text in it ``change``d."""
    if isinstance(value, dict):
        return {key: anonymous(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(item, change) for item in value]
    return change(value) if isinstance(value, str) else value
