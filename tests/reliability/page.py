"""The tables of docs/reliability.md, made of the logs."""

import re
from pathlib import Path

from tests.reliability import faults, fuzz, kills
from tests.reliability.log import Log

ROOT = Path(__file__).parents[2]
PAGE, LOGS = ROOT / "docs" / "reliability.md", ROOT / "results" / "reliability"
SUMMARIES = {"kills": kills.summary, "fuzz": fuzz.summary, "faults": faults.summary}


def renewed(text: str) -> str:
    """The page's ``text`` with each table as its log has it now."""
    for name, summary in SUMMARIES.items():
        between = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        table = summary(Log(LOGS / f"{name}.jsonl"))
        text, count = between.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        assert count == 1, f"{PAGE} needs one place for {name}, but has {count}"
    return text
