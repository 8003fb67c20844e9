"""A scheme in the engine computes what ``peft``'s own model computes, wherever the base's weights are."""

import functools

import pytest
import torch
from transformers import DynamicCache

from tests.support.adapters import Moved, adapter, applied, batches, loss, peft_model, peft_name, pristine_mezo
from tests.support.families import made
from tests.support.parity import materialised
from tests.support.reference import draw_seeds, mezo
from zobench import ZOSGD, Engine, EngineConfig, RunSpec, schemes
from zobench.engine import Batch, Point
from zobench.engine.passes.loss import counted
from zobench.models.weights import ModelWeights
from zobench.schemes.adapters import PROMPT_TOKENS
from zobench.schemes.base import real_tokens

MODELS = ("opt-tiny", "opt350-tiny", "qwen3-tiny", "llama-tiny", "roberta-tiny")
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft's own call
SCHEMES = ("lora", "prefix", "prompt")
MODES = {
    "resident": {"placement": "resident"},
    "pageable": {"tier": "pageable"},
    "disk": {"tier": "disk"},
    "one slot, no fused update": {"tier": "disk", "slots": 1, "fused_update": False},
}
COUNTER = {
    "block": {},
    "linear": {"granularity": "linear"},
    "tile": {"granularity": "tile", "tier": "disk"},
    "written back never": {"writeback_every": "inf"},
    "resident": {"placement": "resident"},
}
STEPS, EPS, LR, RUN_SEED = 8, 1e-2, 1e-2, 7


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_loss_is_that_of_pefts_model(scheme, name, dtype):
    config = EngineConfig(tier="disk")
    model, done, initial = applied(name, scheme, config, dtype)
    moved = Moved(model, initial)
    theirs = peft_model(name, scheme, moved.values, dtype)
    (batch,) = batches(name, 1)
    with Engine(model, config, weights=moved, drive=done.drive) as engine:
        assert engine.probe(batch, [Point()]) == [loss(theirs, batch)]


@torch.no_grad()
def behind_a_prefix(base, prefix, batch, first):
    """transformers' own loss of tokens whose positions begin at ``first``, behind ``prefix`` (tokens, layers x 2 x
    width) as the past of every layer."""
    heads = getattr(base.config, "num_key_value_heads", base.config.num_attention_heads)
    states = prefix.view(5, 2 * base.config.num_hidden_layers, heads, -1).permute(1, 2, 0, 3)
    rows, length = batch.input_ids.shape
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(states[::2], states[1::2], strict=True)):
        cache.update(*(state.expand(rows, -1, -1, -1) for state in (keys, values)), layer)
    positions = torch.arange(first, first + length).expand(rows, -1)
    mask = torch.ones(rows, 5 + length, dtype=torch.long)
    logits = base(batch.input_ids, past_key_values=cache, position_ids=positions, attention_mask=mask).logits
    return base.loss_function(logits=logits, labels=batch.labels, vocab_size=base.config.vocab_size).item()


