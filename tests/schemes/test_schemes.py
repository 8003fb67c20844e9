"""What schemes start from, what they leave alone, what they save, and what they refuse."""

import json
import os
import subprocess
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import DistilBertConfig, DistilBertForMaskedLM, GPT2Config, GPT2LMHeadModel

from tests.support.adapters import adapter, applied, base_model, batches, loss, peft_name
from zobench import Engine, EngineConfig, RunSpec, methods, models, schemes
from zobench.engine import Batch
from zobench.engine.passes.drive import plain
from zobench.engine.passes.fold import split
from zobench.engine.weights.tiers import DiskTier
from zobench.models import weights
from zobench.schemes.base import real_tokens
from zobench.schemes.prefix import PrefixCache

MODELS = ("opt-tiny", "opt350-tiny", "qwen3-tiny", "llama-tiny")
EVERY = (*MODELS, "roberta-tiny")
SCHEMES = ("lora", "prefix", "prompt")
METHODS = (
    "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse", "forward-grad",
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft's own call
EMBEDDING = "prompt_encoder.embedding.weight"


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
        base = base_model("llama-tiny")
        with torch.no_grad():
            assert engine.evaluate(batch) == base(input_ids=batch.input_ids, labels=batch.labels).loss.item()


@pytest.mark.parametrize("placement", ["resident", "offload"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("scheme", "count"), [("prefix", 5), ("prompt", 10)])
def test_virtual_tokens_start_as_real_ones(scheme, count, name, placement):
    """At its start the model sees its tokens after ``count`` real ones: the loss is the base's on the longer text."""
    config = EngineConfig(placement=placement, tier="disk")
    model, done, initial = applied(name, scheme, config)
    base = base_model(name)
    tokens = real_tokens(base, count, 0, scheme)
    assert done.virtual_tokens == count
    (batch,) = batches(name, 1)
    before = torch.tensor(tokens).expand(len(batch.input_ids), -1)
    longer = Batch(torch.cat([before, batch.input_ids], 1), torch.cat([before * 0 - 100, batch.labels], 1))
    with torch.no_grad():
        expected = base(input_ids=longer.input_ids, labels=longer.labels).loss.item()
    with Engine(model, config, weights=initial, drive=done.drive) as engine:
        assert engine.evaluate(batch) == pytest.approx(expected, rel=1e-6)


def test_a_prefix_is_computed_offloaded_as_it_is_resident():
    configs = [
        EngineConfig(placement="resident"),
        EngineConfig(tier="disk", slots=1),
        EngineConfig(noise="counter", granularity="tile", tier="disk"),
    ]
    first, *others = (adapter(*applied("qwen3-tiny", "prefix", config)[::2])[EMBEDDING] for config in configs)
    assert first.shape == (5, 3 * 2 * 2 * 32)
    assert all(torch.equal(first, other) for other in others)


def test_real_tokens_are_not_special_differ_and_depend_on_the_seed():
    model = models.build("opt-tiny", "fp32")
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (1, 2, 2)
    found = real_tokens(model, 126, 0, "prompt")  # all there are
    assert sorted(found) == [0, *range(3, 128)]
    few = [tuple(real_tokens(model, 10, seed, kind)) for seed in (0, 1) for kind in ("prompt", "prefix")]
    assert len(set(few)) == 4
    assert few[0] == tuple(real_tokens(model, 10, 0, "prompt"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_after_10_steps_on_disk_the_base_is_unchanged_and_was_never_written(scheme, method, monkeypatch):
    spec = RunSpec(
        model="opt-tiny", scheme=scheme, seq_len=17, method=method, lr=1e-3, eps=1e-2, engine="offload", tier="disk",
        **({"sparsity": 0.25} if method == "zo-sgd-sparse" else {}),
    )  # fmt: skip
    config = EngineConfig(tier="disk")
    model, done, initial = applied("opt-tiny", scheme, config)
    before, rule = adapter(model, initial), methods.rule(spec)
    thresholds = methods.thresholds(spec, model, initial)
    written: list[int] = []
    offload = DiskTier.offload

    def counted(tier, block, slot, first=0):
        written.append(slot.numel())
        offload(tier, block, slot, first)

    monkeypatch.setattr(DiskTier, "offload", counted)
    stepper = methods.make(spec)
    with Engine(
        model, config, weights=initial, drive=done.drive, rule=rule, thresholds=thresholds,
    ) as engine:  # fmt: skip
        steps = [stepper.step(engine, batch) for batch in batches("opt-tiny", 5) * 2]
        final = dict(engine.named_tensors())
    assert all(step.applied for step in steps)
    base = weights.RandomWeights(models.build("opt-tiny", "fp32"), 3)
    for name, value in final.items():
        if name in before:
            assert not torch.equal(value, before[name])
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
    theirs = peft.PeftModel.from_pretrained(base_model(name, dtype), tmp_path / "adapter").eval()
    own = dict(theirs.named_parameters())
    assert all(torch.equal(own[peft_name(key, scheme)], final[key]) for key in first)
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


@pytest.mark.slow
def test_a_saved_adapter_is_the_same_bytes_whatever_the_hash_seed_of_its_process(tmp_path):
    """A run that is resumed ends in another process than it began in."""
    script = (
        "import sys; from zobench import EngineConfig; from tests.support.adapters import adapter, applied\n"
        "model, done, initial = applied('opt-tiny', 'lora', EngineConfig())\n"
        "done.save(sys.argv[1], adapter(model, initial).items())\n"
    )
    started = [  # the two seeds put q_proj and v_proj into different orders
        subprocess.Popen([sys.executable, "-c", script, tmp_path / seed], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in "13"
    ]
    assert [process.wait(300) for process in started] == [0, 0]
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / seed).iterdir()} for seed in "13")
    assert len(one) == 2
    assert one == other


@pytest.mark.parametrize(("model", "path", "stored"), [("OPT-125M", "", "facebook/opt-125m"), ("opt-tiny", "w", "w")])
def test_the_adapter_names_its_base(model, path, stored):
    spec = RunSpec(model=model, scheme="lora", weights="pretrained", weights_path=path, seq_len=8)
    assert schemes.apply(spec, models.build(model, "fp32"))._config.base_model_name_or_path == stored


def test_full_changes_nothing_and_saves_a_checkpoint(tmp_path):
    model = base_model("opt-tiny")
    before = {name: p.clone() for name, p in model.named_parameters()}
    done = schemes.apply(RunSpec(model="opt-tiny"), model)
    source = weights.ModelWeights(model)
    assert done.weights(source, EngineConfig()) is source
    assert (done.drive, done.virtual_tokens) == (plain, 0)
    assert all(p.requires_grad for p in model.parameters())
    done.save(tmp_path, before.items())
    loaded = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in loaded.named_parameters())


@pytest.mark.parametrize(
    ("scheme", "fits", "text"),
    [
        ("prefix", 59, "`seq_len + 5 <= 64` must hold with scheme=prefix, whose 5 virtual tokens take positions of "
         "opt-tiny, but got seq_len=60; use seq_len=59 or less"),
        ("prompt", 54, "`seq_len + 10 <= 64` must hold with scheme=prompt, whose 10 virtual tokens take positions of "
         "opt-tiny, but got seq_len=55; use seq_len=54 or less"),
    ],
)  # fmt: skip
def test_virtual_tokens_count_against_the_models_positions(scheme, fits, text):
    spec = RunSpec(model="opt-tiny", scheme=scheme, seq_len=fits)
    schemes.apply(spec, models.build("opt-tiny", "fp32"))
    with pytest.raises(ValueError, match="seq_len") as error:
        schemes.apply(spec.replace(seq_len=fits + 1), models.build("opt-tiny", "fp32"))
    assert str(error.value) == text


def test_a_prefix_that_a_window_would_hide_is_refused():
    spec = RunSpec(model="Mistral-7B", scheme="prefix", seq_len=4092)
    model = models.build("Mistral-7B", "fp16")
    with pytest.raises(ValueError, match="window") as error:
        schemes.apply(spec, model)
    assert str(error.value) == (
        "`seq_len + 5 <= 4096` must hold for scheme=prefix on Mistral-7B, whose later tokens would not see the prefix "
        "through its window, but got seq_len=4092; use scheme=prompt"
    )
    assert schemes.apply(spec.replace(seq_len=4091), model).virtual_tokens == 5


@pytest.mark.parametrize(
    ("scheme", "kind", "config", "told"),
    [
        ("prefix", DistilBertForMaskedLM,
         DistilBertConfig(vocab_size=99, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
         "a model that takes past keys and values, but DistilBertForMaskedLM does not; use scheme=prompt"),
        ("lora", GPT2LMHeadModel, GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2),
         "layers named q_proj and v_proj or query and value, but GPT2LMHeadModel has none; use scheme=full"),
    ],
)  # fmt: skip
def test_a_model_that_a_scheme_cannot_tune_is_refused(scheme, kind, config, told):
    with pytest.raises(ValueError, match=f"^`scheme={scheme}` needs {told}$"):
        schemes.apply(RunSpec(model="opt-tiny", scheme=scheme), kind(config))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_peft_the_remedy_is_named(scheme, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError) as error:
        schemes.apply(RunSpec(model="opt-tiny", scheme=scheme), models.build("opt-tiny", "fp32"))
    assert str(error.value) == f"`scheme={scheme}` needs peft, which is absent; pip install 'zobench[tasks]'"


def test_a_prefix_is_cut_per_copy_and_does_not_grow():
    states, new = torch.randn(2 * 3, 4, 2, 5, 8), torch.randn(2, 2, 7, 8)  # 3 layers, 4 rows: 2 copies of 2
    whole = PrefixCache(states)
    for _ in range(2):
        keys, values = split(whole, 2, 2)[1].update(new, -new, 1)
        assert torch.equal(keys, torch.cat([states[2, 2:], new], -2))
        assert torch.equal(values, torch.cat([states[3, 2:], -new], -2))
    assert split(whole, 2, 2)[0] is split(whole, 2, 2)[0]  # cut once for all blocks
