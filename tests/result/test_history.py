"""Schema versions: every older one is upgraded step by step on reading, none is guessed."""

import json
from typing import Any

import pytest

from tests.support.files import written
from tests.support.stores import run, specs
from zobench.result import Result
from zobench.result.record import upgraded
from zobench.store import Store, machine_of

NOW = run(next(specs()))


LATER = {1: "trace", 2: "evaluation"}
"""Version -> the key that the next one added."""


def version(number: int) -> dict[str, Any]:
    """The same run as a file of version ``number`` had it."""
    missing = [key for before, key in LATER.items() if before >= number]
    return {key: value for key, value in NOW.to_dict().items() if key not in missing} | {"schema_version": number}


@pytest.mark.parametrize(("number", "added"), [(1, {"trace": {}, "evaluation": {}}), (2, {"evaluation": {}})])
def test_an_old_version_is_read_as_a_run_without_what_came_later(tmp_path, number, added) -> None:
    store = Store(tmp_path)
    path = written(store.path(NOW.spec, machine_of(NOW)), json.dumps(version(number)))
    (back,) = store.load()
    assert back.to_dict() == NOW.to_dict() | added
    assert json.loads(path.read_text())["schema_version"] == number  # reading leaves the file as it is
    store.save(back)
    assert json.loads(path.read_text())["schema_version"] == 3
    old = version(number)
    assert upgraded(old) == NOW.to_dict() | added
    assert old == version(number)


@pytest.mark.parametrize("number", [None, 0, 1.0, "1", True])
def test_a_version_that_never_was_is_no_result(number: object) -> None:
    with pytest.raises(ValueError, match=r"^`schema_version` must be 1 to 3, but got .*; this file is not a zobench"):
        Result.from_dict(NOW.to_dict() | {"schema_version": number})
