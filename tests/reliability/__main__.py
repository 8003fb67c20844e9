"""``python -m tests.reliability kills|faults|fuzz``: see docs/reliability.md."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def tries(part: str, count: int, seed: int, only: list[str], place: Path) -> Iterator[dict[str, Any]]:
    """What came of each try, in folders below ``place``."""
    if part == "fuzz":
        from tests.reliability import fuzz

        return fuzz.campaign(count, seed, only, place)
    from tests.reliability import disturb, work

    works = work.everything(place, only)
    return disturb.kills(works, count, seed) if part == "kills" else disturb.faults(works, count)


def main() -> int:
    """Runs a part of the campaign; 1 if anything was lost, different, a traceback or a hang."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("part", choices=("kills", "faults", "fuzz"))
    parser.add_argument("--count", type=int, default=1000, help="kills, places of a fault, or fuzzed inputs")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--log", type=Path, help="gets a line of JSON for each try")
    parser.add_argument("--only", nargs="*", default=[], help="names of workloads, or of targets of the fuzzing")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    place, harm = Path(tempfile.mkdtemp(prefix="zobench-reliability-")), 0
    os.environ["ZOBENCH_CACHE_DIR"] = str(place / "cache")
    try:
        for line in tries(asked.part, asked.count, asked.seed, asked.only, place):
            harm += bool(line["harm"])
            text = json.dumps(line)
            print(text, flush=True)
            if asked.log is not None:
                with asked.log.open("a") as log:
                    log.write(text + "\n")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return min(harm, 1)


if __name__ == "__main__":
    sys.exit(main())
