"""What ranks receive from each other: really exchanged, on loopback alone, and a reason where it cannot be measured."""

import os

import pytest
import torch
from torch.distributed import HashStore

from tests.support.processes import listeners, side_by_side
from zobench.machine import accelerator
from zobench.measure import calibrate


def test_two_ranks_have_each_others_half_and_listen_on_loopback_alone() -> None:
    store, slots = HashStore(), {rank: torch.full((10,), rank, dtype=torch.uint8) for rank in range(2)}
    listened: list[set[str]] = []
    before = listeners({os.getpid()})

    def rank(number: int) -> None:
        group = calibrate._gloo(store, number)
        calibrate._exchange_halves(group, slots[number])
        listened.append(listeners({os.getpid()}) - before)
        calibrate._exchange_halves(group, slots[number])  # so that neither is gone while the other looks

    side_by_side(rank, range(2))
    assert [slots[number].tolist() for number in range(2)] == [[0] * 5 + [1] * 5] * 2
    assert len(listened) == 2
    assert set().union(*listened) <= {"127.0.0.1"}


def test_without_peers_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(accelerator, "count", lambda: 1)
    assert calibrate.between_rate("cuda:0", notes) is None
    assert notes == ["between ranks: none, because one GPU is visible"]
