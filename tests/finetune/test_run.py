"""A fine-tuning run: what it tells and keeps, and that stopping and going on changes no bit."""

import itertools
import math
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.callbacks import Acting, MachineDownError, crash
from tests.support.files import written
from tests.support.watched import before
from zobench import models
from zobench.cost import sizes
from zobench.durable import journal, snapshot
from zobench.engine import Engine
from zobench.methods.base import Taken
from zobench.models import tokenizers
from zobench.programs.cell import run as measured
from zobench.report.choice import dev_loss
from zobench.report.recorded import curve
from zobench.result import Outcome, Result
from zobench.result.examples import unpacked
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.registries import METRICS
from zobench.training import Interrupted, examine
from zobench.training import finetune as run
from zobench.training.examine import best_weights
from zobench.training.keeper import best
from zobench.training.training import Stop

WAYS: dict[str, dict[str, Any]] = {
    "tiles": {
        "engine": "offload", "noise": "counter", "granularity": "tile", "queries": 2, "lr_schedule": "cosine",
        "weight_decay": 0.1,
    },
    "momentum": {"method": "zo-sgd-mmt", "engine": "offload"},
    "adam": {"method": "zo-adam", "engine": "offload", "noise": "counter"},
    "adam resident": {"method": "zo-adam", "definition": "as-shipped"},
    "lazy": {"engine": "offload", "noise": "counter", "writeback_every": 3, "dtype": "bf16"},
    "block on a wire": {"method": "zo-sgd-block", "engine": "offload", "wire": "fp16"},
    "cons in place": {"method": "zo-sgd-cons", "engine": "offload", "tier": "pageable", "dtype": "bf16"},
    "fzoo": {"method": "fzoo", "queries": 3, "engine": "offload", "noise": "counter", "writeback_every": 3},
    "hizoo": {"method": "hizoo", "engine": "offload", "options": {"smooth": 1e-3}},
    "qzo late": {"method": "qzo", "engine": "offload", "lr": 1e-5, "noise": "counter", "writeback_every": 3},
    "moments late": {"method": "adamezo", "engine": "offload", "noise": "counter", "writeback_every": 3, "lr": 1e-4},
    "sparse mezo": {"method": "sparse-mezo", "sparsity": 0.5, "engine": "offload", "noise": "counter"},
    "cone in place": {"method": "conmezo", "definition": "as-shipped", "dtype": "bf16"},
    "forward micro": {"method": "forward-grad", "scheme": "prefix", "accumulate": 2, "engine": "offload"},
    "packed lozo": {
        "packed": True, "accumulate": 2, "method": "lozo-m", "options": {"interval": 3}, "engine": "offload",
        "noise": "counter", "granularity": "tile",
    },
    "late muon": {
        "method": "zo-muon", "definition": "as-shipped", "options": {"interval": 3}, "queries": 2,
        "engine": "offload", "noise": "counter", "writeback_every": 7,
    },
    "cast": {"autocast": "bf16", "attention": "fast", "packed": True, "engine": "offload", "noise": "counter"},
    "first order": {"method": "fo-adam", "autocast": "fp16", "weight_decay": 0.1},
    "hybrid": {"method": "hybrid", "zo_layers": 1},
    "lora": {"scheme": "lora", "method": "zo-sgd-mmt", "engine": "offload"},
}  # fmt: skip
BACK = ("first order", "hybrid")
"""A journal brings back all the others."""
KILLED = ("lazy",)
"""Which tests/reliability/test_sample.py kills, as it does QES and EGGROLL, and compares as these are."""
SLOW = (
    "tiles", "block on a wire", "adam resident", "hizoo", "qzo late", "sparse mezo", "cone in place", "late muon",
    "hybrid",
)  # fmt: skip
"""Each of their settings is in another way too, or is a rule whose state another's is like."""


