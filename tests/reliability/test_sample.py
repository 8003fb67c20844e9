"""A sample of the campaign: nothing is lost by kills or by a disk that fails, and no input is a traceback."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import fuzz
from tests.reliability.targets import TARGETS
from tests.support import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is forked, and its files are in /proc")


def campaign(log: Path, *words: str) -> list[dict[str, Any]]:
    """The log's lines of a campaign in a process of its own, which has no threads and may fork."""
    done = warm.python(["-m", "tests.reliability", *words, "--log", str(log)], log.parent, os.environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_what_a_full_disk_ends_goes_on_when_there_is_room(tmp_path: Path) -> None:
    lines = campaign(tmp_path / "log", "faults", "--count", "2", "--only", "merge and pack")
    assert not [line for line in lines if line["harm"]]
    assert {line["fault"].partition(",")[0] for line in lines} == {
        "disk full",
        "lossy mount",
        "mount that becomes read-only",
    }


@pytest.mark.parametrize(
    ("works", "count"),
    [
        (("merge and pack",), 3),
        pytest.param(("lazy", "eggroll", "qes", "async", "examined"), 2, marks=pytest.mark.slow),
    ],
)
def test_what_is_killed_goes_on_as_if_it_had_not_been(works: tuple[str, ...], count: int, tmp_path: Path) -> None:
    lines = campaign(tmp_path / "log", "kills", "--count", str(count), "--only", *works)
    assert not [line for line in lines if line["harm"]]
    assert [sum(line["kind"] == "kill" for line in lines if line["work"] == work) for work in works] == [count] * len(
        works
    )
    assert {line["work"] for line in lines if line["kind"] == "end"} == {*works}


@pytest.mark.slow
def test_inputs_of_every_kind_are_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    lines = campaign(tmp_path / "log", "fuzz", "--count", "650")
    assert {line["target"] for line in lines} == set(TARGETS)
    assert not [line["harm"] for line in lines if line["harm"]]
    assert sum(line["accepted"] for line in lines) > 80
    assert sum(line["refused"] for line in lines) > 350


def test_the_campaign_sees_what_it_looks_for(tmp_path: Path) -> None:
    """A reader that fails, refuses in two lines or writes elsewhere."""

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
    fuzz.KEPT = 50
    harm = fuzz.batch("mine", feed, range(40), 1, tmp_path / "inside")["harm"]
    assert "KeyError at ? (test_sample.py:" in harm
    assert "a refusal of several lines" in harm
    assert "files outside of the folder" in harm
