"""``peft``'s own model and a plain MeZO loop over what is trainable in it: what schemes are measured against."""

import dataclasses

import peft
import torch

from tests.support.parity import batches_of, materialised
from tests.support.reference import g_of, z_of
from zobench import RunSpec, models, schemes
from zobench.data.batch import IGNORED
from zobench.models import weights


def batches(name, count, kind="random", seq_len=17):
    """Of random tokens; the first of a row has no label, because padding may stand before it."""
    spec = RunSpec(model=name, batch_size=3 if kind == "ragged" else 2, seq_len=seq_len, data=kind, seed=1)
    return [first_unlabelled(batch) for batch in batches_of(spec, count)]


def first_unlabelled(batch):
    mask = torch.ones_like(batch.labels) if batch.attention_mask is None else batch.attention_mask
    return dataclasses.replace(batch, labels=torch.where(mask.cumsum(1) == 1, IGNORED, batch.labels))


def applied(name, scheme, config, dtype="fp32", **changes):
    """(the changed model, still empty; the scheme; its weights)."""
    model = models.build(name, dtype)
    plain = weights.RandomWeights(model, 3)
    done = schemes.apply(RunSpec(model=name, scheme=scheme, seq_len=17, dtype=dtype, **changes), model)
    return model, done, done.weights(plain, config)


def peft_config(scheme, width, layers=("q_proj", "v_proj"), kind="CAUSAL_LM"):
    if scheme == "lora":
        return peft.LoraConfig(r=8, lora_alpha=16, target_modules=list(layers), task_type=kind)
    if scheme == "prefix":
        return peft.PrefixTuningConfig(num_virtual_tokens=5, task_type=kind)
    return peft.PromptTuningConfig(num_virtual_tokens=10, token_dim=width, task_type=kind)


def peft_name(name, scheme):
    return f"base_model.model.{name}" if scheme == "lora" else "prompt_encoder.default.embedding.weight"


def adapter(model, initial):
    """name -> initial values of every trainable tensor of the changed, empty model."""
    values = {name: torch.empty(p.shape, dtype=p.dtype) for name, p in model.named_parameters() if p.requires_grad}
    for name, value in values.items():
        initial.fill(name, value)
    return values


class Moved:
    """The same weights, but those of the adapter as if trained: LoRA's B starts at zero, which hides A."""

    def __init__(self, model, initial):
        self.values, self.initial = adapter(model, initial), initial
        generator = torch.Generator().manual_seed(0)
        for value in self.values.values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)

    def fill(self, name, out, first=0):
        if name in self.values:
            out.copy_(self.values[name][first : first + out.shape[0]])
        else:
            self.initial.fill(name, out, first)


def peft_model(name, scheme, values, dtype="fp32"):
    """``peft``'s model of the same base, with these adapter tensors."""
    base = materialised(name, dtype)
    width = base.get_input_embeddings().embedding_dim
    masked = (("query", "value"), "FEATURE_EXTRACTION") if name == "roberta-tiny" else ()
    return filled(base, peft_config(scheme, width, *masked), scheme, values)


@torch.no_grad()
def filled(base, config, scheme, values):
    model = peft.get_peft_model(base, config).eval()
    trainable = {key: p for key, p in model.named_parameters() if p.requires_grad}
    assert trainable.keys() == {peft_name(key, scheme) for key in values}
    for key, value in values.items():
        trainable[peft_name(key, scheme)].copy_(value)
    return model


@torch.no_grad()
def loss(model, batch):
    """``peft``'s logits of the tokens, and transformers' own loss of them."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    base = model.get_base_model()
    shown = logits[:, -batch.input_ids.shape[1] :].contiguous()
    return base.loss_function(logits=shown, labels=batch.labels, vocab_size=base.config.vocab_size).item()


def pristine_mezo(model, ids, data, seeds, *, eps, lr):
    """A plain MeZO loop over what is trainable with counter noise and weights made fresh from W: lists (losses,
    projected gradients). ``ids``: the tensors' places in the model."""
    losses, gs = [], []
    for batch, seed in zip(data, seeds, strict=True):
        trained = [p for p in model.parameters() if p.requires_grad]
        start, pair = [(p, p.data, z_of(seed, number, p)) for number, p in zip(ids, trained, strict=True)], []
        for scale in (eps, -eps):
            for p, w, z in start:
                p.data = w + scale * z
            pair.append(loss(model, batch))
        g = g_of(*pair, eps)
        for p, w, z in start:
            p.data = w - lr * (g * z)
        losses.append(sum(pair) / 2)
        gs.append(g)
    return losses, gs
