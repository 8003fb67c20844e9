"""Predicted timelines: the stored ones are those of the engine and the savers today, and keep the paper's order."""

from typing import Any

import pytest

from tools import timelines as written
from tools.timelines import timeline
from zobench.cost import hardware
from zobench.models import checked
from zobench.report import recorded
from zobench.runspec import RunSpec

CARD = hardware.load(recorded.GPU)


def events(kind: str, **fields: Any) -> list[Any]:
    values = {"model": "opt-mini", "engine": "offload", "seq_len": 64, "checkpoint": kind, "checkpoint_every": 4}
    return timeline(checked(RunSpec.from_dict({**values, **fields}), "cuda:0"), CARD)


def ends(found: list[Any], kind: str) -> dict[int, list[tuple[float, float]]]:
    by_block: dict[int, list[tuple[float, float]]] = {}
    for _, name, block, start, end in found:
        if name == kind:
            by_block.setdefault(block, []).append((start, end))
    return by_block


@pytest.mark.slow
def test_the_stored_timelines_are_made_by_the_engine_as_it_is() -> None:
    """One of them anew: the others come out of the same program."""
    assert len(recorded.stored()) == len(recorded.FORMS)
    number = next(k for k, form in enumerate(recorded.FORMS) if form.get("checkpoint") == "async")
    made = written.made(recorded.FORMS[number])
    assert [list(event[:3]) for event in made] == [event[:3] for event in recorded.stored()[number].timeline]
    pairs = zip(made, recorded.stored()[number].timeline, strict=True)
    assert all(one[3:] == pytest.approx(other[3:], abs=2e-6) for one, other in pairs)


def test_the_papers_scheme_copies_a_half_while_the_other_is_computed() -> None:
    found = events("async")
    computed, copied, saved = (ends(found, kind) for kind in ("compute", "copy", "save"))
    layers = len(computed)
    assert layers >= 2
    half = layers // 2
    assert set(copied) >= set(range(layers))
    for block in range(half):  # not before the second half began, and done before it is changed again
        assert copied[block][-1][0] >= computed[half - 1][0][1]
        assert copied[block][-1][1] <= computed[block][1][0]
    for block in range(half, layers):  # as it was after the step
        assert copied[block][-1][0] >= computed[layers - 1][0][1]
        assert copied[block][-1][1] <= computed[block][1][0]
    assert all(saved[block][-1][0] >= copied[block][-1][1] for block in set(saved) & set(range(layers)))
