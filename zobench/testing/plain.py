"""A tiny model in plain torch, moved and updated by hand: what the suites of engines and methods compare with."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from zobench import kernels, models
from zobench.data.batch import IGNORED, Batch, Choices
from zobench.engine.base import Entry, Point
from zobench.models.weights import RandomWeights, Weights, materialise
from zobench.runspec.kinds import NOISES

MODEL = "opt-tiny"
EPS = 0.02
"""Large enough that losses at +eps and -eps differ by far more than rounding."""


def skeleton(tied: bool = True) -> PreTrainedModel:
    """The model without weights. ``tied``: whether its head is the word embedding."""
    return copy.deepcopy(_built(tied))  # in a third of the time that building takes


@functools.cache
def _built(tied: bool) -> PreTrainedModel:
    return models.build(MODEL, "fp32", tied)


@functools.cache
def start(tied: bool = True) -> Weights:
    """The weights that every engine of a suite begins with."""
    return RandomWeights(skeleton(tied), 3)


def full() -> Batch:
    """Three rows of seven tokens."""
    ids = torch.arange(21).view(3, 7) * 5 % 90 + 4
    return Batch(ids, ids)


def padded() -> Batch:
    """Rows of seven, five and three tokens, padded on the left; nothing that is predicted from padding counts."""
    ids, mask = full().input_ids.clone(), torch.ones(3, 7, dtype=torch.int64)
    for row, width in enumerate((0, 2, 4)):
        ids[row, :width], mask[row, :width] = 1, 0
    labels = torch.where(mask.bool(), ids, IGNORED)
    labels[torch.arange(3), mask.argmax(1)] = IGNORED  # a row's first token, which its padding would predict
    return Batch(ids, labels, mask)


def choosing(loss: str = "choice") -> Batch:
    """Two examples: candidates of one and two tokens at the ends of two rows, and of one token each in a third."""
    batch = full()
    places = torch.tensor([[0, 5], [1, 4], [1, 5], [2, 5], [2, 5]])
    owners, groups = torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
    choices = Choices(places, torch.tensor([40, 50, 51, 60, 61]), owners, groups, torch.tensor([1, 2]), loss)
    return Batch(batch.input_ids, torch.full_like(batch.labels, IGNORED), batch.attention_mask, choices)


BATCHES: dict[str, Callable[[], Batch]] = {
    "full": full,
    "padded": padded,
    "choice": choosing,
    "lm": lambda: choosing("lm"),
}


class PlainModel:
    """The model with weights of its own. ``noise``: torch or counter; ``moved``: whether directions move a name."""

    def __init__(self, noise: str, moved: Callable[[str], bool] = lambda name: True, tied: bool = True) -> None:
        self.model = skeleton(tied)
        materialise(self.model, start(tied), "cpu")
        self.model.eval()  # type: ignore[no-untyped-call]
        self._noise, self._moved = noise, moved
        blocks = models.blocks(self.model)
        self.parts = len(blocks) + 2
        """The parts of the model: what comes before the blocks, each block, and what follows them."""
        of_block = {id(tensor): number for number, block in enumerate(blocks, start=1) for tensor in block.parameters()}
        self._parts = {
            name: of_block.get(id(tensor), self.parts - 1 if "final_layer_norm" in name or "lm_head" in name else 0)
            for name, tensor in self.model.named_parameters()
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, as they are now."""
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    @torch.no_grad()
    def loss(self, batch: Batch) -> float:
        """The batch's mean loss, from full logits."""
        return float(self.loss_of(batch))

    def loss_of(self, batch: Batch) -> Tensor:
        """The same, differentiable."""
        if batch.choices is None:
            chances, targets = self._chances(batch)[:, :-1], batch.labels[:, 1:]
            return functional.nll_loss(chances.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        choices, picked = batch.choices, self._picked(batch)
        right = choices.answers.tolist()
        if choices.loss == "lm":
            kept = [candidate in right for candidate in choices.owners.tolist()]
            return -picked[kept].mean()
        scores = self._scores(batch)
        each = []
        for example, answer in enumerate(right):
            rivals = [n for n, group in enumerate(choices.groups.tolist()) if group == example]
            each.append(torch.logsumexp(scores[rivals], 0) - scores[answer])
        return torch.stack(each).mean()

    @torch.no_grad()
    def scores(self, batch: Batch) -> Tensor:
        """The mean log-probability of each candidate's tokens."""
        return self._scores(batch)

    @torch.no_grad()
    def next_logits(self, batch: Batch) -> Tensor:
        """The logits after each row's last token."""
        logits = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return cast("Tensor", logits[:, -1])

    def direction(self, seed: int) -> dict[str, Tensor]:
        """z(seed) of what directions move, by name."""
        generator, z_by_name = torch.Generator().manual_seed(seed), {}
        for number, (name, tensor) in enumerate(self.model.named_parameters()):
            if self._moved(name):
                z_by_name[name] = z = torch.empty(tensor.shape)
                if NOISES[self._noise].in_place:
                    z.normal_(generator=generator)
                else:
                    kernels.normals(seed, kernels.Span(number), z)
        return z_by_name

    @contextmanager
    def at(self, point: Point) -> Iterator[None]:
        """Inside, the weights are at ``point``."""
        before = self.tensors
        if point.seed is not None:
            with torch.no_grad():
                for name, z in self.direction(point.seed).items():
                    if point.part in (None, self._parts[name]):
                        self.model.get_parameter(name).add_(point.scale * z)
        try:
            yield
        finally:
            self.set(before)

    @torch.no_grad()
    def set(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.model.get_parameter(name).copy_(tensor)

    def losses(self, batch: Batch, points: Sequence[Point]) -> list[float]:
        losses = []
        for point in points:
            with self.at(point):
                losses.append(self.loss(batch))
        return losses

    @torch.no_grad()
    def update(self, entries: Sequence[Entry]) -> None:
        """``W -= lr * (g * z + weight_decay * W)``, in float64; decay skips biases and layer norms."""
        for entry in entries:
            for name, z in self.direction(entry.seed).items():
                if entry.part in (None, self._parts[name]):
                    weights = self.model.get_parameter(name)
                    spared = any(word in name for word in ("bias", "layer_norm", "layernorm"))
                    decay = 0.0 if spared else entry.weight_decay
                    change = entry.g * z.double() + decay * weights.double()
                    weights.copy_(weights.double() - entry.lr * change)

    def slope(self, batch: Batch, seed: int) -> float:
        """The derivative of the loss along z(seed), by backpropagation."""
        self.model.zero_grad()
        with torch.enable_grad():
            self.loss_of(batch).backward()
        z = self.direction(seed)
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return math.fsum(float((gradients[name].double() * z[name].double()).sum()) for name in gradients)

    def _chances(self, batch: Batch) -> Tensor:
        logits = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return cast("Tensor", logits).float().log_softmax(-1)

    def _picked(self, batch: Batch) -> Tensor:
        assert batch.choices is not None
        return self._chances(batch)[batch.choices.places[:, 0], batch.choices.places[:, 1], batch.choices.tokens]

    def _scores(self, batch: Batch) -> Tensor:
        assert batch.choices is not None
        picked, owners = self._picked(batch), batch.choices.owners
        return torch.stack([picked[owners == candidate].mean() for candidate in range(len(batch.choices.groups))])


def has_class_forwards(model: nn.Module) -> bool:
    """Whether every module of the model has its class's own forward."""
    return not any("forward" in vars(module) for module in model.modules())
