"""Looks at a model that is known by its config.json alone: builds it on the meta device, once, and counts. Torch is
imported only where nothing is known yet.

What the blocks compute for one token is read off their modules and the configuration: products that every token goes
through, stacks of experts of which it goes through a few, attention, windows.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.models import cache, identity, source
from zobench.models.build import blocks, build
from zobench.models.inspected import ANY_LENGTH, POSITIONS_KEYS, BlockKind, Inspected
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel


_LONGEST = 400
"""Characters of what transformers says: it repeats a value of any length."""
_FORM = "4"
"""The version of what is kept: a new one whenever :class:`Inspected` changes."""


def inspected(spec: RunSpec) -> Inspected:
    """The model of an identified ``spec``, from its folder or, where that is gone, from what was kept of it.

    Raises ``ValueError`` if neither is there, or if transformers cannot build it.
    """
    return _inspected(spec.config_hash, spec.model_path, spec.model, source.is_read_where_it_lies(spec))


@functools.cache
def _inspected(config_hash: str, path: str, name: str, as_it_lies: bool) -> Inspected:
    key = f"{config_hash}-{_FORM}-{_builder()}.json"
    if (kept := cache.read("configs", key)) is not None and (model := _parsed(kept)) is not None:
        return dataclasses.replace(model, name=name)
    folder = source.folder(path, weights=False, as_it_lies=as_it_lies)
    if identity.config_hash(folder) != config_hash:
        raise ValueError(f"{path} must hold the config.json of this run ({config_hash}), but has another; put it back")
    model = inspect(folder)
    cache.keep("configs", key, json.dumps(dataclasses.asdict(model)))
    return dataclasses.replace(model, name=name)


@functools.cache
def _builder() -> str:
    """The version of transformers, which is read out of a file of 60 kB."""
    return metadata.version("transformers")


def _parsed(text: str) -> Inspected | None:
    try:
        values: dict[str, Any] = json.loads(text)
        kinds = tuple(BlockKind(**_frozen(kind)) for kind in values.pop("kinds"))
        return Inspected(kinds=kinds, **_frozen(values))
    except (ValueError, TypeError, KeyError):  # cut off, or of another form: it is made again
        return None


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def inspect(folder: Path) -> Inspected:
    """Builds the model of ``folder``'s config.json without memory for its weights, and counts its parameters."""
    config, masked = config_of(folder)
    text: Any = config.get_text_config()
    limits = (getattr(text, key, None) for key in POSITIONS_KEYS)
    positions = next((n for n in limits if isinstance(n, int) and n > 0), ANY_LENGTH)
    with _mendable(f"transformers must be able to build the {config.model_type} of {folder}/config.json, but cannot"):
        identity.check_layers(config)
        heads = _most(text, "num_attention_heads", 1)
        if not int(text.vocab_size):
            raise ValueError("vocab_size=0 leaves it no tokens")
        # all of it, defaults included, so that the model can be built again where the folder is not
        settings = {
            key: value for key, value in values_of(config).items() if key not in ("model_type", "use_cache", "dtype")
        }
        blank = Inspected(
            name=folder.name, model_type=config.model_type, masked=masked, heads=heads, hidden=0,
            vocab=int(text.vocab_size), max_positions=positions, tied=False, embedding_width=0,
            attention_widths=(0, 0), kinds=(), resident_sizes=(), whole_attention=False, all_linear=False,
            uncounted=(), overcounted=(), settings_json=json.dumps(settings),
        )  # fmt: skip
        model = build(blank, "bf16")
        empty = (name for name, tensor in model.named_parameters() if tensor.dim() > 1 and not tensor.shape[-2])
        if (name := next(empty, None)) is not None:
            raise ValueError(f"{name} has no rows")
    layers = blocks(model)
    table: Any = model.get_input_embeddings().weight
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hidden = _most(text, "hidden_size", table.shape[1])
    width = _most(text, "head_dim", hidden // heads)
    inside = set(layers.parameters())
    resident_sizes = tuple(parameter.numel() for parameter in model.parameters() if parameter not in inside)
    return dataclasses.replace(
        blank, hidden=hidden, tied=getattr(head, "weight", None) is table, embedding_width=table.shape[1],
        attention_widths=(heads * width, _most(text, "num_key_value_heads", heads) * width),
        kinds=kinds_of(layers, text, heads, hidden), resident_sizes=resident_sizes, all_linear=all_linear(layers),
        uncounted=uncounted(layers), overcounted=overcounted(layers, text), max_positions=positions - _unused(model),
        whole_attention=model.config._attn_implementation == "eager",
    )  # fmt: skip


def config_of(folder: Path) -> tuple[PreTrainedConfig, bool]:
    """(the configuration, whether its model predicts masked tokens in their places)."""
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    values = identity.read_config(folder)
    kind = values["model_type"]
    if kind not in CONFIG_MAPPING:
        foreign = "its code comes with the checkpoint and is never run" if "auto_map" in values else "unknown to it"
        raise ValueError(f"{folder} must hold a model of transformers, but model_type={kind} is not one ({foreign})")
    causal, masked = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if not causal and not masked:
        raise ValueError(
            f"{folder} must hold a model that AutoModelForCausalLM or AutoModelForMaskedLM builds, but "
            f"model_type={kind} is none of theirs; use another model"
        )
    named = str(values.get("architectures") or "")
    if values.get("is_encoder_decoder") and named and "ForCausalLM" not in named:
        raise ValueError(
            f"{folder} must hold a causal or masked language model, but {values['architectures'][0]} has an encoder "
            "and a decoder; use another model"
        )
    is_masked = masked and ("ForMaskedLM" in named or not causal or not (named or values.get("is_decoder")))
    with _mendable(f"{folder}/config.json must suit {kind}, but does not"):
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False), is_masked


