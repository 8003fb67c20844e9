"""What int8 products would give: their rate, and how well g along directions of low rank survives them.

``ZOBENCH_DATA_DIR=DATA python -m tests.benchmarks.int8_products FOLDER 200`` takes a folder of a pretrained model of
the LLaMA family. Weights of the blocks' layers are int8 by output channel, activations int8 by row, each scaled to its
largest; directions U V^T of rank 2 are multiplied in bf16 beside them. g is that of SST-2's loss on 8 sentences, along
the same directions in float32, bf16 and int8. An engine is worth it from a correlation of 0.95 at some eps on.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.real import data_of, spec_of
from zobench import Batch
from zobench.finetune.assemble import empty_model, initial_weights
from zobench.measure.best import best_seconds
from zobench.models.weights import materialise

KINDS = ("fp32", "bf16", "int8")
SCALES = (1e-3, 1e-2, 1e-1)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 (n, k), the float32 scale (n, 1) of each row) of float32 ``x`` (n, k)."""
    scale = x.abs().amax(1, keepdim=True).clamp_(min=1e-12).div_(127)
    return (x / scale).round_().to(torch.int8), scale


class Moved(nn.Module):
    """A linear layer at ``W + c U V^T`` whose product with W is of the ``kind`` of all layers."""

    kind, scale = "fp32", 0.0

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.whole, self.bias = layer.weight.detach(), layer.bias
        self.half = self.whole.bfloat16()
        codes, self.steps = quantized(self.whole)
        self.codes = codes.t()
        self.u, self.v = torch.zeros(1), torch.zeros(1)

    def draw(self, generator: torch.Generator) -> None:
        """Another direction of rank 2."""
        rows, columns = self.whole.shape
        self.u, self.v = (torch.randn(size, 2, generator=generator) for size in (rows, columns))

    def forward(self, x: Tensor) -> Tensor:
        """(..., columns) to (..., rows), float32."""
        flat = x.reshape(-1, x.shape[-1])
        if Moved.kind == "fp32":
            product = flat @ self.whole.t() + Moved.scale * (flat @ self.v) @ self.u.t()
        else:
            thin = (flat.bfloat16() @ self.v.bfloat16()) @ self.u.t().bfloat16()
            product = self.plain(flat) + Moved.scale * thin.float()
        return (product if self.bias is None else product + self.bias).view(*x.shape[:-1], -1)

    def plain(self, flat: Tensor) -> Tensor:
        """The product with W alone."""
        if Moved.kind == "bf16":
            return (flat.bfloat16() @ self.half.t()).float()
        codes, steps = quantized(flat)
        return torch._int_mm(codes, self.codes).float() * steps * self.steps.t()


def loss(model: Any, batch: Batch) -> float:
    """The cross-entropy over the candidates' first tokens, as SST-2 has them."""
    choices = batch.choices
    assert choices is not None
    body = model.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    states = body.last_hidden_state[choices.places[:, 0], choices.places[:, 1]]
    picked = (states * model.lm_head.weight[choices.tokens]).sum(-1)  # the loss drops the normaliser of both candidates
    answers = choices.answers - torch.arange(0, len(choices.groups), 2)
    return float(functional.cross_entropy(picked.view(-1, 2), answers))


def correlations(folder: str, count: int) -> None:
    """Prints, for each eps, the correlation of g in bf16 and int8 with g in float32 over ``count`` directions, and
    after every 50 of them what it is so far."""
    spec = spec_of(model=folder, weights="pretrained", task="sst2", batch_size=8)
    batch, model = data_of(spec).train_batch(0), empty_model(spec)
    materialise(model, initial_weights(spec, model), "cpu")
    layers = []
    for block in model.model.layers:  # type: ignore[union-attr]
        for holder, (name, layer) in [(m, own) for m in block.modules() for own in m.named_children()]:
            if isinstance(layer, nn.Linear):
                layers.append(Moved(layer))
                setattr(holder, name, layers[-1])
    found: dict[tuple[str, float], list[float]] = {key: [] for key in itertools.product(KINDS, SCALES)}
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        for layer in layers:
            layer.draw(generator)
        for kind, eps in found:
            Moved.kind, ends = kind, []
            for sign in (1, -1):
                Moved.scale = sign * eps
                ends.append(loss(model, batch))
            found[kind, eps].append((ends[0] - ends[1]) / (2 * eps))
        if number + 1 == count or (number + 1) % 50 == 0:
            print(f"| {number + 1} directions: | | | |")
            for kind, eps in itertools.product(KINDS[1:], SCALES):
                with_own, with_least = (
                    torch.corrcoef(torch.tensor([found["fp32", exact], found[kind, eps]], dtype=torch.float64))[0, 1]
                    for exact in (eps, SCALES[0])
                )
                print(f"| {kind} | {eps:g} | {with_own:.3f} | {with_least:.3f} |", flush=True)


def rates() -> None:
    """Prints the products' rates, GFLOP/s, for rows and the layer sizes of SmolLM2-135M and OPT-125M."""
    for rows, (inner, outer) in itertools.product((64, 256, 1024), ((576, 1536), (768, 3072))):
        x, weight = torch.randn(rows, inner), torch.randn(outer, inner)
        codes, (table, steps) = quantized(x)[0], quantized(weight)
        short, half = x.bfloat16(), weight.bfloat16()
        table = table.t()
        calls = {
            "fp32": lambda x=x, w=weight: x @ w.t(),
            "bf16": lambda x=short, w=half: x @ w.t(),
            "int8 alone": lambda codes=codes, table=table: torch._int_mm(codes, table),
            "int8 with scales": lambda x=x, table=table, steps=steps: (
                torch._int_mm((own := quantized(x))[0], table).float() * own[1] * steps.t()
            ),
        }
        told = [f"{2e-9 * rows * inner * outer / best_seconds('cpu', call, 0.3):.0f}" for call in calls.values()]
        print(f"| {rows} | {inner} x {outer} | {' | '.join(told)} |", flush=True)


@torch.inference_mode()
def main(folder: str, count: int) -> None:
    """Prints both tables; the second does not depend on how busy the machine is."""
    print("| rows | layer | fp32 | bf16 | int8 alone | int8 with scales |\n|---|---|---:|---:|---:|---:|")
    rates()
    print("\n| products | eps | correlation with fp32's g | with fp32's g at eps 0.001 |\n|---|---|---:|---:|")
    correlations(folder, count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
