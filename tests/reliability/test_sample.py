"""A sample of the campaign: nothing is lost by kills, no input is a traceback, two users do no harm."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import fuzz, targets
from tests.reliability.tuning import WAYS
from tests.reliability.workload import same
from tests.support import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a kill is a timer of Linux's")


def campaign(log: Path, *words: str) -> list[dict[str, Any]]:
    """The log's lines of a campaign in a process of its own, which has no threads and may fork."""
    done = warm.python(["-m", "tests.reliability", *words, "--log", str(log)], log.parent, os.environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("group", "count"),
    [
        ("merge and pack", 3),
        *(
            pytest.param(group, count, marks=pytest.mark.slow)
            for group, count in (("sweep", 3), ("ranks", 2), ("tuning", len(WAYS)))
        ),
    ],
)
def test_what_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path, group: str, count: int) -> None:
    lines = campaign(tmp_path / "log", "kills", "--only", group, "--count", str(count))
    kills, ends = ([line for line in lines if line["kind"] == kind] for kind in ("kill", "end"))
    assert len(kills) >= count
    assert len(ends) >= 1
    assert not [line for line in (*kills, *ends) if line["lost"] or line["differs"]]
    if group == "tuning":
        assert {line["work"] for line in ends} == WAYS.keys()


@pytest.mark.slow
def test_inputs_of_every_kind_are_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    lines = campaign(tmp_path / "log", "fuzz", "--count", "1200")
    assert {line["target"] for line in lines} == set(targets.TARGETS)
    assert not [finding for line in lines for finding in line["findings"]]
    assert sum(line["accepted"] for line in lines) > 100
    assert sum(line["refused"] for line in lines) > 500


def test_two_users_of_one_store_do_no_harm(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can be two users")
    lines = campaign(tmp_path / "log", "faults", "--only", "two users")
    assert len(lines) == 5
    assert not [line for line in lines if line.get("harm")]


def test_the_campaign_sees_what_it_looks_for(tmp_path: Path) -> None:
    """A reader that fails, hangs or writes elsewhere is found, and so is a run that ended otherwise."""

    def feed(random_: Any) -> bool:
        kind = random_.randrange(4)
        if kind == 0:
            raise KeyError("x")
        if kind == 1:
            raise ValueError("two\nlines")
        if kind == 2:
            (tmp_path / "escaped").touch()
        return True

    (tmp_path / "inside").mkdir()
    kinds = fuzz.batch("own", feed, 0, 40, 1, tmp_path / "inside")["kinds"]
    assert any(kind.startswith("KeyError at ? (test_sample.py:") for kind in kinds)
    assert any("a refusal of several lines" in kind for kind in kinds)
    assert any("files outside of the folder" in kind for kind in kinds)
    assert same({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == "b, c differ"