def values_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Every value of a configuration, defaults included. transformers writes an infinite number as a dictionary of the
    one key ``__float__``, which becomes a number again."""

    def read(pairs: dict[str, Any]) -> Any:
        return float(pairs["__float__"]) if pairs.keys() == {"__float__"} else pairs

    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False), object_hook=read)
    return values


def _most(text: Any, key: str, default: int) -> int:
    """A number of a text configuration, of its layers the largest; ``default`` where it has none."""
    layers = list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text]
    return max(int(getattr(layer, key, None) or default) for layer in layers)


def _unused(model: PreTrainedModel) -> int:
    """Rows of a table of positions that no token has: up to its padding's, as in RoBERTa."""
    from torch.nn import Embedding

    tables = [module for name, module in model.named_modules() if isinstance(module, Embedding) and "position" in name]
    return next((module.padding_idx + 1 for module in tables if module.padding_idx is not None), 0)


@contextmanager
def _mendable(demand: str) -> Iterator[None]:
    """Turns whatever transformers raises on a config.json inside the block into a ``ValueError`` of one line: its
    checks have no class in common, and where it checks nothing it divides by zero heads."""
    try:
        yield
    except Exception as error:
        cause = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise ValueError(f"{demand} ({cause}); mend it") from error


CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts",
    "num_selected_experts",
)  # fmt: skip
"""The keys by which configurations name the number of experts that a token goes through."""
_NOT_RUN = re.compile(r"(^|\.)(encoder_attn|crossattention|cross_attn|cross_attention)\.")
"""Attention of a decoder to an encoder's tokens, which a language model alone has not."""
_RECURRENT = re.compile(
    r"Mamba|Mixer|Recurrent|Rglru|Delta(Net|Attention)|LinearAttention|Lightning|LSTM|ShortConv|SSM"
)
_INDEXED = re.compile(r"Indexer|CDMoE|Compressor|HashRouter")
"""Classes of modules that compute what is no product with a weight and no attention of all pairs."""

_LAST = re.compile(r"down|output|\.w2$")
"""Names of an expert's last matrix, whose outputs are as wide as a token; of its others the inputs are."""

Stack = tuple[int, float, int, int, bool]


