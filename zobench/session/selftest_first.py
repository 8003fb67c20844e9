"""The selftest before a matrix that asks for one: once for a machine and device, its JSON kept beside the results."""

from __future__ import annotations

import json
from pathlib import Path

from zobench.machine.files import replace
from zobench.machine.texts import duration
from zobench.selftest import run
from zobench.session.machine import LocalMachine


def selftest_first(session: LocalMachine, seconds: float) -> None:
    """Runs the selftest in about so many ``seconds``, shows its page and keeps its JSON beside the results, unless the
    session's device has passed it there. One that failed is no reason to measure nothing."""
    path = session.store.root / ".selftest" / f"{session.machine}-{session.device.replace(':', '')}.json"
    if _passed(path, session):
        return
    with session.monitor.busy("selftest, about " + duration(seconds)):
        verdict = run.selftest(session.device, seconds, run.CHECKS, disk_dir=session.disk_dir)
    session.say(verdict.page(), "yellow" if verdict.failed else "dim")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(verdict.to_dict(), indent=1, allow_nan=False).encode())
    except OSError as error:
        session.say(f"warning: the selftest's JSON was not kept: {error.strerror}", "yellow")


def _passed(path: Path, session: LocalMachine) -> bool:
    """Whether the verdict kept at ``path`` is ok. One that cannot be read is said, and counts as none."""
    try:
        verdict = json.loads(path.read_bytes())["verdict"]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError) as error:
        session.say(f"not read: {path} ({type(error).__name__}); the selftest runs again", "yellow")
        return False
    if verdict == "ok":
        session.say(f"selftest: ok before, see {path}")
    return bool(verdict == "ok")
