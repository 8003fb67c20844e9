"""A Trainer with zobench's steps: its numbers are the engine's own, and transformers' where transformers has them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, default_data_collator

from tests.support.families import made
from tests.support.parity import assert_equal
from zobench import ZOSGD, Batch, Engine, EngineConfig
from zobench.hf import ZOTrainer

STEPS = 20
FIELDS = TrainingArguments.__dataclass_fields__
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"
"""Its name changed between the versions that zobench takes."""


def rows(count=64, length=12, seed=0):  # type: ignore[no-untyped-def]
    """Examples of padded tokens."""
    random = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        real = int(random.integers(4, length + 1))
        ids = [*random.integers(3, 64, real).tolist(), *[0] * (length - real)]
        mask = [int(place < real) for place in range(length)]
        labels = [token if kept else -100 for token, kept in zip(ids, mask, strict=True)]
        examples.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return examples


def arguments(folder, **changed):  # type: ignore[no-untyped-def]
    usual = {
        "max_steps": STEPS, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, "seed": 7,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(output_dir=str(folder), **{**usual, **changed})


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):  # type: ignore[no-untyped-def]
    """accelerate collects garbage whenever a training begins: half a second in a process that has run many tests."""
    monkeypatch.setattr("accelerate.utils.memory.gc.collect", lambda: 0)


class Recorder:
    """A data collator that keeps the batches that it makes."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def __call__(self, examples):  # type: ignore[no-untyped-def]
        made = default_data_collator(examples)
        self.batches.append(Batch(made["input_ids"], made["labels"], made["attention_mask"]))
        return made


def trainer(folder, model=None, zo=None, collator=None, **changed):  # type: ignore[no-untyped-def]
    return ZOTrainer(
        made("opt") if model is None else model, arguments(folder, **changed), collator or default_data_collator,
        train_dataset=rows(), eval_dataset=rows(10, seed=1), zo={"eps": 1e-2, **(zo or {})},
    )  # fmt: skip


def logged(run, key):  # type: ignore[no-untyped-def]
    return [entry[key] for entry in run.state.log_history if key in entry]


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_its_steps_are_the_engines_own(placement, schedule, tmp_path):
    """Losses, g and weights of 20 steps, on the same batches and seeds, by the schedule that its name says."""
    seen = Recorder()
    run = trainer(tmp_path, zo={"engine": placement}, collator=seen, lr_scheduler_type=schedule)
    run.train()
    model, losses, gradients = made("opt"), [], []
    with Engine(model, EngineConfig(placement="resident")) as engine:
        method = ZOSGD(lr=1e-2, eps=1e-2, seed=7)
        for step, batch in enumerate(seen.batches[:STEPS]):
            method.lr = 1e-2 * (STEPS - step) / STEPS if schedule == "linear" else 1e-2
            result = method.step(engine, batch)
            losses.append(float(np.float32(result.loss)))
            gradients.append(result.projected_grad)
        assert logged(run, "loss") == losses
        assert logged(run, "projected_grad") == gradients
        assert len(set(gradients)) == STEPS
        assert_equal(dict(run.engine.named_tensors()), dict(engine.named_tensors()))


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_an_evaluation_is_transformers_own(placement, tmp_path):
    model = made("opt")
    plain = Trainer(made("opt"), arguments(tmp_path), default_data_collator, eval_dataset=rows(10, seed=1))
    assert trainer(tmp_path, model, {"engine": placement}).evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]


def test_what_it_saves_has_the_loss_that_it_evaluated(tmp_path):
    run = trainer(tmp_path, zo={"engine": "offload"})
    before = run.evaluate()["eval_loss"]
    run.train()
    after = run.evaluate()["eval_loss"]
    assert after != before
    run.save_model(str(tmp_path / "model"))
    loaded, missing = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(missing.values())
    plain = Trainer(loaded, arguments(tmp_path), default_data_collator, eval_dataset=rows(10, seed=1))
    assert plain.evaluate()["eval_loss"] == after
    assert_equal(dict(loaded.named_parameters()), dict(run.engine.named_tensors()))


