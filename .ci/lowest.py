"""The least version of each requirement in pyproject.toml, all extras included, as constraints for pip: name==version.

``python .ci/lowest.py``. Of a package with two bounds the higher one. Needs no package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)$")
"""A name, perhaps with extras, and a least version; nothing else."""


def lowest(requirements: Iterable[str]) -> dict[str, str]:
    """Name -> least version of ``requirements``. Raises ``ValueError`` for one that does not say it."""
    found: dict[str, str] = {}
    for requirement in requirements:
        match = REQUIREMENT.match(requirement.partition(";")[0].strip())
        if match is None:
            raise ValueError(f"a requirement must be NAME>=VERSION, but got {requirement!r}; give its least version")
        name, version = match.groups()
        found[name] = max(found.get(name, "0"), version, key=_numbers)
    return found


def declared(pyproject: Path = PYPROJECT) -> list[str]:
    """What zobench and its extras require, but for zobench itself."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    return [one for one in [*project["dependencies"], *extras] if not one.startswith("zobench[")]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


if __name__ == "__main__":
    for name, version in lowest(declared()).items():
        print(f"{name}=={version}")
