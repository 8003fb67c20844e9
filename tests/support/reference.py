"""Plain MeZO loops on a materialised model: what parity is measured against.

They share no code with the engine; the second takes its z from the kernels, which have references of their own.
"""

import math

import numpy as np
import torch

from zobench import kernels


def draw_seeds(run_seed, count):
    generator = np.random.default_rng(run_seed)
    return [int(generator.integers(10**9)) for _ in range(count)]


def g_of(plus, minus, eps, device="cpu"):
    """g as MeZO's program has it: a difference and a quotient of float32 tensors, for which CUDA multiplies by the
    number's reciprocal."""
    plus, minus = (torch.tensor(loss, dtype=torch.float32) for loss in (plus, minus))
    if torch.device(device).type == "cuda":
        return ((plus - minus) * (1 / torch.tensor(2 * eps, dtype=torch.float32))).item()
    return ((plus - minus) / (2 * eps)).item()


def own_loss(model, batch):
    return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss.item()


def draws(model, seed, names=None):
    """(name, parameter, z) of what is trained, or of ``names``: MeZO's stream over these alone."""
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        if p.requires_grad if names is None else name in names:
            yield name, p, torch.normal(mean=0, std=1, size=p.size(), dtype=p.dtype, device=p.device)


def perturb(model, seed, scale, eps, names=None):
    for _, p, z in draws(model, seed, names):
        p.data = p.data + scale * z * eps


def update(model, seed, g, lr, wd, names=None):
    for name, p, z in draws(model, seed, names):
        if any(word in name for word in ("bias", "layer_norm", "layernorm")):
            p.data = p.data - lr * (g * z)
        else:
            p.data = p.data - lr * (g * z + wd * p.data)


@torch.inference_mode()
def mezo(model, batches, seeds, *, eps, lr, wd=0.0, loss_of=own_loss, fresh=False):
    """Lists (losses, projected gradients), one step per batch and seed; by default of the loss from full logits.
    ``fresh``: W + eps z and W - eps z are each made from W, which moves by updates alone (DistZO2, section 4.2)."""
    losses, gs = [], []
    for batch, seed in zip(batches, seeds, strict=True):
        pair, kept = [], [p.data for p in model.parameters()]
        for scale in (1, -1) if fresh else (1, -2):
            perturb(model, seed, scale, eps)
            pair.append(loss_of(model, batch))
            for p, data in zip(model.parameters(), kept if fresh else (), strict=fresh):
                p.data = data
        if not fresh:
            perturb(model, seed, 1, eps)
        g = g_of(*pair, eps, next(model.parameters()).device)
        update(model, seed, g, lr, wd)
        losses.append((pair[0] + pair[1]) / 2)
        gs.append(g)
    return losses, gs


def z_of(seed, tensor_id, like):
    z = torch.empty(like.shape, dtype=torch.float32)
    kernels.normals(seed, kernels.Span(tensor_id), z)
    return z


def direction(model, seed, noise):
    """name -> z of the seed, in ``named_parameters()`` order: counter noise, or torch's stream over all of them."""
    if noise == "counter":
        return {name: z_of(seed, n, p) for n, (name, p) in enumerate(model.named_parameters())}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.empty(p.shape).normal_(generator=generator) for name, p in model.named_parameters()}


def plain_loss(model, batch):
    """The mean loss from full logits: log of the sum of exponentials less the target's logit."""
    hidden = model.base_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    logits = model.get_output_embeddings()(hidden).float().flatten(0, 1)
    targets = torch.nn.functional.pad(batch.labels[:, 1:], (0, 1), value=-100).flatten()
    top = logits.amax(1)
    each = top + (logits - top[:, None]).exp().sum(1).log() - logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return (torch.where(targets == -100, 0.0, each).sum() / (targets != -100).sum()).item()


@torch.inference_mode()
def loss_at(model, batch, move=None, scale=0.0):
    """:func:`plain_loss` at the weights moved by ``scale`` times ``move`` (name -> tensor), which stay as they were."""
    before = {name: p.data for name, p in model.named_parameters()}
    for name, p in model.named_parameters() if move else ():
        p.data = p.data + scale * move[name].float()
    loss = plain_loss(model, batch)
    for name, p in model.named_parameters():
        p.data = before[name]
    return loss


def replayed(model, exact, entries):
    """name -> float32 weights: ``exact`` after the updates of ``entries``, made one after another."""
    moved = {}
    for n, (name, p) in enumerate(model.named_parameters()):
        w = exact[name]
        for seed, g, lr, wd in entries:
            update = np.float32(g) * z_of(seed, n, p)
            if wd and not any(word in name for word in ("bias", "layer_norm", "layernorm")):
                update = update + np.float32(wd) * w
            w = w - np.float32(lr) * update
        moved[name] = w
    return moved


def rounded(model, exact):
    return {name: exact[name].to(p.dtype) for name, p in model.named_parameters()}


def replay(model, base, pending):
    """name -> weights: the updates of ``pending`` made in float32 one after another, rounded once."""
    return rounded(model, replayed(model, {name: base[name].float() for name, _ in model.named_parameters()}, pending))


@torch.inference_mode()
def pristine_mezo(model, batches, seeds, *, eps, lr, wd=0.0, every=1):
    """MeZO with W + eps z and 2W - (W + eps z) made fresh from W; ``seeds``: one tuple of directions per step.

    z is the counter noise of each parameter by its place in ``named_parameters()``; W is rounded from float32 weights
    that go on unrounded for ``every`` steps. Lists (losses, mean projected gradients), and leaves the last weights in
    the model.
    """
    exact, age = {name: p.data.float() for name, p in model.named_parameters()}, 0
    losses, gs = [], []
    for batch, directions in zip(batches, seeds, strict=True):
        noise = rounded(model, exact)
        if age >= every:
            exact, age = {name: w.float() for name, w in noise.items()}, 0
        pairs = []
        for seed in directions:
            for n, (name, p) in enumerate(model.named_parameters()):
                p.data = (noise[name].float() + eps * z_of(seed, n, p)).to(p.dtype)
            plus = plain_loss(model, batch)
            for name, p in model.named_parameters():
                p.data = (2 * noise[name].float() - p.float()).to(p.dtype)
            pairs.append((plus, plain_loss(model, batch)))
        each = [g_of(plus, minus, eps) for plus, minus in pairs]
        entries = [
            (s, g / len(each), lr, 0.0 if n else wd) for n, (s, g) in enumerate(zip(directions, each, strict=True))
        ]
        exact = replayed(model, exact, entries)
        age += 1
        losses.append(sum((plus + minus) / 2 for plus, minus in pairs) / len(pairs))
        gs.append(math.fsum(each) / len(each))
    for name, w in rounded(model, exact).items():
        model.get_parameter(name).data = w
    return losses, gs