def test_a_device_that_is_not_chosen_yet_is_chosen(spec: Any, data_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("zobench.machine.accelerator.count", lambda: 0)
    asked = spec(steps=2, eval_every=2)
    done = run(asked.replace(device="auto"), folder=tmp_path, data_dir=data_dir)
    assert (done.outcome, done.spec) == (Outcome.OK, asked)


def weights(spec: RunSpec, folder: Path, step: int) -> dict[str, torch.Tensor]:
    """All weights and optimizer state of a run after ``step`` steps, from its folder."""
    with best_weights(spec, folder, step, print) as built:
        return {**dict(built.engine.named_tensors()), **dict(built.engine.state_tensors())}


def equal(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return first.keys() == other.keys() and all(
        torch.equal(first[name].view(torch.uint8), other[name].view(torch.uint8)) for name in first
    )


def items(folder: Path) -> list[Any]:
    """What the journal tells, but how long it took."""
    entries = journal.read(folder / "journal.bin")[1]
    return [replace(item, seconds=0.0) if isinstance(item, Taken) else item for item in entries]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def assert_same(first: Path, other: Path, left: Result, right: Result) -> None:
    assert left.evaluation == right.evaluation
    assert [left.samples[name] for name in ("loss", "projected_grad")] == [
        right.samples[name] for name in ("loss", "projected_grad")
    ]
    assert len(left.samples["step_seconds"]) == len(right.samples["step_seconds"]) == left.spec.steps
    assert items(first) == items(other)
    assert (first / "curve.jsonl").read_text() == (other / "curve.jsonl").read_text()
    step = left.spec.steps
    mine = weights(left.spec, first, step)
    assert equal(mine, weights(left.spec, other, step))
    if not METHODS.get(left.spec.method).backpropagates:
        snapshot.prune(other, ())
        assert equal(mine, weights(left.spec, other, step))  # of the base and the journal alone


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS if way not in KILLED]
)
def test_a_run_that_crashed_or_was_stopped_ends_as_one_that_was_not(way, spec, data_dir, tmp_path) -> None:
    wanted = spec(**WAYS[way])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = run(wanted, folder=whole, data_dir=data_dir, examine=False)
    with pytest.raises(MachineDownError):
        run(wanted, folder=parts, data_dir=data_dir, examine=False, callbacks=[Acting({6: crash})])
    assert snapshot.steps(parts)[-1] == 4
    with pytest.raises(Interrupted, match="stopped after 7 steps"):
        run(wanted, folder=parts, data_dir=data_dir, examine=False, callbacks=[Acting({7: terminate})])
    listener = Acting()
    resumed = run(wanted, folder=parts, data_dir=data_dir, examine=False, callbacks=[listener], resume=True)
    assert listener.starts == [7]
    assert_same(whole, parts, expected, resumed)
    losses = expected.samples["loss"]
    assert None not in losses
    assert len(set(losses)) > 8  # it moves


