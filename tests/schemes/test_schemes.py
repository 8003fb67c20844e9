"""What schemes start from, what they leave alone, what they save, and what they refuse."""

import json
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import DistilBertConfig, DistilBertForMaskedLM, GPT2Config, GPT2LMHeadModel

from tests.support.adapters import adapter, applied, batches, loss, peft_name
from tests.support.parity import materialised
from tests.support.watched import before
from zobench import Engine, EngineConfig, RunSpec, methods, models, schemes
from zobench.engine import Batch
from zobench.engine.weights.tiers import DiskTier
from zobench.models import weights
from zobench.schemes.base import real_tokens

MODELS = ("opt-tiny", "opt350-tiny", "qwen3-tiny", "llama-tiny")
EVERY = (*MODELS, "roberta-tiny")
SCHEMES = ("lora", "prefix", "prompt")
METHODS = ("zo-sgd", "zo-adam", "zo-sgd-block", "zo-sgd-sparse", "forward-grad")
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft's own call


def test_lora_starts_as_the_base_with_kaimings_bound_and_seeds_by_name():
    model, done, initial = applied("llama-tiny", "lora", EngineConfig())
    values = adapter(model, initial)
    assert len(values) == 3 * 2 * 2
    a = {name: value for name, value in values.items() if "lora_A" in name}
    assert all(not value.any() for name, value in values.items() if "lora_B" in name)
    for value in a.values():
        assert value.shape == (8, 64)
        assert value.dtype == torch.float32
        assert 0.11 < value.abs().max() <= 1 / 64**0.5  # torch: kaiming_uniform_(a=sqrt(5)) is 1 / sqrt(inputs)
    assert len({tuple(value.flatten().tolist()) for value in a.values()}) == len(a)
    _, _, other = applied("llama-tiny", "lora", EngineConfig())
    name = list(a)[-1]  # drawn alone, and only some rows of it
    rows = torch.empty(3, 64)
    other.fill(name, rows, 2)
    assert torch.equal(rows, a[name][2:5])
    _, _, seeded = applied("llama-tiny", "lora", EngineConfig(), seed=1)
    seeded.fill(name, rows, 2)
    assert not torch.equal(rows, a[name][2:5])
    (batch,) = batches("llama-tiny", 1)
    with Engine(model, EngineConfig(), weights=initial, drive=done.drive) as engine:
        base = materialised("llama-tiny")
        with torch.no_grad():
            assert engine.evaluate(batch) == base(input_ids=batch.input_ids, labels=batch.labels).loss.item()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("scheme", "count"), [("prefix", 5), ("prompt", 10)])
