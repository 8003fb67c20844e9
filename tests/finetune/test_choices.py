"""What a run takes where it was not told: packed rows, and products in bf16 where they are fast and g is alike."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.causal import model_of
from tests.support.files import written
from zobench import Engine, EngineConfig, models
from zobench.durable.journal import JournalFile
from zobench.engine.base import Entry
from zobench.runspec import RunSpec
from zobench.session.tuning import spec_of_run, tuned_spec
from zobench.training import choices
from zobench.training.origin import JOURNAL
from zobench.training.run import finetune

FAST = {"fp32": 100e9, "bf16": 300e9}


@pytest.fixture
def chosen(spec: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The values that a run takes of a small model that counts as a large one, and what is said, on a machine with
    these rates."""
    monkeypatch.setattr(choices, "SMALLEST", 0)

    def choose(
        given: tuple[str, ...] = (), rates: dict[str, float] = FAST, folder: Path | None = None, **fields: Any
    ) -> Any:
        monkeypatch.setattr(choices, "matmul_rate", lambda device, name, seconds: rates[name])
        said: list[str] = []
        taken = choices.chosen(spec(**fields), given, folder, data_dir, said.append)
        return (taken.packed, taken.autocast, taken.attention), said

    return choose


def test_packed_rows_and_products_in_bf16_are_taken_and_their_reasons_said(chosen: Any) -> None:
    taken, said = chosen()
    assert taken == (True, "bf16", "fast")
    assert said[0].startswith("packed: true, because this model gives the same scores")
    assert re.search(r"g along 16 directions is \d+% from float32's.*\(30% is allowed\)", said[-1])


@pytest.mark.parametrize(
    ("rates", "apart", "taken", "why"),
    [
        ({"fp32": 100e9, "bf16": 20e9}, 0.0, "none", "because products reach 20 GFLOP/s in bf16 and 100 in fp32 here"),
        (FAST, 0.19, "bf16", "because products reach 300 GFLOP/s in bf16"),
        (FAST, 0.21, "none", "because g along 16 directions is 21% from float32's, so with 95 % confidence at most"),
    ],
)
def test_bf16_needs_fast_products_and_a_g_that_is_surely_alike(chosen, monkeypatch, rates, apart, taken, why) -> None:
    monkeypatch.setattr(choices, "gradients", lambda spec, data: [1 + apart * (spec.autocast == "bf16")] * 16)
    (_, autocast, _), said = chosen(rates=rates)
    assert autocast == taken
    assert why in said[-1]