def kinds_of(blocks: nn.ModuleList, text: Any, heads: int, hidden: int) -> tuple[BlockKind, ...]:
    """The kinds of ``blocks`` in their order, ``text`` being the configuration of the language model."""
    texts = _of_layers(text, len(blocks))
    counted = collections.Counter(
        _kind(block, number, texts[number], heads, hidden) for number, block in enumerate(blocks)
    )
    return tuple(dataclasses.replace(kind, count=count) for kind, count in counted.items())


def _of_layers(text: Any, count: int) -> list[Any]:
    """The configuration of each of ``count`` blocks."""
    layers = list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else []
    return layers if len(layers) == count else [text] * count


def all_linear(blocks: nn.ModuleList) -> bool:
    """Whether every matrix of the blocks is in a linear layer, each of which the engine can take as a unit."""
    from torch.nn import Linear

    others = (module for block in blocks for module in block.modules() if type(module) is not Linear)
    return all(tensor.dim() < 2 for module in others for tensor in module.parameters(recurse=False))


def uncounted(blocks: nn.ModuleList) -> tuple[str, ...]:
    """Returns a sentence for each class of modules whose computation :func:`kinds_of` does not count."""
    recurrent = [f"the recurrence of {name}" for name in _innermost(blocks, _RECURRENT)]
    indexed = [f"what {name} computes" for name in _innermost(blocks, _INDEXED)]
    return tuple(f"Not counted, so a step may take longer: {what}." for what in recurrent + indexed)


def _innermost(blocks: nn.ModuleList, pattern: re.Pattern[str]) -> list[str]:
    """Names of the classes of modules that ``pattern`` matches and that have no part which it matches; no norms."""

    def matches(module: nn.Module) -> bool:
        name = type(module).__name__
        return pattern.search(name) is not None and "Norm" not in name

    modules = [module for block in blocks for module in block.modules() if matches(module)]
    return sorted({type(module).__name__ for module in modules if list(filter(matches, module.modules())) == [module]})


def overcounted(blocks: nn.ModuleList, text: Any) -> tuple[str, ...]:
    """Returns a sentence for each class of modules that may compute less than :func:`kinds_of` counts."""
    routed = any(_is_routed(path, module) for block in blocks for path, module in block.named_modules())
    if not routed or chosen_of(_of_layers(text, len(blocks))[0]) is not None:
        return ()
    return ("How many experts a token goes through is not known: all are counted, a step may take less.",)


def chosen_of(text: Any) -> int | None:
    """The number of experts that a token goes through, of layers that differ the largest; None if it is not said."""
    for config in (text, getattr(text, "ffn_config", None)):
        for key in CHOSEN:
            value = getattr(config, key, None)
            if value:
                return max(map(int, value)) if isinstance(value, list | tuple) else int(value)
    return None


def _kind(block: nn.Module, number: int, text: Any, heads: int, hidden: int) -> BlockKind:
    matrices, experts, others, biases = list[tuple[int, int]](), list[Stack](), list[int](), 0
    counted: set[Tensor] = set()
    for path, module in block.named_modules():
        for name, tensor in module.named_parameters(recurse=False):
            if tensor in counted:
                continue
            counted.add(tensor)
            if _NOT_RUN.search(f"{path}."):
                others.append(tensor.numel())
            elif (stack := _stack(path, module, name, tensor, text, hidden)) is not None:
                experts.append(stack)
            elif (sides := _sides(module, name, tensor)) is not None:
                matrices.append(sides)
            else:
                others.append(tensor.numel())
                biases += name == "bias" and "Norm" not in type(module).__name__
    return BlockKind(
        count=1, matrices=tuple(matrices), experts=tuple(experts), others=tuple(others), biases=biases,
        norms=tuple(_norms(block, hidden, heads)), attention=_attention(block, text, heads, hidden),
        window=_window(number, text),
    )  # fmt: skip