def test_a_crash_repeats_no_step_that_was_done(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    listener = Acting(dict.fromkeys((3, 6, 9, 10), crash))
    for _ in range(4):
        with pytest.raises(MachineDownError):
            run(spec(), folder=tmp_path, data_dir=data_dir, examine=False, callbacks=[listener])
    assert listener.starts == [0, 3, 6, 9]


@pytest.mark.parametrize("way", ["momentum", "adam resident", "first order", "lora"])
def test_a_snapshot_takes_what_was_predicted(way: str, spec: Any, data_dir: Path, tmp_path: Path) -> None:
    """Units also hold what aligns their tensors, to 64 bytes each and to pages."""
    wanted = spec(**WAYS[way])
    run(wanted, folder=tmp_path, data_dir=data_dir, examine=False)
    files = (tmp_path / "snapshot-10").glob("*.safetensors")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    taken = sum(tensor.nbytes for name, tensor in tensors.items() if not name.endswith("#step"))
    room = 0 if way in BACK else sum(4096 + 64 * 64 for _ in tensors)
    assert 0 <= taken - sizes.snapshot_bytes(wanted) <= room


def test_a_run_stopped_while_it_evaluates_goes_on_there(spec, data_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("zobench.training.evaluate.room", lambda spec: 0)  # two batches of dev, each as large as a step
    wanted, calls = spec(), itertools.count(1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = run(wanted, folder=whole, data_dir=data_dir, examine=False)
    # the third call is of two batches of dev after 0 steps, and the first of two after 4
    before(monkeypatch.setattr, Engine, "scores", lambda *_: terminate() if next(calls) == 3 else None)
    with pytest.raises(Interrupted):
        run(wanted, folder=parts, data_dir=data_dir, examine=False)
    assert [item.step for item in items(parts)] == [0, 0, 1, 2, 3]  # an evaluation and four steps
    assert snapshot.steps(parts) == [4]
    assert_same(whole, parts, expected, run(wanted, folder=parts, data_dir=data_dir, examine=False))


def test_the_curve_its_best_and_the_test_set(spec, data_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[run.__module__], "_TRAININGS", itertools.count())
    listener, wanted = Acting(), spec(lr=1e-2, lr_schedule="linear")
    result = run(wanted, folder=tmp_path, data_dir=data_dir, callbacks=[listener])
    seen, moments = listener.evaluations, listener.steps
    evaluation = result.evaluation
    assert result.outcome is Outcome.OK
    assert [row[0] for row in evaluation["curve"]] == [0, 4, 8, 10]
    assert evaluation["curve"] == [[e.step, e.loss, e.accuracy] for e in seen[:4]]
    assert evaluation["start"] == {"step": 0, "loss": seen[0].loss, "accuracy": seen[0].accuracy, "count": 12}
    lowest = min(seen[1:4], key=lambda e: e.loss)
    assert evaluation["best"] == {"step": lowest.step, "loss": lowest.loss, "accuracy": lowest.accuracy, "count": 12}
    assert (seen[4].split, seen[4].step, seen[4].count) == ("test", lowest.step, 16)
    assert evaluation["test"] == {"step": lowest.step, "loss": seen[4].loss, "accuracy": seen[4].accuracy, "count": 16}
    assert evaluation["majority"]["test"] == 0.5
    read = [METRICS.get(name).of(result) for name in ("accuracy", "dev_accuracy", "start_accuracy")]
    assert read == [evaluation[part]["accuracy"] for part in ("test", "best", "start")]
    assert list(curve(result)) == [0, 4, 8, 10]
    assert dev_loss(result) == evaluation["best"]["loss"]
    assert evaluation["task"]["counts"] == {"train": 24, "dev": 12, "test": 16}
    assert [moment.lr for moment in moments] == [1e-2 * (1 - step / 10) for step in range(10)]
    assert [moment.loss for moment in moments] == result.samples["loss"]
    assert (result.memory["device_peak_bytes"] or 0) > 0
    assert run(wanted, folder=tmp_path, data_dir=tmp_path / "absent").to_dict() == result.to_dict()
    assert snapshot.steps(tmp_path) == []
    second = run(spec(), folder=tmp_path / "second", data_dir=data_dir, examine=False)
    assert second.memory["device_peak_bytes"] is None
    assert "a run before it shares its process" in second.warnings[-1]


def test_the_saved_model_is_the_best_and_judges_as_the_run_did(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    wanted = spec(lr=1e-2)
    trained = run(wanted, folder=tmp_path, data_dir=data_dir, examine=False)
    kept = weights(wanted, tmp_path, trained.evaluation["best"]["step"])
    result = run(wanted, folder=tmp_path, data_dir=data_dir)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    words = AutoTokenizer.from_pretrained(tmp_path / "model")
    loaded = dict(model.named_parameters())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in kept.items())
    assert kept.keys() == loaded.keys()

    reference = models.build("opt-tiny", "fp32").to_empty(device="cpu")
    reference.load_state_dict(kept, strict=False)
    reference.tie_weights()
    ids = words("a warm film It was great", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(ids).logits, reference(ids).logits)

    rows = [line.split("\t") for line in (data_dir / "SST-2" / "dev.tsv").read_text().splitlines()[1:]]
    right, loss = 0, 0.0
    for sentence, label in rows:
        with torch.no_grad():
            logits = model(words(f"{sentence} It was", return_tensors="pt").input_ids).logits[0, -1].log_softmax(-1)
        scores = logits[words.convert_tokens_to_ids(["terrible", "great"])]
        right += int(scores.argmax()) == int(label)
        loss -= float(scores.log_softmax(-1)[int(label)]) / len(rows)
    assert result.evaluation["test"]["accuracy"] == right / len(rows)
    assert result.evaluation["test"]["loss"] == pytest.approx(loss, rel=1e-5)
    each = unpacked(result.evaluation)
    assert (each.right.sum(), each.loss.mean(dtype=float)) == (right, pytest.approx(loss, rel=1e-3))


@pytest.mark.parametrize("changes", [{"length_grouping": True}, {"packed": True}], ids=str)
def test_examples_are_kept_in_the_order_of_the_split(changes: Any, spec: Any, data_dir: Path, tmp_path: Path) -> None:
    """Runs are paired by them, whatever the order in which they were evaluated."""
    kept = []
    for number, fields in enumerate([{}, changes]):
        result = run(spec(lr=0.0, noise="counter", **fields), folder=tmp_path / str(number), data_dir=data_dir)
        kept.append(unpacked(result.evaluation))
    plain, sorted_by_length = kept
    assert plain is not None and sorted_by_length is not None  # noqa: PT018
    assert list(sorted_by_length.loss) == pytest.approx(list(plain.loss), abs=2e-3)
    assert len({float(loss) for loss in plain.loss}) > 8  # else any order would do


def test_a_step_whose_g_is_not_finite_is_skipped_counted_and_told(spec, data_dir, tmp_path, monkeypatch) -> None:
    probe, calls = Engine.probe, 0

    def sometimes(self: Engine, batch: Any, points: Any) -> list[float]:
        nonlocal calls
        calls += 1
        losses = probe(self, batch, points)
        return [math.nan, 1.0] if calls in (3, 5) else losses

    monkeypatch.setattr(Engine, "probe", sometimes)
    listener = Acting()
    result = run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=[listener])
    assert result.skipped_updates == 2
    assert [step.skipped for step in listener.steps] == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2]
    record = journal.read(tmp_path / "journal.bin")[1]
    assert [entry.step for item in record for entry in item.entries] == [0, 1, 3, 5, 6, 7, 8, 9]
    assert result.warnings[0] == "2 updates were skipped, because their projected gradient was not finite"
    assert result.to_dict()["samples"]["loss"][2] is None


def test_a_run_goes_on_with_its_own_examples_alone(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    wanted, folder = spec(steps=4), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(wanted, folder=folder, data_dir=data_dir, callbacks=[Acting({2: terminate})])
    for file in (data_dir / "SST-2").iterdir():
        others = file.read_text().replace("\t1", "\t2").replace("\t0", "\t1").replace("\t2", "\t0")
        written(tmp_path / "SST-2" / file.name, others)
    with pytest.raises(ValueError, match=r"the task's examples must be those that the run in .* began with, but they"):
        run(wanted, folder=folder, data_dir=tmp_path)
    assert run(wanted, folder=folder, data_dir=data_dir).outcome is Outcome.OK
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match="began with"):
        run(wanted, folder=folder, data_dir=tmp_path)


def test_a_run_without_evaluations_between_is_judged_at_its_end(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    result = run(spec(eval_every=0, steps=3), folder=str(tmp_path), data_dir=str(data_dir))
    assert [row[0] for row in result.evaluation["curve"]] == [0, 3]


def test_a_cell_finds_its_data_in_the_environment_and_leaves_nothing_and_keeps_its_failure(
    spec: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))
    monkeypatch.setenv("ZOBENCH_DISK_DIR", str(tmp_path))
    wanted = spec(steps=2)
    result = measured(wanted)
    assert (result.outcome, result.spec, result.evaluation["test"]["count"]) == (Outcome.OK, wanted, 16)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(tmp_path))
    failed = measured(wanted)
    assert (failed.outcome, failed.evaluation) == (Outcome.FAILED, {})
    assert str(tmp_path) in failed.reason
    assert failed.environment.machine == result.environment.machine


