"""``kill -9`` at random moments of everything that writes: chains of kills, each ended and compared bit for bit."""

import dataclasses
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.reliability import stored, tuning
from tests.reliability.log import Log
from tests.reliability.workload import Workload
from tests.support.small_task import write_data, write_weights

EACH = 8
"""Kills of a run before it may end, at most."""
TURNS = 10
SHARES = {"tuning": 0.6, "ranks": 0.1, "sweep": 0.1, "jobs": 0.1, "merge and pack": 0.1}
"""Of the kills."""


def workloads(place: Path) -> dict[str, list[Workload]]:
    """All of them by their group, in folders below ``place``."""
    weights, data = write_weights(made(place / "weights")), write_data(made(place / "data"))
    tuning.warm(weights)
    stored.warm()
    several = {name: made(place / name) for name in (*tuning.WAYS, *(f"ranks {key}" for key in tuning.RANKS))}
    runs = {name: tuning.Tuning(name, folder, weights, data) for name, folder in several.items()}
    writers: list[Workload] = [
        kind(made(place / kind.name)) for kind in (stored.Sweeping, stored.Working, stored.Merging)
    ]
    return {
        "tuning": [runs[name] for name in tuning.WAYS],
        "ranks": [runs[f"ranks {name}"] for name in tuning.RANKS],
        **{one.name: [one] for one in writers},
    }


def made(folder: Path) -> Path:
    """``folder``, which was not there."""
    folder.mkdir(parents=True)
    return folder


def chain(work: Workload, name: str, random_: random.Random, most: int) -> Iterator[dict[str, Any]]:
    """Kills ``work`` up to ``most`` times, lets it end, and yields a line of the log for each kill and for the end."""
    for _ in range(most):
        death = work.kill(name, random_)
        if death is None:
            break
        told = dataclasses.asdict(death)
        check = told.pop("check")
        yield {"kind": "kill", "work": work.name, "chain": name, **told, **check}
        if work.is_over(name):
            break
    yield {"kind": "end", "work": work.name, "chain": name, **dataclasses.asdict(work.finish(name))}


def campaign(log: Log, count: int, seed: int, only: str = "") -> int:
    """Kills until the log has ``count`` kills, shared out as :data:`SHARES` says; how many of them did harm."""
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    place = Path(tempfile.mkdtemp(prefix="zobench-kills-"))
    try:
        ready: set[str] = set()
        groups = {group: works for group, works in workloads(place).items() if only in ("", group)}
        for turn in range(1, TURNS + 1):  # in turns, so that one that is stopped has some of each
            for group, works in groups.items():
                share = 1.0 if only else SHARES[group]
                _group(log, group, works, round(count * share * turn / TURNS), seed, ready)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    lines = [*log.of("kill"), *log.of("end")]
    return sum(bool(line["lost"] or line["differs"]) for line in lines)


def _group(log: Log, group: str, works: list[Workload], count: int, seed: int, ready: set[str]) -> None:
    """Kills until ``count`` are in the log; ``ready``: workloads that have run without a kill in this process."""
    names = {work.name for work in works}
    done = {(line["work"], line["chain"]) for line in log.of("end")}
    total = sum(line["work"] in names for line in log.of("kill"))
    number = 0
    while total < count:
        work, name = works[number % len(works)], f"chain-{number}"
        number += 1
        if (work.name, name) in done:
            continue
        if work.name not in ready:
            work.whole()
            ready.add(work.name)
        most = min(EACH, max(1, round(count / len(works))), count - total)
        lines = list(chain(work, name, random.Random(f"{seed}/{work.name}/{name}"), most))
        log.add(*lines)
        total += len(lines) - 1
        harm = [line for line in lines if line["lost"] or line["differs"]]
        print(f"{group}: {total} of {count} kills; {work.name}: {len(lines) - 1}{', HARM' if harm else ''}", flush=True)


def summary(log: Log) -> str:
    """What the kills came to, as tables in Markdown: where they landed, and of what."""
    kills, ends = log.of("kill"), log.of("end")
    lost, differ = sum(line["lost"] for line in [*kills, *ends]), [line for line in [*kills, *ends] if line["differs"]]
    where = Counter((_family(line["work"]), line["phase"]) for line in kills)
    families = list(dict.fromkeys(family for family, _ in where))
    lines = [
        f"{len(kills)} kills in {len(ends)} runs; lost: {lost}; different: {len(differ)}.", "",
        "| killed in | " + " | ".join(families) + " | all |", "|---|" + "---:|" * (len(families) + 1),
    ]  # fmt: skip
    for phase, total in Counter(line["phase"] for line in kills).most_common():
        row = [str(where[family, phase] or "") for family in families]
        lines.append(f"| {phase} | {' | '.join(row)} | {total} |")
    totals = Counter(_family(line["work"]) for line in kills)
    lines.append(f"| all | {' | '.join(str(totals[family]) for family in families)} | {len(kills)} |")
    ways = Counter(line["work"] for line in kills)
    lines += ["", "By way: " + ", ".join(f"{name} {count}" for name, count in sorted(ways.items())) + "."]
    return "\n".join(lines)


def _family(work: str) -> str:
    return "two ranks" if work.startswith("ranks ") else work if work in SHARES else "fine-tuning"