def _sides(module: nn.Module, name: str, tensor: Tensor) -> tuple[int, int] | None:
    """(inputs, outputs) of a matrix that every token is multiplied by; None for any other tensor."""
    from torch.nn import Embedding, Linear
    from torch.nn.modules.conv import _ConvNd
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, Embedding | _ConvNd) or tensor.dim() < 2 or "bias" in name:
        return None
    if tensor.dim() == 2 and not isinstance(module, Linear | Conv1D) and "weight" not in name:
        return None  # such as the decays of a recurrence
    first, second = int(tensor.shape[-2]), tensor.numel() // int(tensor.shape[-2])
    return (first, second) if isinstance(module, Conv1D) else (second, first)


def _is_routed(path: str, module: nn.Module) -> bool:
    experts = "expert" in f"{path}.{type(module).__name__}".lower() and "shared" not in path
    return experts and any(tensor.dim() == 3 or _flat(module, tensor) for tensor in module.parameters(recurse=False))


def _flat(module: nn.Module, tensor: Tensor) -> bool:
    """Whether experts lie below one another in a matrix, as DBRX's do."""
    return tensor.dim() == 2 and hasattr(module, "moe_num_experts")


def _stack(
    path: str, module: nn.Module, name: str, tensor: Tensor, text: Any, hidden: int
) -> Stack | None:  # fmt: skip
    """(experts, chosen, inputs, outputs, whether it is their last) of a stack of matrices; None for any other tensor.

    Where the module is not told which experts a token has chosen, as Llama 4's, it computes all of them. Of experts
    that leave a token as it is (LongCat's) a share is chosen, that of their number.
    """
    if not _is_routed(path, module) or tensor.dim() < 2 or "bias" in name:
        return None
    if _flat(module, tensor):
        count = int(module.moe_num_experts)  # type: ignore[arg-type]
        sides = int(tensor.shape[1]), int(tensor.shape[0]) // count
    elif tensor.dim() == 3:
        count, sides = int(tensor.shape[0]), (int(tensor.shape[2]), int(tensor.shape[1]))
    else:
        return None
    parameters = signature(module.forward).parameters
    whole = "hidden_states" in parameters and len(parameters) == 1
    chosen = float(count if whole else chosen_of(text) or count)
    idle = int(getattr(module, "zero_expert_num", 0) or 0)
    total = int(getattr(module, "total_experts", count))
    computed = (total - idle) / total
    is_last = _LAST.search(f"{path}.{name}") is not None
    if hidden == sides[0 if is_last else 1]:  # stored transposed
        sides = sides[1], sides[0]
    return count, min(chosen * computed, float(count)), *sides, is_last


def _norms(block: nn.Module, hidden: int, heads: int) -> Iterator[int]:
    """Numbers of one token that each norm reads; one that is narrower than a token is of each head."""
    for norm in (module for module in block.modules() if "Norm" in type(module).__name__):
        width = next((tensor.numel() for tensor in norm.parameters()), hidden)
        yield width if width >= hidden else width * heads


def _attention(block: nn.Module, text: Any, heads: int, hidden: int) -> tuple[int, int]:
    """Widths of queries and values; with latent attention (DeepSeek's) as they are multiplied, not as they are kept."""
    names = [type(module).__name__ for module in block.modules()]
    if not any(("Attention" in name or "MLA" in name) and not _RECURRENT.search(name) for name in names):
        return 0, 0
    plain = int(getattr(text, "head_dim", None) or hidden // max(heads, 1))
    rotated, rest = (int(getattr(text, f"qk_{name}_head_dim", None) or 0) for name in ("rope", "nope"))
    query = rotated + rest if rest else plain
    return heads * query, heads * int(getattr(text, "v_head_dim", None) or (query if not rest else plain))


def _window(number: int, text: Any) -> int:
    """Tokens that a query of the block numbered so attends to, 0 for all."""
    types = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    if not isinstance(window, int) or getattr(text, "use_sliding_window", True) is False:
        return 0
    if isinstance(types, list | tuple) and number < len(types):
        return window if "sliding" in str(types[number]) else 0
    return window