def test_a_model_that_cannot_be_driven_in_bf16_stays_with_float32(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(spec: RunSpec, data: Any) -> list[float]:
        if spec.autocast == refused:
            raise ValueError("its attention asks for sdpa by name")
        return [1.0]

    monkeypatch.setattr(choices, "gradients", gradients)
    refused = "bf16"
    assert chosen()[0] == (True, "none", "model")
    refused = "none"  # what float32 cannot is no fault of bf16, and the run's own error
    with pytest.raises(ValueError, match=r"^its attention asks for sdpa by name$"):
        chosen()


def test_the_interval_of_the_distance_covers_95_of_100() -> None:
    """Of g that are normal, and differences a fifth as large."""
    generator = torch.Generator().manual_seed(0)
    exact, noise = torch.randn(2, 4000, choices.DIRECTIONS, generator=generator, dtype=torch.float64)
    pairs = zip(exact.tolist(), (exact + 0.2 * noise).tolist(), strict=True)
    apart = [choices.distance(*pair) for pair in pairs]
    assert sum(choices.WIDER * distance > 0.2 for distance in apart) / len(apart) == pytest.approx(0.95, abs=0.01)


def test_where_no_loss_moves_nothing_is_alike() -> None:
    assert choices.distance([0.0] * 4, [5.0] * 4) == choices.distance([0.0] * 4, [0.0] * 4) == float("inf")
    assert choices.distance([3.0, 4.0], [3.0, 4.0]) == 0
    assert choices.distance([3.0, 4.0], [float("nan"), 4.0]) == float("inf")


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


def test_no_update_is_lost_at_a_small_learning_rate() -> None:
    """Of weights in float32 with products in bf16, at lr = 1e-6; weights in bf16 lose nearly all of it."""
    shares = {}
    for name, dtype, autocast in (("cast", torch.float32, "bf16"), ("bf16", torch.bfloat16, "none")):
        model = model_of("llama").to(dtype)
        before = {key: tensor.detach().double().clone() for key, tensor in model.named_parameters()}
        with Engine(model, EngineConfig(placement="resident", noise="counter", autocast=autocast)) as engine:
            engine.commit([Entry(step=0, seed=5, g=1.0, lr=1e-6)])
            after = {key: tensor.double() for key, tensor in engine.named_tensors()}
        moved = math.fsum(float((after[key] - before[key]).abs().sum()) for key in before)
        shares[name] = moved / (1e-6 * math.sqrt(2 / math.pi) * sum(key.numel() for key in before.values()))
    assert shares["cast"] == pytest.approx(1, abs=0.02)
    assert shares["bf16"] < 0.2


def test_a_run_resumes_whose_task_file_or_model_was_moved(tmp_path, monkeypatch) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a fine film", "good": 1}\n{"text": "a dull plot", "good": 0}\n' * 4)
    text = (
        '[data]\npath = "rows.jsonl"\nsplit = { seed = 0, dev = 2, test = 2 }\n[prompt]\ntemplate = "{text} It was"\n'
    )
    (tmp_path / "mine.toml").write_text(text + '[labels]\ncolumn = "good"\nwords = { 0 = "bad", 1 = "good" }\n')
    models.build_config("opt-tiny").save_pretrained(tmp_path / "first")
    asked = {"model": str(tmp_path / "first"), "task": str(tmp_path / "mine.toml"), "weights": "random"}
    ran, _ = tuned_spec(dict(asked), "cpu")
    monkeypatch.setattr("zobench.session.tuning.begun", lambda folder: ran)
    (tmp_path / "first").rename(tmp_path / "moved")
    (tmp_path / "mine.toml").rename(tmp_path / "mine2.toml")
    (tmp_path / "mine2.toml").write_text('name = "mine"\n' + (tmp_path / "mine2.toml").read_text())
    elsewhere = {"model": str(tmp_path / "moved"), "task": str(tmp_path / "mine2.toml")}
    resumed, _ = spec_of_run(elsewhere, "auto", tmp_path)
    assert (resumed.hash, resumed.model_path, resumed.task_file) == (ran.hash, *elsewhere.values())
    with pytest.raises(ValueError, match=r"but got lr=0\.5, which it does not have"):
        spec_of_run({**elsewhere, "lr": 0.5}, "auto", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "wanted"), [(0, 0.544), (1, 0.555)])
def test_a_run_with_products_in_bf16_ends_where_float32_does(seed, wanted, spec, data_dir, tmp_path) -> None:
    """Every sentence is positive, so dev's loss falls evenly from 0.735, by 0.16 to 0.19 for seeds 0 to 5, and
    no last digit sends a run another way: the two forms end within 0.001 of each other. lr * g is so small that updates
    rounded to bf16 leave the loss 0.02 higher."""
    for file in (data_dir / "SST-2").iterdir():
        written(tmp_path / "SST-2" / file.name, file.read_text().replace("\t0\n", "\t1\n"))
    settings = {"noise": "counter", "law": "rademacher", "lr": 1e-5, "eps": 1e-2, "queries": 4, "packed": True}
    times = {"batch_size": 8, "steps": 250, "eval_every": 250}
    for name, how in (("fp32", {}), ("cast", {"autocast": "bf16", "attention": "fast"})):
        result = finetune(
            spec(**settings, **times, **how, seed=seed), folder=tmp_path / name, data_dir=tmp_path, examine=False
        )
        begun, ended = (row[1] for row in result.evaluation["curve"])
        assert ended < begun - 0.15, name
        assert ended == pytest.approx(wanted, abs=0.006), name
