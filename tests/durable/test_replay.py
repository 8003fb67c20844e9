"""Which snapshot a run goes on from."""

from pathlib import Path

import pytest
import torch

from zobench.durable import replay
from zobench.durable.snapshot import Writer, to_json
from zobench.engine.base import Position

HEADER = {"run": "0123", "base": "sha256 1"}


@pytest.mark.parametrize(("key", "taken"), [(None, True), ("run", False), ("base", False)])
def test_a_snapshot_of_another_run_or_base_is_left_out(tmp_path: Path, key: str | None, taken: bool) -> None:
    writer = Writer(tmp_path, 4)
    writer.add("a", 0, torch.zeros(4096, dtype=torch.uint8))
    writer.finish({**HEADER, "positions": to_json({"a": Position()})} | ({key: "another"} if key else {}))
    said: list[str] = []
    start = replay.newest(tmp_path, HEADER, [], said.append)
    assert (start is not None) is taken
    assert bool(said) is not taken
