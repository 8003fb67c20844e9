"""Predicted timelines: the stored ones are those of the engine and the savers today, and keep the paper's order."""

import pytest

from tools import timelines as written
from zobench.report import recorded


@pytest.mark.slow
def test_the_stored_timelines_are_made_by_the_engine_as_it_is() -> None:
    """One of them anew: the others come out of the same program."""
    assert len(recorded.stored()) == len(recorded.FORMS)
    number = next(k for k, form in enumerate(recorded.FORMS) if form.get("checkpoint") == "async")
    made = written.made(recorded.FORMS[number])
    assert [list(event[:3]) for event in made] == [event[:3] for event in recorded.stored()[number].timeline]
    pairs = zip(made, recorded.stored()[number].timeline, strict=True)
    assert all(pair[3:] == pytest.approx(other[3:], abs=2e-6) for pair, other in pairs)
