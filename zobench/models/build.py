"""Builds a model empty, and finds its blocks. Touches no network; torch is imported by what is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from zobench.models.registry import Model, get
from zobench.runspec.registries import MODELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The spec's word for a dtype to torch's."""


def build_config(
    model: str | Model, tie_embeddings: bool | None = None, positions: int | None = None
) -> PreTrainedConfig:
    """The transformers configuration of ``model``; ``None`` keeps the published tying and number of positions."""
    from transformers import AutoConfig

    known = get(model)
    known.check_tying(tie_embeddings)
    return AutoConfig.for_model(known.model_type, use_cache=False, **known.settings(tie_embeddings, positions))


def build(
    model: str | Model, dtype: torch.dtype | str, tie_embeddings: bool | None = None, positions: int | None = None
) -> PreTrainedModel:
    """The model in eval mode: parameters on the meta device (no memory), buffers on the CPU (real values).

    ``dtype`` is torch's or the spec's word. Fill it with :func:`zobench.models.weights.materialise`;
    ``Module.to_empty`` would lose the buffers.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = build_config(model, tie_embeddings, positions)
    family = AutoModelForMaskedLM if get(model).masked else AutoModelForCausalLM
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, DTYPES[dtype])
    with torch.device("meta"):
        built = family.from_config(config, dtype=kind)  # type: ignore[no-untyped-call]
    built.tie_weights()  # transformers 5.0 leaves a model on the meta device untied
    _compute_buffers(built)
    built.eval()
    return cast("PreTrainedModel", built)


def _compute_buffers(model: PreTrainedModel) -> None:
    """Gives every module that owns buffers the values that the same module has when it is built on the CPU.

    Buffers such as the rotary frequencies are in no checkpoint. The model's own initialisation computes them, as when
    transformers loads a checkpoint; what it leaves alone only the module's constructor knows. Raises ``ValueError`` for
    a module of neither kind.
    """
    for module in list(model.modules()):
        if buffers := dict(module.named_buffers(recurse=False)):
            values = _initialised(model, module, buffers) or _constructed(model, module, buffers)
            for key, value in values.items():
                setattr(module, key, value)


def _initialised(model: PreTrainedModel, module: nn.Module, buffers: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """What the model's initialisation writes into ``buffers`` on the CPU; None if it does not write all of each."""
    import torch

    tried = []
    for start in (0, 1):
        for key, buffer in buffers.items():
            setattr(module, key, torch.full_like(buffer, start, device="cpu"))
        model._init_weights(module)  # type: ignore[no-untyped-call]  # of its parameters on the meta device nothing
        tried.append(dict(module.named_buffers(recurse=False)))
    return tried[0] if all(torch.equal(tried[0][key], tried[1][key]) for key in buffers) else None


def _constructed(model: PreTrainedModel, module: nn.Module, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        fresh = type(module)(model.config)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"the buffers of {type(module).__name__} must be had without its checkpoint, but neither its constructor "
            f"nor {type(model).__name__}'s initialisation gives them; use another model"
        ) from error
    return {key: fresh.get_buffer(key) for key in buffers}


def is_masked(model: nn.Module) -> bool:
    """Whether a built model predicts masked tokens in their places, and not the next token: as transformers lists its
    class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())  # by name: the classes themselves are hundreds of modules
    known = (kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers."))
    return any(kind.__name__ in masked for kind in known)


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
