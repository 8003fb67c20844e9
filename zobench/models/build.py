"""Builds a model empty, and finds its blocks. Touches no network; torch is imported by what is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from zobench.models.registry import Model, get
from zobench.runspec.registries import MODELS

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The spec's word for a dtype to torch's."""


def build_config(
    model: str | Model, tie_embeddings: bool | None = None, positions: int | None = None
) -> PreTrainedConfig:
    """The transformers configuration of ``model``; ``None`` keeps the published tying and number of positions."""
    from transformers import AutoConfig

    architecture = get(model)
    architecture.check_tying(tie_embeddings)
    return AutoConfig.for_model(
        architecture.model_type, use_cache=False, **architecture.settings(tie_embeddings, positions)
    )


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
    with _empty_parameters():
        built = family.from_config(config, dtype=kind)  # type: ignore[no-untyped-call]
    built.tie_weights()  # transformers 5.0 leaves a model on the meta device untied
    built.eval()
    return cast("PreTrainedModel", built)


@contextmanager
def _empty_parameters() -> Iterator[None]:
    """Inside, a module is built as on the CPU, its buffers with their values, but each of its parameters goes to the
    meta device as soon as the module has it: memory that nobody has written yet costs nothing. Random buffers are those
    of one seed."""
    import torch
    from torch import nn
    from torch.nn.modules.module import register_module_parameter_registration_hook

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:  # a tied one is there already
            return None
        empty = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        empty._is_hf_initialized = True  # type: ignore[attr-defined]  # so transformers draws no values for it
        return empty

    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            yield
    finally:
        hook.remove()


def is_masked(model: nn.Module) -> bool:
    """Whether a built model predicts masked tokens in their places, and not the next token: as transformers lists its
    class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())  # by name: the classes themselves are hundreds of modules
    classes = (kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers."))
    return any(kind.__name__ in masked for kind in classes)


def blocks(model: nn.Module) -> nn.ModuleList:
    """The model's transformer blocks: the ``ModuleList`` with the most parameters. Where several layers share a module
    of that list, as in ALBERT, the one block is the module that holds the list and runs it.

    Raises ``ValueError`` if there is none, or if it holds less than half of what is in neither embeddings nor head.
    """
    from torch.nn import Embedding, ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList) and _size(module)]
    if not lists:
        raise ValueError(
            f"the model must hold its transformer blocks in one ModuleList, but {type(model).__name__} has none; "
            f"use one of {', '.join(MODELS.names())}"
        )
    largest = max(lists, key=_size)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "num_hidden_groups") and len(largest) < config.num_hidden_layers:
        largest = ModuleList([next(module for module in model.modules() if largest in module.children())])
    most = _size(largest)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    outside = [module for module in model.modules() if isinstance(module, Embedding) or module is head]
    whole = _size(model) - _size(*outside)
    if 2 * most < whole:
        raise ValueError(
            "the model's blocks must hold half of its parameters beside embeddings and head, but the largest "
            f"ModuleList of {type(model).__name__} holds {most} of {whole}; use another model"
        )
    return largest


def _size(*modules: nn.Module) -> int:
    return sum(tensor.numel() for tensor in {tensor for module in modules for tensor in module.parameters()})
