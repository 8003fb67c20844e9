"""Which models can be benchmarked: published architectures as plain data, their sizes, and how to build them empty.

Nothing here touches the network, and only the functions that build import torch and transformers. Sizes are in
parameters (elements), computed from the configuration's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from zobench.spec import RunSpec, suggestion

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The spec's word for a dtype to torch's."""
MASKED = ("roberta",)
"""The model types that predict masked tokens in their places, from both sides, and not the next token."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model's published configuration. ``hub_id`` is empty where no checkpoint is on the hub."""

    name: str
    hub_id: str
    model_type: str
    layers: int
    heads: int
    hidden: int
    max_positions: int
    vocab: int
    tied: bool
    extra: Mapping[str, Any] = field(hash=False)

    @property
    def learned_positions(self) -> bool:
        """Whether positions are rows of a table, as in OPT, or computed."""
        return self.model_type in ("opt", *MASKED)

    @property
    def masked(self) -> bool:
        """Whether the model predicts masked tokens in their places, and not the next token."""
        return self.model_type in MASKED

    @property
    def unused_positions(self) -> int:
        """Positions of the configuration that no token has: RoBERTa's tokens begin behind its padding's id, 1."""
        return 2 if self.masked else 0

    @property
    def config(self) -> dict[str, Any]:
        """All keyword arguments of the transformers configuration class of ``model_type``."""
        return {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.hidden,
            "max_position_embeddings": self.max_positions + self.unused_positions,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            **self.extra,
        }


def _opt(hidden: int, **extra: Any) -> Mapping[str, Any]:
    return MappingProxyType({"ffn_dim": 4 * hidden, **extra})


def _gated(kv_heads: int, intermediate: int, theta: float, norm_eps: float, **extra: Any) -> Mapping[str, Any]:
    """Of a model with rotary positions and a gated feed-forward."""
    rope = MappingProxyType({"rope_type": "default", "rope_theta": theta})
    own = {"num_key_value_heads": kv_heads, "intermediate_size": intermediate, "rms_norm_eps": norm_eps}
    return MappingProxyType({**own, "rope_parameters": rope, **extra})


def _qwen3(intermediate: int) -> Mapping[str, Any]:
    return _gated(8, intermediate, 1e6, 1e-6, head_dim=128, bos_token_id=151643, eos_token_id=151645)


def _roberta(hidden: int) -> Mapping[str, Any]:
    return MappingProxyType({"intermediate_size": 4 * hidden, "type_vocab_size": 1, "layer_norm_eps": 1e-5})


_350M = {"do_layer_norm_before": False}  # OPT-350M alone normalises after each sublayer and projects its embedding
_MISTRAL = {"sliding_window": 4096}  # v0.1, the release that the papers' dates allow; later ones have no window

# fmt: off
_ROWS = (
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
    # for accuracies: zobench.tiny pretrains it in minutes
    Architecture("opt-mini", "", "opt", 2, 4, 96, 128, 2048, True, _opt(96)),
    Architecture("roberta-tiny", "", "roberta", 3, 4, 64, 64, 128, True, _roberta(64)),
)
# fmt: on

REGISTRY = {row.name: row for row in _ROWS}
"""Name to architecture, in the order in which tables show them."""


def get(name: str) -> Architecture:
    """The architecture called ``name``, in any case; an unknown name is a ``ValueError`` that names the nearest."""
    for known, architecture in REGISTRY.items():
        if known.lower() == name.lower():
            return architecture
    raise ValueError(f"unknown model {name!r}; {suggestion(name, REGISTRY)}")


def check(spec: RunSpec) -> None:
    """Raises ``ValueError`` if the spec asks of its model what it does not have: positions, blocks, or weights."""
    architecture = get(spec.model)
    if spec.seq_len > position_count(spec):
        longer = " or weights=random" if architecture.learned_positions else ""
        raise ValueError(
            f"`seq_len <= {architecture.max_positions}` must hold for {architecture.name}, but got "
            f"seq_len={spec.seq_len}; the model has {architecture.max_positions} positions: use a shorter seq_len"
            f"{longer}"
        )
    _check_tying(architecture, spec.tie_embeddings)
    if spec.resident_blocks > architecture.layers:
        raise ValueError(
            f"`resident_blocks <= {architecture.layers}` must hold for {architecture.name}, but got "
            f"resident_blocks={spec.resident_blocks}; use engine=resident to keep all blocks"
        )
    if spec.weights == "pretrained" and not (spec.weights_path or architecture.hub_id):
        raise ValueError(
            f"`weights=pretrained` needs a checkpoint, but none of {architecture.name} is on the hub; "
            "give weights_path=FOLDER or use weights=random"
        )


def position_count(spec: RunSpec) -> int:
    """Positions of the model that ``spec`` runs: a learned table of random values is as long as the sequences need."""
    architecture = get(spec.model)
    if architecture.learned_positions and spec.weights != "pretrained":
        return max(architecture.max_positions, spec.seq_len)
    return architecture.max_positions


def variant(spec: RunSpec) -> tuple[str, bool | None, int]:
    """(name, tying, positions) of the model that ``spec`` runs, as the counts below take them."""
    return spec.model, spec.tie_embeddings, position_count(spec)


