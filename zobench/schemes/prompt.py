"""Prompt tuning: 10 embeddings that stand before those of the tokens are tuned.

Source: docs/design/METHODS.md, "What is tuned".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from zobench.engine.base import EngineConfig
from zobench.engine.passes.drive import call
from zobench.models.weights import Weights
from zobench.runspec import RunSpec
from zobench.schemes import PROMPT_TOKENS as TOKENS
from zobench.schemes.base import Adapter, check_positions, extended, real_tokens, virtual_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Prompt(Adapter):
    """``peft``'s prompt encoder as the model's module ``prompt_encoder``. It starts as embeddings of real tokens."""

    virtual_tokens = TOKENS

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import PromptTuningConfig

        check_positions(spec, model, TOKENS)
        table = cast("Tensor", model.get_input_embeddings().weight)
        self._table = next(name for name, tensor in model.named_parameters() if tensor is table)
        self._shape, self._dtype = (1, table.shape[1]), table.dtype
        self._tokens = real_tokens(model, TOKENS, spec.seed, "prompt")
        # peft's own choice is the model's width, which is not the table's where a projection is between (OPT-350M)
        super().__init__(spec, model, PromptTuningConfig(num_virtual_tokens=TOKENS, token_dim=table.shape[1]))
        self.drive = drive

    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """The rows of the base's word embedding that belong to the chosen tokens."""
        rows = [torch.empty(self._shape, dtype=self._dtype) for _ in self._tokens]
        for token, row in zip(self._tokens, rows, strict=True):
            base.fill(self._table, row, token)
        prompt = torch.cat(rows).float()
        return lambda name: prompt


def drive(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Calls the model's body on the prompt and the tokens (see :class:`~zobench.engine.passes.drive.Drive`)."""
    words = model.get_input_embeddings()(input_ids)  # type: ignore[operator]
    prompt = model.prompt_encoder(virtual_ids(input_ids, TOKENS)).to(words.dtype)  # type: ignore[operator]
    mask, positions = extended(model, attention_mask, TOKENS)
    whole = call(model, inputs_embeds=torch.cat([prompt, words], 1), attention_mask=mask, position_ids=positions)
    return whole[:, TOKENS:]
