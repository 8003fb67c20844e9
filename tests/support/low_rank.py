"""Low-rank directions by hand: W + c U V^T made whole, from draws of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from tests.support.reference import z_of
from zobench import Engine, EngineConfig, RunSpec, kernels, methods
from zobench.engine.base import Entry, Point
from zobench.testing.plain import PlainModel, skeleton, start


def engine_of(spec: RunSpec, **config: Any) -> Engine:
    """An engine over the small model along the directions of the spec's method."""
    settings = EngineConfig(noise="counter", **config)
    return Engine(skeleton(), settings, weights=start(), directions=methods.directions(spec))


def direction(number: int, shape: torch.Size, seed: int, subspace: int | None, rank: int) -> Tensor:
    """z of the parameter of this number in ``named_parameters()``."""
    if len(shape) != 2:
        return z_of(seed, number, torch.empty(shape))
    left, right = torch.empty(shape[0], rank), torch.empty(rank, shape[1])
    kernels.normals(seed, kernels.Span(number), left)
    kernels.normals(seed if subspace is None else subspace, kernels.Span(number, start=left.numel()), right)
    return left @ right


class LowRankPlain(PlainModel):
    """A plain model that is moved along directions of low rank."""

    def __init__(self, rank: int, tied: bool = True) -> None:
        super().__init__("counter", tied=tied)
        self._rank, self._subspace = rank, None

    def direction(self, seed: int) -> dict[str, Tensor]:
        return {
            name: direction(number, tensor.shape, seed, self._subspace, self._rank)
            for number, (name, tensor) in enumerate(self.model.named_parameters())
        }

    def losses(self, batch: object, points: Sequence[Point]) -> list[float]:
        losses = []
        for point in points:
            self._subspace = point.subspace  # type: ignore[assignment]
            losses += super().losses(batch, [point])  # type: ignore[arg-type]
        self._subspace = None
        return losses

    def update(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._subspace = entry.subspace  # type: ignore[assignment]
            super().update([entry])
        self._subspace = None


def other_family(name: str) -> Any:
    """A tiny model of another family than OPT-125M's, none of whose parameters is zero or one."""
    common = {"vocab_size": 60, "tie_word_embeddings": True}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    kinds = {
        "gpt2-tiny": ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}),
        "llama-tiny": ("llama", {**sizes, "num_key_value_heads": 1}),
        "opt-350m-tiny": ("opt", {
            "hidden_size": 16, "word_embed_proj_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
            "ffn_dim": 24, "max_position_embeddings": 16, "do_layer_norm_before": False, "pad_token_id": 1,
        }),
        "roberta-tiny": ("roberta", {**sizes, "max_position_embeddings": 20, "pad_token_id": 1}),
        "mixtral-tiny": ("mixtral", {**sizes, "num_key_value_heads": 1, "num_local_experts": 3}),
    }  # fmt: skip

    family, kind_named = kinds[name]
    config = AutoConfig.for_model(family, **common, **kind_named)
    torch.manual_seed(0)
    kind = AutoModelForMaskedLM if family == "roberta" else AutoModelForCausalLM
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.05)
    return model
