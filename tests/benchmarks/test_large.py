"""Bytes of a model on a disk: an eighth of them at rest, and none written between two subspaces.

One that is larger than memory takes minutes and 26 GB of disk:
``python -m tests.benchmarks.large OPT-6.7B 16 5 integer``.
"""

import pytest

from tests.support.large import measure

SIZES = ["opt-tiny", pytest.param("OPT-125M", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", SIZES)
def test_int4_rests_in_an_eighth_and_is_only_read(name, monkeypatch):
    told = measure(name, 16, 2, "integer", monkeypatch)
    assert told["written"] == 0
    assert told["read"] == told["at rest"]
    within = 0.3 if name == "opt-tiny" else 0.02  # pages and vectors are a large part of a tiny one
    assert told["fp32"] / told["at rest"] == pytest.approx(8 / (1 + 8 * 2 / (64 * 4)), rel=within)


@pytest.mark.parametrize("name", SIZES)
def test_lozo_writes_nothing_between_two_subspaces(name, monkeypatch):
    told = measure(name, 16, 2, "low_rank", monkeypatch)
    assert told["written"] == 0
    assert told["read"] == told["at rest"] == pytest.approx(told["fp32"], rel=0.05)