def differences(spec: RunSpec) -> list[str]:
    """In what the model that ``spec`` runs is not the published one: what a reader of its result should know."""
    published, used = get(spec.model).max_positions, position_count(spec)
    if used == published:
        return []
    return [
        f"the position table was extended from {published} to {used} positions with random values: {spec.model} was "
        f"published with {published} (the papers that report longer sequences do not say what they did)"
    ]


def block_parameter_count(name: str) -> int:
    """Parameters of one transformer block (all blocks of a registered model are equal)."""
    config = get(name).config
    hidden = config["hidden_size"]
    if get(name).learned_positions:  # OPT and RoBERTa: biases everywhere, no gate
        inner = config.get("ffn_dim") or config["intermediate_size"]
        attention = 4 * (hidden * hidden + hidden)
        feed_forward = 2 * hidden * inner + inner + hidden
        return int(attention + feed_forward + 2 * 2 * hidden)
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    attention = 2 * hidden * head * (config["num_attention_heads"] + config["num_key_value_heads"])
    norms = 2 * hidden + (2 * head if get(name).model_type == "qwen3" else 0)
    return int(attention + 3 * hidden * config["intermediate_size"] + norms)


def largest_linear(name: str) -> int:
    """Elements of the largest weight matrix in a block."""
    config = get(name).config
    heads = config["num_attention_heads"] * config.get("head_dim", 0)
    return int(config["hidden_size"] * max(config.get("ffn_dim") or config["intermediate_size"], heads))


def _resident_sizes(name: str, tie: bool | None, positions: int | None) -> list[int]:
    """Sizes of the tensors outside the blocks."""
    architecture = get(name)
    hidden, extra = architecture.hidden, architecture.extra
    width = extra.get("word_embed_proj_dim", hidden)
    sizes = [architecture.vocab * width] * (1 if (architecture.tied if tie is None else tie) else 2)
    if not architecture.learned_positions:
        return [*sizes, hidden]
    sizes.append(((positions or architecture.max_positions) + 2) * hidden)  # the first two positions are no token's
    if architecture.masked:  # of tokens: their type, a norm; before the head: a dense layer, a norm; the head's bias
        return [*sizes, hidden, *[hidden] * 2, hidden * hidden, *[hidden] * 3, architecture.vocab]
    if width != hidden:
        sizes += [width * hidden] * 2
    if extra.get("do_layer_norm_before", True):
        sizes += [hidden] * 2
    return sizes


def resident_parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Parameters outside the blocks: embeddings, projections, last norm, and the head where it is not tied."""
    return sum(_resident_sizes(name, tie, positions))


def largest_resident(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Elements of the largest single tensor outside the blocks."""
    return max(_resident_sizes(name, tie, positions))


def parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """All parameters, a tied tensor counted once; ``None`` is the published tying and number of positions."""
    return get(name).layers * block_parameter_count(name) + resident_parameter_count(name, tie, positions)


def build_config(name: str, tie_embeddings: bool | None = None, positions: int | None = None) -> PreTrainedConfig:
    """The transformers configuration of ``name``; ``None`` keeps the published tying and number of positions."""
    from transformers import AutoConfig

    architecture = get(name)
    _check_tying(architecture, tie_embeddings)
    values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in architecture.config.items()}
    if tie_embeddings is not None:
        values["tie_word_embeddings"] = tie_embeddings
    if positions is not None:
        values["max_position_embeddings"] = positions + architecture.unused_positions
    return AutoConfig.for_model(architecture.model_type, use_cache=False, **values)


def build(
    name: str, dtype: torch.dtype | str, tie_embeddings: bool | None = None, positions: int | None = None
) -> PreTrainedModel:
    """The model in eval mode: parameters on the meta device (no memory), buffers on the CPU (real values).

    ``dtype`` is torch's or the spec's word. Fill it with :func:`zobench.weights.materialise`; ``Module.to_empty`` would
    lose the buffers.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = build_config(name, tie_embeddings, positions)
    family = AutoModelForMaskedLM if get(name).masked else AutoModelForCausalLM
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


def _check_tying(architecture: Architecture, tie: bool | None) -> None:
    if architecture.masked and tie is False:
        raise ValueError(
            f"{architecture.name} must be tied, but got tie_embeddings=False; an untied one keeps a bias that nothing "
            "uses: use tie_embeddings=None"
        )


def is_masked(model: nn.Module) -> bool:
    """Whether a built model predicts masked tokens in their places, and not the next token."""
    return cast("PreTrainedModel", model).config.model_type in MASKED


def blocks(model: nn.Module) -> nn.ModuleList:
    """The decoder's transformer blocks: the longest ``ModuleList`` whose modules are all of one class."""
    from torch.nn import ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    alike = [found for found in lists if len({type(item) for item in found}) == 1]
    if not alike:
        raise ValueError(
            f"the model must hold its transformer blocks in one ModuleList, but {type(model).__name__} has none; "
            f"use one of {', '.join(REGISTRY)}"
        )
    return max(alike, key=len)
