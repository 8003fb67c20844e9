"""One rank of a cell on several devices, and how what the ranks have measured becomes the cell's one result.

Ranks tell each other their results as JSON, through the store in which they met. So a rank that is lost takes nothing
with it but its own: the others say what happened to them, and the one that started it says how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from zobench.execute.child import end_with_launcher
from zobench.execute.merge import merged
from zobench.execute.process import failed, oom_kills
from zobench.measure.device import check_devices
from zobench.parallel.launch import Lost, Meeting, meet, start
from zobench.parallel.world import join, meeting_place, timeout
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

GRACE = 10.0
"""Seconds in which ranks say what happened to them, once one knows that it is over."""


def main() -> None:
    """``python -m zobench.execute.rank SPEC FILE``: a rank, started by :func:`launched`."""
    end_with_launcher()
    spec, answer = RunSpec.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
    result = measured(spec)
    if os.environ["LOCAL_RANK"] == "0":
        _write(answer, result)
    if result.outcome is not Outcome.OK:  # so that the agent ends a rank that is silent, as one that is stopped
        sys.exit(1)


def launched(spec: RunSpec, answer: Path) -> Result:
    """The cell's result, by ranks that are started here, whose files lie beside ``answer``.

    If the cell runs on several machines, each of them calls this and gets it.
    """
    check_devices(spec)
    question = answer.with_name("spec.json")
    question.write_text(json.dumps(spec.to_dict()))
    meeting = meet(spec)
    command = (sys.executable, "-P", "-m", "zobench.execute.rank", str(question), str(answer))
    kills = oom_kills()
    lost = start(command, spec, meeting)
    if lost is not None:
        return _after(spec, lost, meeting, oom_kills() > kills)
    return Result.from_dict(json.loads(answer.read_text()))


def measured(spec: RunSpec) -> Result:
    """What came of the cell of which this process is a rank; the same on every rank, but for rank 0's traces."""
    place, rank = meeting_place(), int(os.environ["RANK"])
    own = _own(spec)
    _tell(place, rank, own)
    if rank == 0:
        found = {**_told(place, spec.gpus, timeout() if own.outcome is Outcome.OK else GRACE), 0: own}
        result = merged(spec, found)
        place.set("result", _text(result))
        return result
    place.wait(["result"], timedelta(seconds=timeout() + GRACE))
    return Result.from_dict(json.loads(place.get("result")))


def _own(spec: RunSpec) -> Result:
    """What came of this rank; whatever fails is its outcome, and ends no other rank without a word."""
    try:
        from zobench.execute import cell
    except ImportError as error:
        return failed(spec, Outcome.FAILED, f"ImportError: {error}", traceback.format_exc())
    try:
        with join(spec) as world:
            return cell.run(spec, world)
    except Exception as error:
        return failed(spec, *cell.classify(error, spec.device), traceback.format_exc())


def _after(spec: RunSpec, lost: Lost, meeting: Meeting, killed_for_memory: bool) -> Result:
    """The result of a cell that lost a rank here: what the ranks could say, and how that one ended."""
    place = PrefixStore(f"attempt {meeting.round}", meeting.store)
    if killed_for_memory:
        end = failed(spec, Outcome.OOM, f"host memory ran out: the system killed rank {lost.rank}")
    else:
        end = failed(spec, Outcome.FAILED, lost.reason)
    if not place.check([f"result of {lost.rank}"]):
        _tell(place, lost.rank, end)
    if meeting.node == 0 and not place.check(["result"]):  # rank 0 has been ended before it could
        found = _told(place, spec.gpus, patience=0.0)
        place.set("result", _text(merged(spec, found)))
    try:
        place.wait(["result"], timedelta(seconds=2 * GRACE))
        result = Result.from_dict(json.loads(place.get("result")))
        _part(place, meeting.node, meeting.nodes)
    except RuntimeError:  # the first machine is gone too
        return end
    return result


def _part(place: Store, node: int, nodes: int) -> None:
    """Says that this machine has the result; the first one, whose store it is, waits for the others to say so."""
    place.set(f"read by {node}", "")
    if node == 0:
        place.wait([f"read by {other}" for other in range(nodes)], timedelta(seconds=GRACE))


def _tell(place: Store, rank: int, result: Result) -> None:
    """Leaves ``rank``'s result for the others, without its traces: they may be long, and rank 0's are kept."""
    place.set(f"result of {rank}", _text(replace(result, trace={}, timeline=[])))


def _told(place: Store, count: int, patience: float) -> dict[int, Result]:
    """The results of those of ``count`` ranks that have told theirs, or do within ``patience`` seconds."""
    found, end = {}, time.monotonic() + patience
    for rank in range(count):
        key = f"result of {rank}"
        while not place.check([key]) and time.monotonic() < end:
            time.sleep(0.02)
        if place.check([key]):
            found[rank] = Result.from_dict(json.loads(place.get(key)))
    return found


def _text(result: Result) -> str:
    return json.dumps(result.to_dict(), allow_nan=False)


def _write(answer: Path, result: Result) -> None:
    """In one piece: a rank that is ended meanwhile leaves no half of it."""
    partial = answer.with_suffix(".partial")
    partial.write_text(_text(result))
    partial.rename(answer)


if __name__ == "__main__":
    main()
