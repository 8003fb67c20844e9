"""A plain MeZO loop on a materialised model: what parity is measured against. It shares no code with the engine."""

import numpy as np
import torch


def draw_seeds(run_seed, count):
    generator = np.random.default_rng(run_seed)
    return [int(generator.integers(10**9)) for _ in range(count)]


def perturb(model, seed, scale, eps):
    torch.manual_seed(seed)
    for _, p in model.named_parameters():
        z = torch.normal(mean=0, std=1, size=p.size(), dtype=p.dtype, device=p.device)
        p.data = p.data + scale * z * eps


def update(model, seed, g, lr, wd):
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        z = torch.normal(mean=0, std=1, size=p.size(), dtype=p.dtype, device=p.device)
        if any(word in name for word in ("bias", "layer_norm", "layernorm")):
            p.data = p.data - lr * (g * z)
        else:
            p.data = p.data - lr * (g * z + wd * p.data)


@torch.inference_mode()
def mezo(model, batches, seeds, *, eps, lr, wd=0.0):
    """Lists (losses, projected gradients), one step per batch and seed; the model's own loss from full logits."""
    losses, gs = [], []
    for batch, seed in zip(batches, seeds, strict=True):
        pair = []
        for scale in (1, -2):
            perturb(model, seed, scale, eps)
            out = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)
            pair.append(out.loss.item())
        perturb(model, seed, 1, eps)
        g = (pair[0] - pair[1]) / (2 * eps)
        update(model, seed, g, lr, wd)
        losses.append((pair[0] + pair[1]) / 2)
        gs.append(g)
    return losses, gs