@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_a_prefixs_loss_is_transformers_own_and_not_mezos(name):
    """MeZO's tokens begin at position 0 behind the prefix, zobench's and peft's at 5."""
    config = EngineConfig()
    model, done, initial = applied(name, "prefix", config)
    moved = Moved(model, initial)
    (prefix,), base, (batch,) = moved.values.values(), materialised(name), batches(name, 1)
    with Engine(model, config, weights=moved, drive=done.drive) as engine:
        (mine,) = engine.probe(batch, [Point()])
    assert mine == behind_a_prefix(base, prefix, batch, 5)
    assert 1e-5 < abs(mine - behind_a_prefix(base, prefix, batch, 0)) < 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_changes_nothing(scheme, name):
    """A padded batch's loss is that of its rows one by one, without padding, in peft's model."""
    config = EngineConfig()
    model, done, initial = applied(name, scheme, config)
    theirs = peft_model(name, scheme, adapter(model, initial))
    (batch,) = batches(name, 1, "ragged")
    assert batch.attention_mask is not None
    total = count = 0
    for ids, labels, mask in zip(batch.input_ids, batch.labels, batch.attention_mask, strict=True):
        unpadded = Batch(ids[mask == 1][None], labels[mask == 1][None])
        tokens = int((unpadded.labels[:, 1:] != -100).sum())
        total, count = total + tokens * loss(theirs, unpadded), count + tokens
    with Engine(model, config, weights=initial, drive=done.drive) as engine:
        assert engine.evaluate(batch) == pytest.approx(total / count, rel=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(("family", "scheme"), [("gpt2", "prompt"), ("gpt2", "prefix"), ("gemma2", "prompt")])
def test_positions_of_padding_and_scaled_embeddings_are_the_models(family, scheme):
    """GPT-2 has no position before the first; Gemma multiplies its embeddings."""
    base, model, spec = made(family), made(family), RunSpec(model="opt-tiny", scheme=scheme, seq_len=17)
    for module in model.modules():  # as an empty model: its buffers have values
        for name, tensor in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(tensor.to("meta")))
    model.tie_weights()
    done = schemes.apply(spec, model)
    (batch,) = batches("opt-tiny", 1, "ragged")
    batch = Batch(
        batch.input_ids % 60 + 3, torch.where(batch.labels < 0, -100, batch.labels % 60 + 3), batch.attention_mask
    )
    rows = [
        Batch(ids[mask == 1][None], labels[mask == 1][None])
        for ids, labels, mask in zip(batch.input_ids, batch.labels, batch.attention_mask, strict=True)
    ]
    tokens = torch.tensor([real_tokens(base, PROMPT_TOKENS, spec.seed, "prompt")])
    with Engine(
        model, EngineConfig(), weights=done.weights(ModelWeights(base), EngineConfig()), drive=done.drive
    ) as engine:
        losses, counts = [engine.evaluate(row) for row in rows], [counted(model, row) for row in rows]
        mean = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
        assert engine.evaluate(batch) == pytest.approx(mean, rel=1e-6)
    if scheme == "prompt":
        ids, labels = rows[0].input_ids, rows[0].labels
        behind = torch.cat([torch.full_like(tokens, -100), labels], 1)
        expected = base(torch.cat([tokens, ids], 1), labels=behind).loss.item()
        assert losses[0] == pytest.approx(expected, rel=1e-5)


@functools.cache
def reference(scheme, name):
    """(first values, losses, projected gradients, last values) of the adapter in a plain loop over peft's model."""
    model, _, initial = applied(name, scheme, EngineConfig(placement="resident"))
    values = adapter(model, initial)
    theirs = peft_model(name, scheme, values)
    seeds = draw_seeds(RUN_SEED, STEPS)
    losses, gradients = mezo(theirs, batches(name, STEPS), seeds, eps=EPS, lr=LR, loss_of=loss)
    parameters = dict(theirs.named_parameters())
    return values, losses, gradients, {key: parameters[peft_name(key, scheme)] for key in values}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_training_equals_mezo_on_pefts_model(scheme, name, mode):
    first, losses, gradients, last = reference(scheme, name)
    steps, final = train(scheme, name, EngineConfig(**MODES[mode]), STEPS)
    assert [step.loss for step in steps] == losses
    assert [step.projected_grad for step in steps] == gradients
    assert all(torch.equal(final[key], last[key]) for key in last)
    assert not any(torch.equal(final[key], first[key]) for key in first)  # all of it was moved


def train(scheme, name, config, count):
    """(what each step returned, name -> final weights)."""
    model, done, initial = applied(name, scheme, config)
    with Engine(model, config, weights=initial, drive=done.drive) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED)
        return [method.step(engine, batch) for batch in batches(name, count)], dict(engine.named_tensors())


@pytest.mark.parametrize("mode", COUNTER)
@pytest.mark.parametrize("name", ["opt350-tiny", "qwen3-tiny"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_counter_noise_equals_a_plain_loop_over_pefts_model(scheme, name, mode):
    model, _, initial = applied(name, scheme, EngineConfig())
    order = [number for number, p in enumerate(model.parameters()) if p.requires_grad]
    values = adapter(model, initial)
    theirs = peft_model(name, scheme, values)
    seeds = draw_seeds(RUN_SEED, 5)
    losses, gradients = pristine_mezo(theirs, order, batches(name, 5), seeds, eps=EPS, lr=LR)
    steps, final = train(scheme, name, EngineConfig(noise="counter", **COUNTER[mode]), 5)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    assert [step.projected_grad for step in steps] == pytest.approx(gradients, abs=2e-4)  # 1e-6 of a loss of 4, / 2 eps
    parameters = dict(theirs.named_parameters())
    for key, before in values.items():
        torch.testing.assert_close(final[key], parameters[peft_name(key, scheme)].data, rtol=0, atol=1e-5)
        assert not torch.equal(final[key], before)
