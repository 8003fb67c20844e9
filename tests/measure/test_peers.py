"""What ranks receive from each other: really exchanged, on loopback alone, and a reason where it cannot be measured."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from zobench.machine import accelerator
from zobench.measure import links


def listening() -> set[str]:
    """Local addresses, hexadecimal, at which this process accepts connections."""
    mine = set()
    for link in Path(f"/proc/{os.getpid()}/fd").iterdir():
        try:
            mine.add(os.readlink(link))
        except OSError:  # closed meanwhile
            continue
    found = set()
    for name in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            columns = row.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in mine:
                found.add(columns[1].partition(":")[0])
    return found


def test_two_ranks_have_each_others_half_and_listen_on_loopback_alone() -> None:
    store, slots = HashStore(), {rank: torch.full((10,), rank, dtype=torch.uint8) for rank in range(2)}
    listened: list[set[str]] = []
    before = listening()

    def rank(number: int) -> None:
        group = links._gloo(store, number)
        links._exchange_halves(group, slots[number])
        listened.append(listening() - before)
        links._exchange_halves(group, slots[number])  # so that neither is gone while the other looks

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [slots[number].tolist() for number in range(2)] == [[0] * 5 + [1] * 5] * 2
    assert len(listened) == 2
    assert set().union(*listened) <= {"0100007F"}


def test_without_peers_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(accelerator, "count", lambda: 1)
    assert links.between_rate("cuda:0", notes) is None
    assert notes == ["between ranks: none, because one GPU is visible"]


def test_what_gloo_says_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def gloo(store: object, rank: int) -> object:
        if rank == 1:
            raise RuntimeError("no\nroute")
        return SimpleNamespace(broadcast=lambda *_: SimpleNamespace(wait=lambda: None))

    monkeypatch.setattr(links, "_gloo", gloo)
    assert links.between_rate("cpu", notes) is None
    assert notes == ["between ranks: not measured (no route)"]
