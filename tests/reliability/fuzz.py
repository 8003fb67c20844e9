"""Fuzzed inputs: every file and text that may come from somebody else, and what they end up in.

An input is drawn from its own number and the seed, so that each can be made again. Batches run in a process of their
own, which is ended when an input takes too long and whose end is a finding. Real files are mutated, and their trees
edited: coverage that guides the choice (atheris) would need libFuzzer's build and instruments Python's byte code, while
these readers are json, tomllib, tarfile and checks of the tree they give, behind which edits of the tree get at once.
"""

import contextlib
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import zobench
from tests.reliability import targets
from tests.reliability.board import Board, start, wait
from tests.reliability.log import Log

LIMIT = 5.0
"""Seconds of processor of an input, after which it hangs."""
BATCH = 500
KEPT = 3
"""Findings of a kind that a batch keeps."""
OURS = Path(zobench.__file__).parent
"""Where the package's own frames are, whatever the checkout's folder is called."""


class HangError(BaseException):
    """An input took too long; no ``except Exception`` may take it for another fault."""


def campaign(log: Log, count: int, seed: int, only: str = "") -> int:
    """Feeds inputs until the log has ``count``, shared out over the targets; how many findings there are."""
    place = Path(tempfile.mkdtemp(prefix="zobench-fuzz-"))
    os.environ["ZOBENCH_CACHE_DIR"] = str(place / "cache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        for name, (share, make) in targets.TARGETS.items():
            if not only or only == name:
                _target(log, name, make, round(count * (1.0 if only else share / targets.WHOLE)), seed, place)
    finally:
        targets.cleared(place)
    return sum(len(line["findings"]) for line in log.of("batch"))


def _target(log: Log, name: str, make: Callable[[Path], targets.Feed], count: int, seed: int, place: Path) -> None:
    done = sum(line["count"] for line in log.of("batch") if line["target"] == name)
    if done >= count:
        return
    folder = place / name.replace(" ", "-") / "inside"
    folder.mkdir(parents=True)
    feed = make(folder)
    while done < count:
        size = min(BATCH, count - done)
        line = batch(name, feed, done, size, seed, folder)
        log.add(line)
        done += size
        told = f", FINDINGS: {len(line['findings'])}" if line["findings"] else ""
        print(f"{name}: {done} of {count}; {line['accepted']} of {size} accepted{told}", flush=True)


def batch(name: str, feed: targets.Feed, first: int, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Feeds the inputs from ``first`` on in processes that are forked here: a line of the log."""
    board, file = Board(()), folder.parent / "told.jsonl"
    file.unlink(missing_ok=True)
    before, began, here, cpu = outside(folder), time.monotonic(), first, 0.0
    findings: list[dict[str, Any]] = []
    while here < first + count:
        board.done = here
        pid = start(partial(_feed, name, feed, board, here, first + count, seed, file), folder.parent / "said.log")
        end = wait(pid, LIMIT * 3 + count * 0.5)
        cpu += end.cpu
        if end.code == 0:
            break
        how = "a hang that no signal ends" if end.code is None else f"the process ended with {end.code}"
        said = (folder.parent / "said.log").read_text(errors="replace")[-300:]
        findings.append({"input": board.done, "what": f"{how}: {said}"})
        here = board.done + 1
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    findings += [line for line in lines if "what" in line]
    if (after := outside(folder)) != before:
        findings.append({"input": first, "what": f"files outside of the folder: {sorted(after ^ before)[:5]}"})
    ends = Counter({key: sum(line.get(key, 0) for line in lines) for key in ("accepted", "refused", "unreadable")})
    kinds = Counter(finding["what"].splitlines()[0][:120] for finding in findings)
    shown = [one for kind in kinds for one in [f for f in findings if f["what"].startswith(kind)][:KEPT]]
    return {
        "kind": "batch", "target": name, "first": first, "count": count, "seed": seed, **ends, "cpu": round(cpu, 2),
        "seconds": round(time.monotonic() - began, 2), "findings": shown, "kinds": dict(kinds),
    }  # fmt: skip


def _feed(name: str, feed: targets.Feed, board: Board, first: int, end: int, seed: int, file: Path) -> None:
    """Feeds the inputs in this process, and writes what came of them."""
    ends: Counter[str] = Counter()
    with file.open("a") as told:
        for number in range(first, end):
            board.done = number
            try:
                with limited(LIMIT):
                    ends[judged(feed, random.Random(f"{seed}/{name}/{number}"))] += 1
            except HangError as error:
                told.write(json.dumps({"input": number, "what": f"a hang: {_where(error)}"}) + "\n")
            except Exception as error:
                what = f"{type(error).__name__} at {_where(error)}: {str(error)[:300]}"
                told.write(json.dumps({"input": number, "what": what}) + "\n")
            told.flush()
        told.write(json.dumps(ends) + "\n")


def judged(feed: targets.Feed, random_: random.Random) -> str:
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
    beside = (
        path for path in folder.parent.iterdir() if path != folder and path.name not in ("told.jsonl", "said.log")
    )
    places = [*beside, *(path for path in (Path("/tmp/escape"), Path("/tmp/x.json")) if path.exists())]
    return {(str(path), path.stat().st_size) for path in places}


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if OURS in Path(frame.filename).parents]
    last = frames[-1] if frames else None
    return f"{own[-1] if own else '?'} ({Path(last.filename).name}:{last.lineno})" if last else "?"


def summary(log: Log) -> str:
    """What came of the inputs, as a table in Markdown."""
    lines = [
        "| target | inputs | accepted | refused in one line | cannot be read | findings | CPU s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    batches = log.of("batch")
    for name in dict.fromkeys(line["target"] for line in batches):
        own = [line for line in batches if line["target"] == name]
        told = [sum(line[key] for line in own) for key in ("count", "accepted", "refused", "unreadable")]
        lines.append(_row(name, *told, sum(sum(line["kinds"].values()) for line in own), _cpu(own)))
    told = [sum(line[key] for line in batches) for key in ("count", "accepted", "refused", "unreadable")]
    lines.append(_row("all", *told, sum(sum(line["kinds"].values()) for line in batches), _cpu(batches)))
    return "\n".join(lines)


def _cpu(lines: list[dict[str, Any]]) -> int:
    return round(sum(line["cpu"] for line in lines))


def _row(name: str, *numbers: int) -> str:
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |"
