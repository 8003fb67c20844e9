"""Builds a registered model empty, and finds its blocks. Touches no network; torch is imported by what is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from zobench.models.registry import get
from zobench.models.variants import check_tying
from zobench.runspec.registries import MODELS

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The spec's word for a dtype to torch's."""


def build_config(name: str, tie_embeddings: bool | None = None, positions: int | None = None) -> PreTrainedConfig:
    """The transformers configuration of ``name``; ``None`` keeps the published tying and number of positions."""
    from transformers import AutoConfig

    architecture = get(name)
    check_tying(architecture, tie_embeddings)
    values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in architecture.config.items()}
    if tie_embeddings is not None:
        values["tie_word_embeddings"] = tie_embeddings
    if positions is not None:
        values["max_position_embeddings"] = positions + architecture.family.unused_positions
    return AutoConfig.for_model(architecture.model_type, use_cache=False, **values)


def build(
    name: str, dtype: torch.dtype | str, tie_embeddings: bool | None = None, positions: int | None = None
) -> PreTrainedModel:
    """The model in eval mode: parameters on the meta device (no memory), buffers on the CPU (real values).

    ``dtype`` is torch's or the spec's word. Fill it with :func:`zobench.models.weights.materialise`;
    ``Module.to_empty`` would lose the buffers.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = build_config(name, tie_embeddings, positions)
    family = AutoModelForMaskedLM if get(name).family.masked else AutoModelForCausalLM
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, DTYPES[dtype])
    with torch.device("meta"):
        model = family.from_config(config, dtype=kind, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    model.tie_weights()  # transformers 5.0 leaves a model on the meta device untied
    _compute_buffers(model)
    model.eval()
    return cast("PreTrainedModel", model)


def _compute_buffers(model: PreTrainedModel) -> None:
    """Gives every module that owns buffers the values that the same module has when it is built on the CPU.

    Buffers such as the rotary frequencies are in no checkpoint: only the module's constructor knows them.
    """
    for module in list(model.modules()):
        buffers = dict(module.named_buffers(recurse=False))
        if not buffers:
            continue
        fresh = type(module)(model.config)
        for key in buffers:
            setattr(module, key, fresh.get_buffer(key))


def is_masked(model: nn.Module) -> bool:
    """Whether a built model predicts masked tokens in their places, and not the next token: as transformers lists its
    class."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    masked = cast("list[type]", MODEL_FOR_MASKED_LM_MAPPING.values())
    return any(kind in masked for kind in type(model).__mro__)


def blocks(model: nn.Module) -> nn.ModuleList:
    """The model's transformer blocks: the ``ModuleList`` with the most parameters.

    Raises ``ValueError`` if there is none, or if it holds less than half of what is in neither embeddings nor head.
    """
    from torch.nn import Embedding, ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    sizes = [_size(modules) for modules in lists]
    if not any(sizes):
        raise ValueError(
            f"the model must hold its transformer blocks in one ModuleList, but {type(model).__name__} has none; "
            f"use one of {', '.join(MODELS.names())}"
        )
    most = max(sizes)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    apart = [module for module in model.modules() if isinstance(module, Embedding) or module is head]
    whole = _size(model) - _size(*apart)
    if 2 * most < whole:
        raise ValueError(
            "the model's blocks must hold half of its parameters beside embeddings and head, but the largest "
            f"ModuleList of {type(model).__name__} holds {most} of {whole}; use another model"
        )
    return lists[sizes.index(most)]


def _size(*modules: nn.Module) -> int:
    return sum(tensor.numel() for tensor in {tensor for module in modules for tensor in module.parameters()})
