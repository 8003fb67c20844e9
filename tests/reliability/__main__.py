"""``python -m tests.reliability kills|fuzz|faults|soak|summary``: see docs/reliability.md."""

import argparse
import sys
from pathlib import Path

from tests.reliability.log import Log


def main() -> int:
    """Runs a part of the campaign, or goes on with it; 1 if anything was lost, different, a traceback or a hang."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("part", choices=("kills", "fuzz", "faults", "soak", "summary"))
    parser.add_argument("--count", type=int, default=1000, help="kills, or fuzzed inputs, that the log shall have")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--log", type=Path, help="lines of JSON; a campaign goes on where this ends")
    parser.add_argument("--only", default="", help="one group of kills, one target of the fuzzing, or one fault")
    asked = parser.parse_args()
    log = Log(asked.log)
    if asked.part == "kills":
        from tests.reliability import kills

        harm = kills.campaign(log, asked.count, asked.seed, asked.only)
        print(kills.summary(log))
    elif asked.part == "fuzz":
        from tests.reliability import fuzz

        harm = fuzz.campaign(log, asked.count, asked.seed, asked.only)
        print(fuzz.summary(log))
    elif asked.part == "summary":
        from tests.reliability import page

        harm = 0
        page.PAGE.write_text(page.renewed(page.PAGE.read_text()))
    else:
        from tests.reliability import faults

        harm = faults.campaign(log, asked.part, asked.only)
        print(faults.summary(log))
    return min(harm, 1)


if __name__ == "__main__":
    sys.exit(main())