def test_learning_lifts_the_accuracy(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    wanted = spec(method="fo-adam", steps=30, lr=1e-2, batch_size=8, eval_every=10)
    evaluation = run(wanted, folder=tmp_path, data_dir=data_dir).evaluation
    assert evaluation["best"]["accuracy"] > evaluation["start"]["accuracy"]
    assert evaluation["test"]["accuracy"] >= 0.9  # its words are those of training


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([[0, 0.1, 1.0]], None),
        ([[4, 0.5, 0.9], [8, 0.4, 0.2]], 8),
        ([[4, 0.5, 0.5], [8, 0.5, 0.6], [12, 0.5, 0.6]], 8),
        ([[4, math.nan, 0.9], [8, 2.0, 0.1]], 8),
        ([[4, math.inf, 0.1], [8, math.nan, 0.1]], 4),
    ],
)
def test_the_best_has_the_lowest_loss_then_the_highest_accuracy_then_came_first(curve, expected) -> None:
    chosen = best(curve)
    assert (None if chosen is None else chosen[0]) == expected


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        assert not stop.wanted
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):  # type: ignore[unreachable]
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_test_set_nobody_looks_and_the_model_is_kept(spec, data_dir, tmp_path, monkeypatch) -> None:
    with_test = run(spec(), folder=tmp_path / "with", data_dir=data_dir)
    monkeypatch.setattr(examine, "evaluate", lambda *given: pytest.fail("the test set was evaluated"))
    without = run(spec(test_size=0), folder=tmp_path / "without", data_dir=data_dir)
    assert "test" not in without.evaluation
    assert without.evaluation["curve"] == with_test.evaluation["curve"]
    assert without.evaluation["majority"]["test"] is None
    mine, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("without", "with"))
    assert equal(mine, other)


def test_a_damaged_tokenizer_is_one_line_and_one_of_words_alone_is_read(spec, weights_path, tmp_path) -> None:
    for name, text in ("tokenizer.json", "{}"), ("tokenizer_config.json", "[]"), ("special_tokens_map.json", "5"):
        folder = Path(shutil.copytree(weights_path, tmp_path / name))
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=r"^`task=sst2` needs the tokenizer of opt-tiny, but '.*' gives none \("):
            tokenizers.load(spec(weights_path=str(folder)))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngreat")
    assert tokenizers.load(spec(weights_path=str(tmp_path)))[0]("great")["input_ids"] == [2, 5, 3]
