"""Fuzzed inputs: every file and text that may come from somebody else, and what they end up in.

An input is drawn from its own number and the seed, so that each can be made again. Batches run in a process of their
own, whose end is a finding. Real files are mutated, and their trees edited: coverage that guides the choice (atheris)
would need libFuzzer's build and instruments Python's byte code, while these readers are json, tomllib, tarfile and
checks of the tree they give, behind which edits of the tree get at once.
"""

import contextlib
import json
import random
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zobench
from tests.reliability.disk import forked
from tests.reliability.targets import TARGETS, Feed

LIMIT = 5.0
"""Seconds of processor of an input, after which it hangs."""
BATCH = 500
KEPT = 5
"""Findings that a line of the log names."""
OURS = Path(zobench.__file__).parent
"""Where the package's own frames are, whatever the checkout's folder is called."""
LOGS = ("ends.json", "said.log")


class HangError(BaseException):
    """An input took too long; no ``except Exception`` may take it for another fault."""


def campaign(count: int, seed: int, only: Sequence[str], place: Path) -> Iterator[dict[str, Any]]:
    """Feeds ``count`` inputs, each target as many."""
    for number, name in enumerate(only or TARGETS):
        folder = place / f"target-{number}" / "inside"
        folder.mkdir(parents=True)
        feed, total = TARGETS[name](folder), count // len(only or TARGETS)
        for first in range(0, total, BATCH):
            yield batch(name, feed, range(first, min(first + BATCH, total)), seed, folder)


def batch(name: str, feed: Feed, inputs: range, seed: int, folder: Path) -> dict[str, Any]:
    """Feeds these inputs in a process that is forked here: a line of the log."""
    file, before = folder.parent / LOGS[0], outside(folder)
    file.unlink(missing_ok=True)
    end = forked(partial(_feed, name, feed, inputs, seed, file), folder.parent / LOGS[1], LIMIT * 3 + len(inputs) * 0.5)
    ends = json.loads(file.read_text()) if end.code == 0 else {"findings": [f"the process ended: {end}"]}
    if (after := outside(folder)) != before:
        ends["findings"].append(f"files outside of the folder: {sorted(after ^ before)[:5]}")
    findings = ends.pop("findings")
    return {
        "kind": "batch", "target": name, "first": inputs.start, "count": len(inputs), "seed": seed, **ends,
        "harm": "; ".join(findings[:KEPT]),
    }  # fmt: skip


def _feed(name: str, feed: Feed, inputs: range, seed: int, file: Path) -> None:
    """Feeds the inputs in this process, and writes what came of them."""
    ends, findings = Counter({"accepted": 0, "refused": 0, "unreadable": 0}), []
    for number in inputs:
        try:
            with limited(LIMIT):
                ends[judged(feed, random.Random(f"{seed}/{name}/{number}"))] += 1
        except HangError as error:
            findings.append(f"{number}: a hang: {_where(error)}")
        except Exception as error:
            findings.append(f"{number}: {type(error).__name__} at {_where(error)}: {str(error)[:300]}")
    file.write_text(json.dumps({**ends, "findings": findings}))


def judged(feed: Feed, random_: random.Random) -> str:
    """How an input ended: "accepted", "refused" in one line, or "unreadable" (an ``OSError`` in one line).

    Raises what is a finding: any other exception, or ``AssertionError`` for what came out of an input.
    """
    try:
        return "accepted" if feed(random_) else "refused"
    except (ValueError, OSError) as error:
        if isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError):
            raise  # of a text that could not be written: nobody looked at it
        text = str(error)
        assert "\n" not in text.strip(), f"a refusal of several lines: {text!r}"
        return "refused" if isinstance(error, ValueError) else "unreadable"


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises :class:`HangError` inside after so many seconds of processor: others may have the machine."""

    def late(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outside(folder: Path) -> set[tuple[str, int]]:
    """Everything beside ``folder``, where nothing may appear or change: names and sizes."""
    strays = [path for path in folder.parent.iterdir() if path != folder and path.name not in LOGS]
    escaped = [path for path in (Path("/tmp/escape"), Path("/tmp/x.json")) if path.exists()]
    return {(str(path), path.stat().st_size) for path in (*strays, *escaped)}


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if OURS in Path(frame.filename).parents]
    return f"{ours[-1] if ours else '?'} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else "?"
