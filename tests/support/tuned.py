"""A few steps of any method and scheme, built as a run builds them."""

import torch

from tests.support.parity import batches_of
from zobench import RunSpec
from zobench.data.batch import Batch, Choices
from zobench.training.assemble import tuner

EXTRA = {
    "zo-sgd-sparse": {"sparsity": 0.3}, "hybrid": {"zo_layers": 2}, "fzoo": {"queries": 3},
    "hizoo": {"options": {"smooth": 1e-2}}, "sparse-mezo": {"sparsity": 0.3, "noise": "counter"},
    "zo-muon": {"queries": 2}, "es": {"queries": 3}, "eggroll": {"queries": 3, "options": {"shards": 3}},
    "qes": {"queries": 3, "noise": "counter", "eps": 0.3, "lr": 0.01},
}  # fmt: skip


def spec_of(method, device, **changes):
    fixed = {"model": "opt-tiny", "seq_len": 17, "batch_size": 3, "lr": 1e-4, "eps": 1e-3, "method": method}
    return RunSpec(**(fixed | EXTRA.get(method, {}) | changes)).resolve(device)


def run(what, steps=4):
    """(losses, gradients, final weights, scores of a last batch of choices)."""
    data = batches_of(what, steps)
    with tuner(what) as built:
        done = [built.method.step(built.engine, batch) for batch in data]
        scores = built.engine.scores(choices(data[0]))
        final = {name: tensor.cpu() for name, tensor in built.engine.named_tensors()}
    return [step.loss for step in done], [step.projected_grad for step in done], final, scores


def choices(batch):
    """Two candidates of one token each per row, at its last place."""
    rows = len(batch.input_ids)
    places = torch.tensor([[row, batch.input_ids.shape[1] - 1] for row in range(rows) for _ in range(2)])
    tokens = torch.tensor([7, 9] * rows)
    groups, answers = torch.arange(2 * rows) // 2, torch.arange(rows) * 2
    return Batch(
        batch.input_ids, batch.labels, batch.attention_mask,
        Choices(places, tokens, torch.arange(2 * rows), groups, answers),
    )  # fmt: skip
