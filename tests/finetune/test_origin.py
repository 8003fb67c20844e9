"""Where a run resumes: with the threads and the kernels of attention that it began with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from zobench import RunSpec
from zobench.durable.journal import JournalFile
from zobench.engine import attention
from zobench.finetune.assemble import attention_kernels
from zobench.finetune.origin import JOURNAL, same_sums


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("header", "count"), [({"threads": 3}, 3), ({}, 2)])  # {}: of a run from before
def test_a_run_goes_on_with_as_many_threads_as_it_began_with(
    tmp_path: Path, header: dict[str, Any], count: int
) -> None:
    torch.set_num_threads(2)
    said: list[str] = []
    same_sums(RunSpec(model="opt-tiny"), tmp_path, said.append)
    assert (torch.get_num_threads(), said) == (2, [])  # nothing has begun here
    with JournalFile(tmp_path / JOURNAL, {"run": "a", "base": "b", **header}):
        pass
    same_sums(RunSpec(model="opt-tiny"), tmp_path, said.append)
    assert torch.get_num_threads() == count
    assert said == ["threads: 3, as the run began"] * (count == 3)


def test_a_run_goes_on_with_the_kernels_of_attention_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_CHOICES", {})
    spec = RunSpec(model="opt-tiny", attention="fast")
    with JournalFile(tmp_path / JOURNAL, {"run": "a", "base": "b", "attention": [[64, "products"], [2048, "fused"]]}):
        pass
    same_sums(spec, tmp_path, lambda text: None)
    assert attention_kernels(spec) == ((64, "products"), (2048, "fused"))
    assert attention_kernels(spec.replace(attention="model")) == ()
