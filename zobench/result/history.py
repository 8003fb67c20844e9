"""The history of the result format: what each schema version changed, and the steps that bring an old file up to date.

1   The first version.
2   Adds `trace`: the process's memory over time. Version 1 recorded none, so there it is {}.
3   Adds `evaluation`: what a fine-tuning run came to. Version 2 had no such runs, so there it is {}.

`partial` and `round` came without a version: they stand only where they say something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA_VERSION = 3
"""The version that is written. A change of the format is a line above, a step below, and one more here."""

STEPS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    lambda values: {**values, "trace": {}},
    lambda values: {**values, "evaluation": {}},
)
"""The steps in order: the one at index i makes version i + 2 of version i + 1."""


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` of a result file of any version as the current one has them; the file itself stays as it is.

    Raises ``ValueError`` for a version that is newer than this zobench, or none.
    """
    version = values.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(
            f"`schema_version` must be 1 to {SCHEMA_VERSION}, but got {version!r}; this file is not a zobench result"
        )
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"`schema_version` must be 1 to {SCHEMA_VERSION}, but got {version}; a newer zobench wrote this file: "
            "upgrade zobench to read it"
        )
    current = dict(values)
    for step in STEPS[version - 1 :]:
        current = step(current)
    return {**current, "schema_version": SCHEMA_VERSION}
