"""The selftest before a matrix that asks for one: once for a machine and device, its JSON kept beside the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def selftest_first(
    results: Path, machine: str, device: str, seconds: float, disk_dir: Path | None, say: Callable[[str, str], None]
) -> None:
    """Runs the selftest, shows its page with ``say(text, style)`` and keeps its JSON in the folder ``results``, unless
    ``device`` has passed it there. One that failed is no reason to measure nothing."""
    from zobench.cli.console import error_console
    from zobench.execute.plan import duration
    from zobench.machine.files import replace
    from zobench.selftest.run import CHECKS, selftest

    path = results / ".selftest" / f"{machine}-{device.replace(':', '')}.json"
    if _passed(path, say):
        return
    with error_console().status("selftest, about " + duration(seconds)):
        found = selftest(device, seconds, CHECKS, disk_dir=disk_dir)
    say(found.page(), "yellow" if found.failed else "dim")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(found.to_dict(), indent=1, allow_nan=False).encode())
    except OSError as error:
        say(f"warning: the selftest's JSON was not kept: {error.strerror}", "yellow")


def _passed(path: Path, say: Callable[[str, str], None]) -> bool:
    """Whether the verdict kept at ``path`` is ok. One that cannot be read is said, and counts as none."""
    try:
        verdict = json.loads(path.read_bytes())["verdict"]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError) as error:
        say(f"not read: {path} ({type(error).__name__}); the selftest runs again", "yellow")
        return False
    if verdict == "ok":
        say(f"selftest: ok before, see {path}", "dim")
    return bool(verdict == "ok")
