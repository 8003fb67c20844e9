"""Looks at a model that is known by its config.json alone: builds it on the meta device, once, and counts. Torch is
imported only where nothing is known yet."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.models import cache, identity, source
from zobench.models.build import blocks, build
from zobench.models.inspected import ANY_LENGTH, POSITIONS_KEYS, BlockKind, Inspected
from zobench.models.kinds import all_linear, kinds_of, overcounted, uncounted
from zobench.runspec import RunSpec

if TYPE_CHECKING:
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
    key = f"{config_hash}-{_FORM}-{metadata.version('transformers')}.json"
    if (kept := cache.read("configs", key)) is not None and (model := _parsed(kept)) is not None:
        return dataclasses.replace(model, name=name)
    folder = source.folder(path, weights=False, as_it_lies=as_it_lies)
    if identity.config_hash(folder) != config_hash:
        raise ValueError(f"{path} must hold the config.json of this run ({config_hash}), but has another; put it back")
    model = inspect(folder)
    cache.keep("configs", key, json.dumps(dataclasses.asdict(model)))
    return dataclasses.replace(model, name=name)


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
