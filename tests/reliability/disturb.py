"""Chains of kills at drawn moments, and disks that fail at an operation; what then goes on must end as if nothing had
been."""

import errno
import random
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from tests.reliability.disk import KINDS, Disk
from tests.reliability.work import Work

EACH = 8
"""Kills of a run before it may end, at most."""
LATER = (1, 2, 4, 8, 16, 32, 64, 128)
"""Operations at which a disk fails."""
FAULTS: dict[str, list[dict[str, Any]]] = {
    "disk full": [{"code": errno.ENOSPC}],
    "mount that becomes read-only": [{"code": errno.EROFS}],
    "lossy mount": [
        {"code": errno.ESTALE if kind in ("name", "open") else errno.EIO, "once": True, "kinds": (kind,)}
        for kind in KINDS
    ],
}


def kills(works: Iterable[Work], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """A line for each of ``count`` kills of each work, and for the end of each chain of them."""
    for work in works:
        random_, total, chain = random.Random(f"{seed}/{work.name}"), 0, 0
        while total < count:
            chain += 1
            for line in _chain(work, f"chain-{chain}", random_, min(EACH, count - total)):
                total += line["kind"] == "kill"
                yield line


def _chain(work: Work, name: str, random_: random.Random, most: int) -> Iterator[dict[str, Any]]:
    for _ in range(most):
        if random_.random() < 0.6:  # at an operation on files: windows of microseconds are hit too
            disk, after = Disk(at=random_.randint(1, work.operations // min(most, 3))), None
        else:
            disk, after = Disk(), random_.uniform(0, work.seconds * 0.8)
        end = work.run(name, disk, after)
        if not end.killed:
            assert end.code == 0, f"{work.name} {name}: nobody was killed, but {end}"
            break
        when = f"operation {disk.at}" if disk.at else f"{after:.6f} s"
        harm = work.lost(name, int(disk.counts[1]))
        yield {"kind": "kill", "work": work.name, "chain": name, "when": when, "harm": harm}
    end = work.run(name, Disk())
    harm = work.wrong(name) if end.code == 0 else f"it did not go on: {end}"
    yield {"kind": "end", "work": work.name, "chain": name, "harm": harm}
    shutil.rmtree(work.folder(name))


def faults(works: Iterable[Work], count: int) -> Iterator[dict[str, Any]]:
    """A line for each fault at ``count`` operations at most of each work."""
    for work in works:
        for fault, disks in FAULTS.items():
            for changes in disks:
                for at in LATER[:count]:
                    disk = Disk(at=at, **changes)
                    line = _disturbed(work, disk)
                    if disk.counts[0] < at:
                        break
                    kind = f", {disk.kinds[0]} fails once" if disk.once else ""
                    yield {"kind": "fault", "fault": f"{fault}{kind}", "case": f"{work.name}: operation {at}", **line}


def _disturbed(work: Work, disk: Disk) -> dict[str, Any]:
    """What a run with such a disk said, and what harm it was when it had gone on without."""
    end, marks = work.run("disturbed", disk), ("warning: ", "not stored: ", "failed: ")
    said = [text for text in end.said.splitlines() if "Error: " in text or text.startswith(marks)]
    harm = [] if end.code is not None else ["it had to be ended"]
    harm += ["a traceback"] if "Traceback" in end.said else []
    harm += [f"it ended with {end.code} and said nothing"] if end.code and not said else []
    harm += [work.lost("disturbed", int(disk.counts[1]))]
    again = work.run("disturbed", Disk())
    harm += [f"it did not go on: {again}"] if again.code != 0 else [work.wrong("disturbed")]
    harm += [f"left behind: {path.name}" for path in work.folder("disturbed").rglob("*.tmp")]
    shutil.rmtree(work.folder("disturbed"))
    return {"outcome": said[-1] if said else "it ended as if nothing had been", "harm": "; ".join(filter(None, harm))}
