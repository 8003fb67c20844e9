"""LoRA: each query and value projection W becomes W + 2 B A, of rank 8; only A and B are tuned.

Source: docs/design/METHODS.md, "What is tuned".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zobench.engine.base import EngineConfig
from zobench.models.weights import Weights
from zobench.runspec import RunSpec
from zobench.schemes import LORA_ALPHA, LORA_RANK
from zobench.schemes.base import Adapter, generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TARGETS = (("q_proj", "v_proj"), ("query", "value"))
"""Names of the two projections in one family of models or another."""


class Lora(Adapter):
    """The model's own layers, wrapped by ``peft``'s: the frozen ``base_layer``, and ``lora_A`` and ``lora_B``."""

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import LoraConfig

        ends = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        pairs = [pair for pair in TARGETS if ends.issuperset(pair)]
        if not pairs:
            raise ValueError(
                f"`scheme=lora` needs layers named q_proj and v_proj or query and value, but {type(model).__name__} "
                "has none; use scheme=full"
            )
        config = LoraConfig(
            r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules=list(pairs[0]), lora_dropout=0.0, bias="none"
        )
        super().__init__(spec, model, config)
        self._shapes = {name: model.get_parameter(name).shape for name in self.names}

    def base_name(self, name: str) -> str:
        return name.replace(".base_layer.", ".")

    def file_name(self, name: str) -> str:
        return "base_model.model." + name.replace(".default.", ".")

    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """B is zero; A uniform within 1/sqrt(inputs), which is Kaiming's bound for a slope of sqrt(5), ``peft``'s."""

        def make(name: str) -> Tensor:
            shape = self._shapes[name]
            if ".lora_B." in name:
                return torch.zeros(shape)
            bound = shape[1] ** -0.5
            return torch.from_numpy(generator(self.seed, name).uniform(-bound, bound, tuple(shape))).float()

        return make
