"""Where a run resumes: with the threads and the kernels of attention that it began with."""

from collections.abc import Iterator

import pytest
import torch

from zobench import RunSpec
from zobench.durable.journal import JournalFile
from zobench.engine.passes import attention
from zobench.training.assemble import engine_config
from zobench.training.origin import JOURNAL, same_sums


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("header", "count"), [({"threads": 3}, 3), ({}, 2)])  # {}: of a run from before
def test_a_run_goes_on_with_as_many_threads_as_it_began_with(tmp_path, header, count) -> None:
    torch.set_num_threads(2)
    said: list[str] = []
    same_sums(RunSpec(model="opt-tiny"), tmp_path / JOURNAL, said.append)
    assert (torch.get_num_threads(), said) == (2, [])  # nothing has begun here
    with JournalFile(tmp_path / JOURNAL, {"run": "a", "base": "b", **header}):
        pass
    same_sums(RunSpec(model="opt-tiny"), tmp_path / JOURNAL, said.append)
    assert torch.get_num_threads() == count
    assert said == ["threads: 3, as the run began"] * (count == 3)


def test_a_run_goes_on_with_the_kernels_of_attention_that_it_began_with(tmp_path, monkeypatch) -> None:
    """And no other run of the process does."""
    monkeypatch.setattr(attention, "choice_of", lambda shape: pytest.fail("kernels that are known were timed"))
    spec = RunSpec(model="opt-tiny", attention="fast")
    with JournalFile(tmp_path / JOURNAL, {"run": "a", "base": "b", "attention": [[64, "products"], [2048, "fused"]]}):
        pass
    begun = same_sums(spec, tmp_path / JOURNAL, lambda text: None)
    monkeypatch.setattr(attention, "choice_of", lambda shape: ((2048, "fused"),))
    assert begun.attention == ((64, "products"), (2048, "fused"))
    assert engine_config(spec, begun).attention == begun.attention
    other = same_sums(spec, tmp_path / "new" / JOURNAL, print)
    assert engine_config(spec).attention == other.attention == ((2048, "fused"),)
    assert same_sums(spec.replace(attention="model"), tmp_path / JOURNAL, print).attention == ()