def test_virtual_tokens_start_as_real_ones(scheme, count, name):
    """At its start the model sees its tokens after ``count`` real ones: the loss is the base's on the longer text."""
    config = EngineConfig(tier="disk")
    model, done, initial = applied(name, scheme, config)
    base = materialised(name)
    tokens = real_tokens(base, count, 0, scheme)
    assert done.virtual_tokens == count
    (batch,) = batches(name, 1)
    before = torch.tensor(tokens).expand(len(batch.input_ids), -1)
    longer = Batch(torch.cat([before, batch.input_ids], 1), torch.cat([before * 0 - 100, batch.labels], 1))
    with torch.no_grad():
        expected = base(input_ids=longer.input_ids, labels=longer.labels).loss.item()
    with Engine(model, config, weights=initial, drive=done.drive) as engine:
        assert engine.evaluate(batch) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_after_10_steps_on_disk_the_base_is_unchanged_and_was_never_written(scheme, method, monkeypatch):
    spec = RunSpec(
        model="opt-tiny", scheme=scheme, seq_len=17, method=method, lr=1e-3, eps=1e-2, engine="offload", tier="disk",
        **({"sparsity": 0.25} if method == "zo-sgd-sparse" else {}),
    )  # fmt: skip
    config = EngineConfig(tier="disk")
    model, done, initial = applied("opt-tiny", scheme, config)
    start, rule = adapter(model, initial), methods.rule(spec)
    thresholds = methods.thresholds(spec, model, initial)
    written: list[int] = []
    before(monkeypatch.setattr, DiskTier, "offload", lambda tier, block, slot, *_: written.append(slot.numel()))
    stepper = methods.make(spec)
    with Engine(
        model, config, weights=initial, drive=done.drive, rule=rule, thresholds=thresholds,
    ) as engine:  # fmt: skip
        steps = [stepper.step(engine, batch) for batch in batches("opt-tiny", 5) * 2]
        final = dict(engine.named_tensors())
    assert all(step.applied for step in steps)
    base = weights.RandomWeights(models.build("opt-tiny", "fp32"), 3)
    for name, value in final.items():
        if name in start:
            assert not torch.equal(value, start[name])
        else:
            expected = torch.empty_like(value)
            base.fill(name.replace(".base_layer.", "."), expected)
            assert torch.equal(value, expected), name
    # per block: A (8, 64) and B (64, 8) of two layers, in float32, and a state of their size or two
    size = 4 * 8 * 64 * 4 * (1 + len(rule.states if rule else ()))
    assert set(written) == ({size} if scheme == "lora" else set())
    assert len(written) >= (3 * 9 if scheme == "lora" else 0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_saved_adapter_loads_with_peft_and_says_the_same(scheme, name, dtype, tmp_path):
    config = EngineConfig(tier="disk")
    model, done, initial = applied(name, scheme, config, dtype)
    data, first = batches(name, 4), adapter(model, initial)
    with Engine(model, config, weights=initial, drive=done.drive) as engine:
        stepper = methods.ZOSGD(lr=1.0, eps=1e-1, seed=0)
        for batch in data:
            stepper.step(engine, batch)
        final = dict(engine.named_tensors())
        done.save(tmp_path / "adapter", engine.named_tensors())
        mine = engine.evaluate(data[0])
    theirs = peft.PeftModel.from_pretrained(materialised(name, dtype), tmp_path / "adapter").eval()
    parameters = dict(theirs.named_parameters())
    assert all(torch.equal(parameters[peft_name(key, scheme)], final[key]) for key in first)
    assert not any(torch.equal(final[key], first[key]) for key in first)
    assert loss(theirs, data[0]) == mine
    theirs.save_pretrained(tmp_path / "their own")  # loading is lenient: the names are to be peft's too
    files = [load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("adapter", "their own")]
    assert files[0].keys() == files[1].keys()
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert stored["base_model_name_or_path"] == name
    assert stored["inference_mode"] is True
    assert sorted(file.name for file in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip


class Backwards(set[str]):
    """A set of names whose hashes put them into this order."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), reverse=True))


def test_a_saved_adapter_lists_its_layers_in_one_order_whatever_their_hashes(tmp_path):
    """A run that is resumed ends in another process than it began in, which seeds the hashes anew."""
    model, done, initial = applied("opt-tiny", "lora", EngineConfig())
    done._config.target_modules = Backwards(("q_proj", "v_proj"))
    done.save(tmp_path, adapter(model, initial).items())
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(("model", "path", "stored"), [("OPT-125M", "", "facebook/opt-125m"), ("opt-tiny", "w", "w")])
def test_the_adapter_names_its_base(model, path, stored):
    spec = RunSpec(model=model, scheme="lora", weights="pretrained", weights_path=path, seq_len=8)
    assert schemes.apply(spec, models.build(model, "fp32"))._config.base_model_name_or_path == stored


@pytest.mark.parametrize(("scheme", "fits"), [("prefix", 59), ("prompt", 54)])
def test_virtual_tokens_count_against_the_models_positions(scheme, fits):
    spec = RunSpec(model="opt-tiny", scheme=scheme, seq_len=fits)
    schemes.apply(spec, models.build("opt-tiny", "fp32"))
    with pytest.raises(ValueError, match=f"but got seq_len={fits + 1}; use seq_len={fits} or less"):
        schemes.apply(spec.replace(seq_len=fits + 1), models.build("opt-tiny", "fp32"))


def test_a_prefix_that_a_window_would_hide_is_refused():
    spec = RunSpec(model="Mistral-7B", scheme="prefix", seq_len=4092)
    model = models.build("Mistral-7B", "fp16")
    with pytest.raises(ValueError, match=r"`seq_len \+ 5 <= 4096` must hold .* through its window, .*; use scheme=pro"):
        schemes.apply(spec, model)
    assert schemes.apply(spec.replace(seq_len=4091), model).virtual_tokens == 5


@pytest.mark.parametrize(
    ("scheme", "kind", "config", "message"),
    [
        ("prefix", DistilBertForMaskedLM,
         DistilBertConfig(vocab_size=99, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
         "a model that takes past keys and values, but DistilBertForMaskedLM does not; use scheme=prompt"),
        ("lora", GPT2LMHeadModel, GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2),
         "layers named q_proj and v_proj or query and value, but GPT2LMHeadModel has none; use scheme=full"),
    ],
)  # fmt: skip
def test_a_model_that_a_scheme_cannot_tune_is_refused(scheme, kind, config, message):
    with pytest.raises(ValueError, match=f"^`scheme={scheme}` needs {message}$"):
        schemes.apply(RunSpec(model="opt-tiny", scheme=scheme), kind(config))


def test_without_peft_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ImportError, match=r"`scheme=lora` needs peft, but it is not installed; pip install 'zobench\[tasks\]'"
    ):
        schemes.apply(RunSpec(model="opt-tiny", scheme="lora"), models.build("opt-tiny", "fp32"))
