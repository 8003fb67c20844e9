"""Plain models, batches with padding and with choices, and directional derivatives by backpropagation."""

import functools

import torch

from tests.support.parity import materialised
from tests.support.reference import z_of
from zobench import Batch, Engine, EngineConfig, models
from zobench.data.batch import Choices
from zobench.engine.backprop import Backprop
from zobench.models import weights

MODELS = ("opt-tiny", "opt350-tiny", "qwen3-tiny", "llama-tiny")
SEED, MASK = 7, 10**9
RESIDENT = EngineConfig(placement="resident")
BEFORE = {
    "opt-tiny": {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"},
    "opt350-tiny": {
        *("model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"),
        "model.decoder.project_in.weight",
    },
    "qwen3-tiny": {"model.embed_tokens.weight"},
    "llama-tiny": {"model.embed_tokens.weight"},
}


def filled(name, tied=True, train=lambda name: True):
    """A plain model; only the parameters that ``train`` names require gradients."""
    return select(materialised(name, "fp32", tied), train)


def select(model, train):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(train(name))
    return model


def engine_of(name, tied=True, train=lambda name: True, dtype="fp32", **config):
    thresholds = config.pop("thresholds", None)
    model = select(models.build(name, dtype, tied), train)
    return Engine(model, EngineConfig(**config), weights=weights.RandomWeights(model, 3), thresholds=thresholds)


def backprop(name="opt-tiny", tied=True, config=RESIDENT, train=lambda name: True, **options):
    model = select(models.build(name, "fp32", tied), train)
    return Backprop(model, config, weights=weights.RandomWeights(model, 3), **options)


@functools.cache
def padded():
    """Three rows, padded on the left; some labels are ignored."""
    ids = torch.randint(3, 128, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[1, :1] = 0
    return Batch(ids, torch.where(mask == 0, -100, ids), mask)


def batches(count):
    """For the methods that step along a gradient."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        ids = torch.randint(3, 128, (2, 9), generator=generator)
        yield Batch(ids, ids)


def choosing(loss):
    """Two examples, of three and two candidates with one to three tokens each."""
    rows = [0, 0, 1, 1, 1, 1, 2, 2]
    places = torch.tensor([[row, 5 + n % 4] for n, row in enumerate(rows)])
    tokens = torch.arange(40, 48)
    owners, groups = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4]), torch.tensor([0, 0, 0, 1, 1])
    batch = padded()
    choices = Choices(places, tokens, owners, groups, torch.tensor([1, 4]), loss)
    return Batch(batch.input_ids, batch.labels, batch.attention_mask, choices)


def plain_loss(model, batch):
    """The loss from full logits: the model's own, or that of the choices, candidate by candidate."""
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)
    if batch.choices is None:
        return output.loss
    asked = batch.choices
    logs = output.logits.log_softmax(-1)
    each = [logs[row, place, token] for (row, place), token in zip(asked.places.tolist(), asked.tokens, strict=True)]
    of = [[log for log, owner in zip(each, asked.owners, strict=True) if owner == c] for c in range(len(asked.groups))]
    if asked.loss == "lm":
        right = [log for answer in asked.answers for log in of[answer]]
        return -sum(right) / len(right)
    scores = [sum(logs) / len(logs) for logs in of]
    total = 0
    for example, answer in enumerate(asked.answers):
        rivals = torch.stack([score for score, group in zip(scores, asked.groups, strict=True) if group == example])
        total = total - (scores[answer] - rivals.logsumexp(0))
    return total / len(asked.answers)


def directions(model, noise, seed=SEED):
    """z(seed) of every trainable parameter: torch's stream over these alone, or the counter's, by all parameters."""
    generator = torch.Generator().manual_seed(seed)
    for n, (name, p) in enumerate(model.named_parameters()):
        if p.requires_grad:
            yield name, torch.empty(p.shape).normal_(generator=generator) if noise == "torch" else z_of(seed, n, p)


def derivative(model, batch, along):
    """(loss, sum of gradient times direction) by backpropagation, summed in float64."""
    loss = plain_loss(model, batch)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [model.get_parameter(name) for name in names])
    slopes = [(g.double() * along[name].double()).sum() for name, g in zip(names, gradients, strict=True)]
    return loss.item(), sum(slopes).item()
