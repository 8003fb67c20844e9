"""The models known by name: published architectures as plain data; and sizes of any model in parameters (elements): of
a registered one from the numbers of its configuration, of another as it was counted. Imports no torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from zobench.models import published
from zobench.models.families import Architecture
from zobench.models.inspected import Inspected
from zobench.runspec import suggestion
from zobench.runspec.registries import MODELS

ALTERNATIVES = "or give a folder (./my-model), a hub id (owner/name) or a file.gguf"
"""The end of an error about a name that is not in the list: the other ways to name a model."""


def _opt(hidden: int, **extra: Any) -> Mapping[str, Any]:
    return MappingProxyType({"ffn_dim": 4 * hidden, **extra})


def _gated(kv_heads: int, intermediate: int, theta: float, norm_eps: float, **extra: Any) -> Mapping[str, Any]:
    """Further configuration of a model with rotary positions and a gated feed-forward."""
    rope = MappingProxyType({"rope_type": "default", "rope_theta": theta})
    sizes = {"num_key_value_heads": kv_heads, "intermediate_size": intermediate, "rms_norm_eps": norm_eps}
    return MappingProxyType({**sizes, "rope_parameters": rope, **extra})


def _qwen3(intermediate: int) -> Mapping[str, Any]:
    return _gated(8, intermediate, 1e6, 1e-6, head_dim=128, bos_token_id=151643, eos_token_id=151645)


def _roberta(hidden: int) -> Mapping[str, Any]:
    return MappingProxyType({"intermediate_size": 4 * hidden, "type_vocab_size": 1, "layer_norm_eps": 1e-5})


_350M = {"do_layer_norm_before": False}  # OPT-350M alone normalises after each sublayer and projects its embedding
_MISTRAL = {"sliding_window": 4096}  # v0.1, the release that the papers' dates allow; later ones have no window

# fmt: off
ARCHITECTURES = (
    # name, id on the hub, model type, layers, heads, hidden, positions, vocabulary, tied, the rest
    Architecture("OPT-125M", "facebook/opt-125m", "opt", 12, 12, 768, 2048, 50272, True, _opt(768)),
    Architecture("OPT-350M", "facebook/opt-350m", "opt", 24, 16, 1024, 2048, 50272, True,
                 _opt(1024, word_embed_proj_dim=512, **_350M)),
    Architecture("OPT-1.3B", "facebook/opt-1.3b", "opt", 24, 32, 2048, 2048, 50272, True, _opt(2048)),
    Architecture("OPT-2.7B", "facebook/opt-2.7b", "opt", 32, 32, 2560, 2048, 50272, True, _opt(2560)),
    Architecture("OPT-6.7B", "facebook/opt-6.7b", "opt", 32, 32, 4096, 2048, 50272, True, _opt(4096)),
    Architecture("OPT-13B", "facebook/opt-13b", "opt", 40, 40, 5120, 2048, 50272, True, _opt(5120)),
    Architecture("OPT-30B", "facebook/opt-30b", "opt", 48, 56, 7168, 2048, 50272, True, _opt(7168)),
    Architecture("OPT-66B", "facebook/opt-66b", "opt", 64, 72, 9216, 2048, 50272, True, _opt(9216)),
    Architecture("OPT-175B", "", "opt", 96, 96, 12288, 2048, 50272, True, _opt(12288)),  # released on request only
    Architecture("Qwen3-1.7B", "Qwen/Qwen3-1.7B", "qwen3", 28, 16, 2048, 40960, 151936, True, _qwen3(6144)),
    Architecture("Qwen3-4B", "Qwen/Qwen3-4B", "qwen3", 36, 32, 2560, 40960, 151936, True, _qwen3(9728)),
    Architecture("Qwen3-8B", "Qwen/Qwen3-8B", "qwen3", 36, 32, 4096, 40960, 151936, False, _qwen3(12288)),
    Architecture("Qwen3-14B", "Qwen/Qwen3-14B", "qwen3", 40, 40, 5120, 40960, 151936, False, _qwen3(17408)),
    Architecture("Qwen3-32B", "Qwen/Qwen3-32B", "qwen3", 64, 64, 5120, 40960, 151936, False, _qwen3(25600)),
    Architecture("LLaMA2-7B", "meta-llama/Llama-2-7b-hf", "llama", 32, 32, 4096, 4096, 32000, False,
                 _gated(32, 11008, 1e4, 1e-5)),
    Architecture("Vicuna-7B", "lmsys/vicuna-7b-v1.5", "llama", 32, 32, 4096, 4096, 32000, False,
                 _gated(32, 11008, 1e4, 1e-5, pad_token_id=0)),
    Architecture("Mistral-7B", "mistralai/Mistral-7B-v0.1", "mistral", 32, 32, 4096, 32768, 32000, False,
                 _gated(8, 14336, 1e4, 1e-5, **_MISTRAL)),
    Architecture("RoBERTa-large", "FacebookAI/roberta-large", "roberta", 24, 16, 1024, 512, 50265, True,
                 _roberta(1024)),
    # for tests: three blocks, so that the number of slots need not divide the number of blocks
    Architecture("opt-tiny", "", "opt", 3, 4, 64, 64, 128, True, _opt(64)),
    Architecture("opt350-tiny", "", "opt", 3, 4, 64, 64, 128, True, _opt(64, word_embed_proj_dim=32, **_350M)),
    Architecture("qwen3-tiny", "", "qwen3", 3, 4, 64, 64, 128, True, _gated(2, 96, 1e6, 1e-6, head_dim=32)),
    Architecture("llama-tiny", "", "llama", 3, 4, 64, 64, 128, False, _gated(2, 96, 1e4, 1e-5)),
    # for accuracies: tools.tiny pretrains it in minutes
    Architecture("opt-mini", "", "opt", 2, 4, 96, 128, 2048, True, _opt(96)),
    Architecture("roberta-tiny", "", "roberta", 3, 4, 64, 64, 128, True, _roberta(64)),
)
# fmt: on
"""zobench's own, in the order in which tables show them."""


