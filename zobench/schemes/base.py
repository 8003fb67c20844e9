"""Schemes: the one that tunes all weights, and the base class of those that tune an adapter."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from zobench import models
from zobench.engine.base import EngineConfig
from zobench.engine.passes.drive import Drive, plain
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.machine.files import writing
from zobench.models.weights import Weights
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel


class Scheme(Protocol):
    """A scheme says which weights are tuned. ``drive``: how an engine calls the model; ``virtual_tokens``: positions
    before the tokens' own."""

    drive: Drive
    virtual_tokens: int

    def weights(self, base: Weights, config: EngineConfig) -> Weights:
        """The initial values of the changed model: ``base``'s, under the plain model's names, and the adapter's.

        A prefix's are computed here, by an engine with this ``config`` over the plain model.
        """

    def save(self, folder: str | Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Writes what was tuned, out of the engine's ``named_tensors()``, as transformers or ``peft`` load it."""


class Full:
    """All weights are tuned; the model stays as it is."""

    virtual_tokens = 0

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        self.drive: Drive = plain
        self._model = model

    def weights(self, base: Weights, config: EngineConfig) -> Weights:
        return base

    def save(self, folder: str | Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Writes a Hugging Face checkpoint, as the engine's ``save_pretrained`` does."""
        save_checkpoint(self._model, tensors, Path(folder))


class Adapter(ABC):
    """An adapter of ``peft``'s: the base is frozen, and the adapter's tensors, by their ``names``, are parameters of
    the model itself. A scheme of yours gives ``values``, and where names differ ``base_name`` and ``file_name``."""

    virtual_tokens = 0

    def __init__(self, spec: RunSpec, model: PreTrainedModel, config: PeftConfig) -> None:
        from peft import get_peft_model

        self.drive: Drive = plain
        self.seed, self._config = spec.seed, config
        # peft has no type for masked models
        config.task_type = "FEATURE_EXTRACTION" if models.is_masked(model) else "CAUSAL_LM"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers in a way that is going out of use
            wrapped = get_peft_model(model, config, low_cpu_mem_usage=True)
        if config.is_prompt_learning:  # LoRA's layers are in the model already
            model.add_module("prompt_encoder", wrapped.prompt_encoder["default"])
        pretrained = models.weights_place(spec) if spec.weights == "pretrained" else models.of(spec).hub_id
        config.base_model_name_or_path = pretrained or spec.model_path or spec.model
        self.names = frozenset(name for name, tensor in model.named_parameters() if tensor.requires_grad)

    def weights(self, base: Weights, config: EngineConfig) -> Weights:
        return _Joined(self, base, config)

    def save(self, folder: str | Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Writes an adapter's folder, for ``peft.PeftModel.from_pretrained(base, folder)``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {self.file_name(name): tensor for name, tensor in tensors if name in self.names}
        assert len(kept) == len(self.names), f"only {len(kept)} of {len(self.names)} adapter tensors were given"
        self._config.inference_mode = True
        for key, value in vars(self._config).items():
            if isinstance(value, set):  # peft writes a set in the order of its hashes, which each process seeds anew
                setattr(self._config, key, sorted(value))
        self._config.save_pretrained(str(folder))
        file = folder / "adapter_model.safetensors"
        with writing(file):
            save_file(kept, file, metadata={"format": "pt"})
        file.chmod((folder / "adapter_config.json").stat().st_mode)  # safetensors makes files that nobody else can read

    def base_name(self, name: str) -> str:
        """The plain model's name of a frozen tensor."""
        return name

    def file_name(self, name: str) -> str:
        """The name of an adapter's tensor in ``peft``'s file."""
        return "prompt_embeddings"

    @abstractmethod
    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """Makes the initial values of an adapter's tensor, on the CPU, from its name."""


class _Joined(Weights):
    """The values of a base and of an adapter beside it (see :class:`~zobench.models.weights.Weights`)."""

    def __init__(self, adapter: Adapter, base: Weights, config: EngineConfig) -> None:
        self._adapter, self._base, self._make = adapter, base, adapter.values(base, config)

    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        if name in self._adapter.names:
            out.copy_(self._make(name)[first : first + out.shape[0]])
        else:
            self._base.fill(self._adapter.base_name(name), out, first)


def generator(seed: int, name: str) -> np.random.Generator:
    """Draws that depend on (seed, name) alone, not on what was drawn before."""
    return np.random.default_rng([seed, *name.encode()])


def real_tokens(model: PreTrainedModel, count: int, seed: int, name: str) -> list[int]:
    """Ids of ``count`` different tokens of the vocabulary, none of which the configuration names as special."""
    ids = [value for key, value in model.config.to_dict().items() if key.endswith("_token_id")]
    special = {token for value in ids if value is not None for token in (value if isinstance(value, list) else [value])}
    vocabulary: int = model.get_input_embeddings().num_embeddings  # type: ignore[assignment]
    ordinary = [token for token in range(vocabulary) if token not in special]
    return [int(token) for token in generator(seed, name).choice(ordinary, count, replace=False)]


def check_positions(spec: RunSpec, model: PreTrainedModel, virtual: int) -> None:
    """Raises ``ValueError`` if the model's positions do not hold the sequence and the virtual tokens before it."""
    positions = models.position_count(spec)
    if spec.seq_len + virtual > positions:
        raise ValueError(
            f"`seq_len + {virtual} <= {positions}` must hold with scheme={spec.scheme}, whose {virtual} virtual tokens "
            f"take positions of {spec.model}, but got seq_len={spec.seq_len}; use seq_len={positions - virtual} or less"
        )


def virtual_ids(input_ids: Tensor, count: int) -> Tensor:
    """(rows, count): the numbers of the virtual tokens, for each row of ``input_ids`` (rows, tokens)."""
    return torch.arange(count, device=input_ids.device).expand(input_ids.shape[0], -1)


def extended(model: nn.Module, attention_mask: Tensor | None, virtual: int) -> tuple[Tensor | None, Tensor | None]:
    """(the mask, the positions) of ``virtual`` tokens and the mask's (rows, tokens) after them; None without a mask.

    Positions count what is not padding, so that padding between the virtual tokens and the others changes nothing.
    """
    if attention_mask is None:
        return None, None
    mask = functional.pad(attention_mask, (virtual, 0), value=1)
    positions = mask.cumsum(1) * mask - 1 + _first_position(model)
    return mask, positions.clamp(min=0)  # of padding, which no token sees, GPT-2's table has no row -1


def _first_position(model: nn.Module) -> int:
    """The position of the first token: RoBERTa's, whose table of positions has a row for padding, begin after it."""
    tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
    padding = getattr(tables[0], "padding_idx", None) if tables else None
    return 0 if padding is None else padding + 1
