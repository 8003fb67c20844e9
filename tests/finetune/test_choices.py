"""What a run takes where it was not told: packed rows, and products in bf16 where they are fast and g is alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zobench.durable.journal import JournalFile
from zobench.finetune import choices
from zobench.finetune.origin import JOURNAL
from zobench.runspec import RunSpec

FAST = {"fp32": 100e9, "bf16": 300e9}


@pytest.fixture
def chosen(spec: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The values that a run takes of a small model that counts as a large one, and what is said, on a machine with
    these rates."""
    monkeypatch.setattr(choices, "SMALLEST", 0)

    def choose(
        given: tuple[str, ...] = (), rates: dict[str, float] = FAST, folder: Path | None = None, **own: Any
    ) -> Any:
        monkeypatch.setattr(choices, "matmul_rate", lambda device, name, seconds: rates[name])
        said: list[str] = []
        taken = choices.chosen(spec(**own), given, folder, data_dir, said.append)
        return (taken.packed, taken.autocast, taken.attention), said

    return choose


def test_packed_rows_and_products_in_bf16_are_taken_and_their_reasons_said(chosen: Any) -> None:
    taken, said = chosen()
    assert taken == (True, "bf16", "fast")
    assert said[0].startswith("packed: true, because this model gives the same scores")
    assert said[-1].startswith(
        "autocast: bf16, weights and updates in fp32, because products reach 300 GFLOP/s in bf16"
    )
    assert "from float32's (at most 30%)" in said[-1]


def test_a_processor_without_fast_bf16_stays_with_float32(chosen: Any) -> None:
    taken, said = chosen(rates={"fp32": 100e9, "bf16": 20e9})
    assert taken == (True, "none", "model")
    assert said[-1] == "autocast: none, because products reach 20 GFLOP/s in bf16 and 100 in fp32 here"


def test_where_g_is_another_in_bf16_the_run_stays_with_float32(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "gradients", lambda spec, data: [-1.0, 2.0] if spec.autocast == "bf16" else [1.0, 2.0])
    taken, said = chosen()
    assert taken == (True, "none", "model")
    assert said[-1] == "autocast: none, because g of 4 steps is 89% from float32's (at most 30%)"


def test_what_was_told_stays(chosen: Any) -> None:
    assert chosen(given=("packed", "dtype"), dtype="bf16") == ((False, "none", "model"), [])
    assert chosen(given=("packed", "autocast"), autocast="none") == ((False, "none", "model"), [])
    assert chosen(given=("attention",))[0] == (True, "bf16", "model")


def test_nothing_is_chosen_for_backpropagation_or_a_small_model(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(method="fo-sgd") == ((False, "none", "model"), [])
    monkeypatch.setattr(choices, "SMALLEST", 10**9)
    assert chosen() == ((False, "none", "model"), [])


def test_a_run_that_has_begun_keeps_what_it_has(chosen: Any, spec: Any, tmp_path: Path) -> None:
    begun: RunSpec = spec(packed=True, attention="fast")
    with JournalFile(tmp_path / JOURNAL, {"run": begun.hash, "base": "b", "spec": begun.to_dict()}):
        pass
    assert chosen(folder=tmp_path) == ((True, "none", "fast"), [])
