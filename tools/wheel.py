"""Which of the published runs a wheel holds: those of OPT-350M in ``small-cpu``, which docs/quickstart.md shows.

All others, some megabytes, stay in the repository and the sdist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNS = "epyc-2c-2ca1ff/OPT-350M-*.json"


class PublishedRuns(BuildHookInterface[Any]):
    """A build hook, which pyproject.toml names, that adds these runs to ``zobench/recipes/published``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        published = Path(self.root) / "results" / "published"
        for path in sorted(published.glob(RUNS)):
            build_data["force_include"][str(path)] = f"zobench/recipes/published/{path.relative_to(published)}"
