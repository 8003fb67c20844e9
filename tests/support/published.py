"""Results that are published, and the files that this makes."""

import functools
from pathlib import Path

from tests.support.tables import MIB, recorded, result
from zobench import recipes
from zobench.report import publish
from zobench.result import Result
from zobench.store import Store

RESULTS = [
    result("M1", memory=200 * MIB),
    result("M2", batch_size=4),
    recorded("M1", False),
    recorded("M1", True, seconds=0.5),
]


@functools.cache
def published() -> tuple[Result, ...]:
    """The runs in results/published, which are read once in a process: all of them take a second."""
    return tuple(Store(recipes.folder("published")).load())


def written(results: list[Result], out: Path, problems: tuple[str, ...] = ()) -> dict[str, bytes]:
    publish.publish(results, problems, out, lambda *_: None)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