Model = Architecture | Inspected
"""Any model: registered under a name, or known by its configuration."""


def get(model: str | Model) -> Model:
    """The model called ``model``, in any case; an unknown name is a ``ValueError`` that names the nearest.

    What is a model already is given back, so that every count takes either.
    """
    return _named(model) if isinstance(model, str) else model


def is_registered(name: str) -> bool:
    """Whether a registered model has this name, in any case."""
    return _registered_name(name) is not None


@functools.cache
def _registered_name(name: str) -> str | None:
    return next((registered for registered in MODELS.names() if registered.lower() == name.lower()), None)


@functools.cache
def _named(name: str) -> Architecture:
    match = _registered_name(name)
    if match is None:
        near = suggestion(name, (*MODELS.names(), *published.names()))
        hint = near if near.endswith("?") else f"see `zobench list models`, {ALTERNATIVES}"
        raise ValueError(f"unknown model {name!r}; {hint}")
    architecture: Architecture = MODELS.get(match)
    return architecture


def blocks_parameter_count(model: str | Model, count: int | None = None) -> int:
    """Parameters of all blocks together, or of ``count`` of them, spread evenly over the model."""
    architecture = get(model)
    return architecture.all_blocks if count is None else round(architecture.all_blocks * count / architecture.layers)


def resident_sizes(model: str | Model, tie: bool | None = None, positions: int | None = None) -> list[int]:
    """Elements of each tensor outside the blocks."""
    architecture = get(model)
    return architecture.resident(architecture.tied if tie is None else tie, positions or architecture.max_positions)


def resident_parameter_count(model: str | Model, tie: bool | None = None, positions: int | None = None) -> int:
    """Parameters outside the blocks: embeddings, projections, last norm, and the head where it is not tied."""
    return sum(resident_sizes(model, tie, positions))


def parameter_count(model: str | Model, tie: bool | None = None, positions: int | None = None) -> int:
    """All parameters, a tied tensor counted once; ``None`` is the published tying and number of positions."""
    return get(model).all_blocks + resident_parameter_count(model, tie, positions)