def test_a_resident_model_has_its_weights_again_when_the_engine_is_closed(tmp_path):
    model = made("opt")
    run = trainer(tmp_path, model)
    run.train()
    trained, loss = dict(run.engine.named_tensors()), run.evaluate()["eval_loss"]
    run.close()
    assert_equal(dict(model.named_parameters()), trained)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    model(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss.backward()
    assert all(tensor.grad is not None for tensor in model.parameters())
    assert run.evaluate()["eval_loss"] == loss  # of a new engine, which goes on from there


def test_callbacks_are_told_what_a_trainer_tells_and_the_projected_gradient(tmp_path):
    class Listener(TrainerCallback):
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_evaluate(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            self.events.append("evaluate")

        def on_save(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            self.events.append("save")

        def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            control.should_training_stop = state.global_step == 6

    listener = Listener()
    run = trainer(tmp_path, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3, logging_steps=2)
    run.add_callback(listener)
    run.train()
    assert run.state.global_step == 6
    assert [logged(run, key)[-1] for key in ("projected_grad", "skipped")] == [run.last.projected_grad, 0]
    assert listener.events == ["evaluate", "save"] * 2


@pytest.mark.parametrize(
    "zo",
    [
        {}, {"method": "zo-adam", "engine": "offload", "noise": "counter"}, {"method": "zo-sgd-mmt", "queries": 2},
        {"method": "fo-adam", "checkpointing": True}, {"method": "hybrid", "zo_layers": 1},
        *({"method": name, "sparsity": 0.5, "noise": "counter"} for name in ("sparse-mezo", "zo-sgd-sparse")),
    ],
    ids=str,
)  # fmt: skip
def test_a_run_that_stopped_and_resumes_is_one_that_did_not(zo, tmp_path):
    """Which weights a sparse method moves is kept, whatever model the run resumes with."""
    whole = trainer(tmp_path / "whole", zo=zo, max_steps=6, save_steps=3, save_strategy="steps", learning_rate=1e-3)
    whole.train()
    saved = str(tmp_path / "whole" / "checkpoint-3")
    model = AutoModelForCausalLM.from_pretrained(saved) if "sparsity" in zo else None
    again = trainer(tmp_path / "again", model, zo=zo, max_steps=6, learning_rate=1e-3)
    again.train(resume_from_checkpoint=saved)
    name = "grad_norm" if "fo-" in zo.get("method", "") else "projected_grad"
    assert logged(again, name) == logged(whole, name)
    assert logged(again, "loss") == logged(whole, "loss")
    assert_equal(dict(again.engine.named_tensors()), dict(whole.engine.named_tensors()))
    assert again.method.state() == whole.method.state()


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    run = trainer(
        tmp_path, zo={"engine": "offload"}, learning_rate=1.0, lr_scheduler_type="constant",
        load_best_model_at_end=True, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
        max_steps=6,
    )  # fmt: skip
    run.train()
    losses = logged(run, "eval_loss")
    assert min(losses) != losses[-1]
    assert run.evaluate()["eval_loss"] == min(losses)


# ---- what is refused, in one line


def refused(match, **asked):  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=match) as error:
        trainer(**asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"gradient_accumulation_steps": 2}, "`gradient_accumulation_steps` has no meaning .*, but got 2; a step has"),
        ({"max_grad_norm": 0.5}, "`max_grad_norm` has no meaning for a step of zobench, but got 0.5; nothing"),
        ({CHECKPOINTING: True}, "checkpointing` has no meaning .*; there is no backward pass"),
        ({"zo": {"lr": 1.0}}, r"`zo` must not say .*, but got lr; use TrainingArguments\(learning_rate=...\)"),
        ({"zo": {"metod": "zo-sgd"}}, "`zo` must be of method, .*, but got 'metod'; did you mean method"),
        ({"zo": {"method": "fo-sgd", "engine": "offload"}}, "backpropagation needs every layer at once"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(changed, match, tmp_path):
    refused(match, folder=tmp_path, **changed)


def test_what_needs_logits_or_gradients_is_refused(tmp_path):
    for given in ({"compute_metrics": lambda _: {}}, {"model_init": lambda: made("opt"), "model": None}):
        with pytest.raises(ValueError, match=f"`{next(iter(given))}` has no meaning for a step of zobench"):
            ZOTrainer(**{"model": made("opt"), "args": arguments(tmp_path), **given})
    with pytest.raises(ValueError, match="`predict` needs logits"):
        trainer(tmp_path).predict(rows(2))


def test_adapters_and_several_devices_are_refused(tmp_path):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(made("opt"), LoraConfig(target_modules=["q_proj"]))
    refused("a ZOTrainer tunes all weights, but got a model with an adapter of peft", folder=tmp_path, model=adapted)
    two = arguments(tmp_path)
    two._n_gpu = 2
    with pytest.raises(ValueError, match="a ZOTrainer steps on one device, but got 2; show it one with"):
        ZOTrainer(made("opt"), two)


@pytest.mark.parametrize(
    ("missing", "more", "match"),
    [
        (["labels"], {}, "a batch must have input_ids and labels, but got input_ids, attention_mask; use"),
        ([], {"position_ids": list(range(12))}, "a batch must be of .*, attention_mask, but got position_ids; use"),
    ],
)  # fmt: skip
def test_batches_of_other_inputs_are_refused(missing, more, match, tmp_path):
    examples = [{key: value for key, value in {**row, **more}.items() if key not in missing} for row in rows()]
    run = ZOTrainer(made("opt"), arguments(tmp_path, remove_unused_columns=False), train_dataset=examples)
    with pytest.raises(ValueError, match=match):
        run.train()


def test_resuming_as_another_run_is_refused(tmp_path):
    trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    with pytest.raises(ValueError, match=r"goes on with the same steps, but eps was 0.01 there and is 0.02; give what"):
        trainer(tmp_path, zo={"eps": 2e-2}).train(resume_from_checkpoint=True)
    trainer(tmp_path / "b", max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True).train()
    with pytest.raises(ValueError, match=r"must be a checkpoint with its method's state, but .* has 0; save with"):
        trainer(tmp_path / "b").train(resume_from_checkpoint=True)


# ---- around it


def words():  # type: ignore[no-untyped-def]
    """A tokenizer of a few words."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    known = ["<pad>", "<s>", "</s>", "<unk>", "a", "good", "bad", "film", "not"]
    of_words = Tokenizer(WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=of_words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_trls_trainer_takes_the_engines_steps(tmp_path):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    from datasets import Dataset

    from zobench.hf import ZOSFTTrainer

    usual = {
        "output_dir": str(tmp_path), "max_steps": 4, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False,
    }  # fmt: skip
    texts = Dataset.from_dict({"text": ["a good film", "a bad film", "not a good film"] * 8})
    args = trl.SFTConfig(**usual, gradient_checkpointing=False)
    run = ZOSFTTrainer(made("opt"), args, train_dataset=texts, processing_class=words(), zo={"eps": 1e-2})
    seen, collate = [], run.data_collator

    def recorded(examples):  # type: ignore[no-untyped-def]
        seen.append(collate(examples))
        return seen[-1]

    run.data_collator = recorded
    run.train()
    with Engine(made("opt"), EngineConfig(placement="resident")) as engine:
        method = ZOSGD(lr=1e-2, eps=1e-2, seed=args.seed)
        gradients = []
        for step, batch in enumerate(seen[:4]):
            method.lr = 1e-2 * (4 - step) / 4
            gradients.append(method.step(engine, Batch(**batch)).projected_grad)
    assert logged(run, "projected_grad") == gradients
    with pytest.raises(ValueError, match="checkpointing` has no meaning"):
        ZOSFTTrainer(made("opt"), trl.SFTConfig(**usual), train_dataset=texts, processing_class=words())


def test_the_page_runs_as_it_is_written_and_is_right_to_the_digit_that_it_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    (shown,) = re.findall(r"It printed `([^`]*)`", page)
    printed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("loss "))
    digits = re.compile(r"-?\d+\.\d+")
    assert digits.sub("", printed) == digits.sub("", shown)
    wanted, numbers = ([float(number) for number in digits.findall(text)] for text in (shown, printed))
    assert numbers == pytest.approx(wanted, rel=0.05)
    before, after = numbers
    assert after < before
