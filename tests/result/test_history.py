"""Schema versions: every older one is upgraded step by step on reading, none is guessed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import run, specs
from zobench.result import Result, history
from zobench.result.history import SCHEMA_VERSION, STEPS, upgraded
from zobench.store import Store, machine_of

NOW = run(next(specs()))


LATER = {1: "trace", 2: "evaluation"}
"""Version -> the key that the next one added."""


def version(number: int) -> dict[str, Any]:
    """The same run as a file of version ``number`` had it."""
    missing = [key for before, key in LATER.items() if before >= number]
    return {key: value for key, value in NOW.to_dict().items() if key not in missing} | {"schema_version": number}


def test_every_version_but_the_current_has_a_step_and_every_version_a_line_of_history() -> None:
    assert len(STEPS) == SCHEMA_VERSION - 1
    told = re.findall(r"^(\d+)   \S", history.__doc__ or "", re.MULTILINE)
    assert told == [str(version) for version in range(1, SCHEMA_VERSION + 1)]


def test_writing_is_always_in_the_current_version() -> None:
    assert NOW.to_dict()["schema_version"] == SCHEMA_VERSION == 3


@pytest.mark.parametrize(("number", "added"), [(1, {"trace": {}, "evaluation": {}}), (2, {"evaluation": {}})])
def test_an_old_version_is_read_as_a_run_without_what_came_later(tmp_path, number, added) -> None:
    store = Store(tmp_path)
    path = store.path(NOW.spec, machine_of(NOW))
    path.parent.mkdir()
    path.write_text(json.dumps(version(number)))
    (back,) = store.load()
    assert back.to_dict() == NOW.to_dict() | added
    assert json.loads(path.read_text())["schema_version"] == number  # reading leaves the file as it is
    store.save(back)
    assert json.loads(path.read_text())["schema_version"] == 3


@pytest.mark.parametrize(("number", "added"), [(1, {"trace": {}, "evaluation": {}}), (2, {"evaluation": {}})])
def test_upgrading_leaves_what_it_was_given_alone(number: int, added: dict[str, Any]) -> None:
    old = version(number)
    assert upgraded(old) == NOW.to_dict() | added
    assert old == version(number)


@pytest.mark.parametrize("number", [None, 0, -1, 1.0, "1", True, [1]])
def test_a_version_that_never_was_is_no_result(number: object) -> None:
    with pytest.raises(ValueError, match=r"^`schema_version` must be 1 to 3, but got .*; this file is not a zobench"):
        Result.from_dict(NOW.to_dict() | {"schema_version": number})


def test_a_newer_version_is_named_with_its_file_and_the_remedy_and_the_rest_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(NOW)
    newer = tmp_path / machine_of(NOW) / "newer.json"
    newer.write_text(json.dumps(NOW.to_dict() | {"schema_version": 4}))
    assert store.load() == [NOW]
    assert store.problems == [
        f"{newer}: `schema_version` must be 1 to 3, but got 4; a newer zobench wrote this file: "
        "upgrade zobench to read it"
    ]


def test_a_field_of_the_spec_that_this_version_does_not_know_is_a_problem(tmp_path: Path) -> None:
    values = version(1)
    values["spec"]["warp"] = 9
    path = tmp_path / machine_of(NOW) / "old.json"
    path.parent.mkdir()
    path.write_text(json.dumps(values))
    store = Store(tmp_path)
    assert store.load() == []
    assert store.problems[0].startswith(f"{path}: unknown key 'warp'; ")
