"""A checkpoint's folder as transformers reads it: its files, their tensors, and the model's names for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from zobench.machine.texts import first_line, json_of
from zobench.models import source
from zobench.models.identity import CONFIG, INDEX, SINGLE
from zobench.models.stored import bits_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def located(given: str) -> Path:
    """The local folder itself, or the folder into which the hub's safetensors were downloaded."""
    path = Path(given).expanduser()
    if path.is_dir():
        return path
    if given.count("/") != 1 or given.startswith((".", "/", "~")):
        raise ValueError(f"`weights_path` must be a folder or a hub id (owner/name), but got {given!r}; check the path")
    return source.downloaded(given, f"the safetensors of {given!r}", "give weights_path=FOLDER with them")


def check_config(folder: Path) -> int:
    """Bits of the integers that the folder's ``config.json`` declares, 0 if its weights are not quantised.

    Raises ``ValueError`` for a checkpoint that cannot be trained: one that is quantised in a way that is not read, or
    of a model whose code comes with it. A folder without that file is not refused."""
    file, bits = folder / CONFIG, 0
    if not file.is_file():
        return bits
    config = _mapping(file, "`weights_path` must hold a config.json that is one JSON object")
    if quantised := config.get("quantization_config"):
        try:
            bits = bits_of(quantised if isinstance(quantised, Mapping) else {"quant_method": quantised})
        except ValueError as error:
            raise ValueError(
                "`weights_path` must hold weights that are not quantised, or symmetric integers of compressed-tensors, "
                f"but {folder} has quantization_config ({error}); give the checkpoint that it was made from"
            ) from error
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if config.get("auto_map") and kind not in CONFIG_MAPPING:
        raise ValueError(
            f"`weights_path` must hold a model that transformers knows, but {folder} has model_type={kind!r}, whose "
            "code comes with it (auto_map), and that is never run; give a model of a type in transformers"
        )
    return bits


def tensors(folder: Path) -> dict[str, Path]:
    """The file of every tensor by its name in the checkpoint, of the files that transformers would read.

    These are ``model.safetensors``, or else the shards that the index names, or else the only safetensors file. Raises
    ``ValueError``, one line, if there is none, or no saying which, or one of them is absent or damaged.
    """
    if (folder / SINGLE).is_file():
        return dict.fromkeys(_names(folder / SINGLE), folder / SINGLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    files = sorted(folder.glob("*.safetensors"))
    if pipes := [file for file in files if not file.is_file()]:
        raise ValueError(f"`weights_path` must hold files, but {pipes[0]} is none; copy it again")
    if not files:
        raise ValueError(
            f"`weights_path` must hold *.safetensors, but {folder} has none, and pickles (*.bin, *.pt) are "
            "never opened; convert once: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)"
        )
    if len(files) > 1:
        raise ValueError(
            f"`weights_path` must hold {SINGLE} or an index of its shards, but {folder} has {len(files)} files without "
            f"one: {files[0].name}, {files[1].name}; leave the model's own file there, or copy its {INDEX}"
        )
    return dict.fromkeys(_names(files[0]), files[0])


def _sharded(folder: Path) -> dict[str, Path]:
    index = folder / INDEX
    listed = _mapping(index, "`weights_path` must hold an index that says weight_map").get("weight_map")
    if not (isinstance(listed, dict) and listed and all(isinstance(shard, str) for shard in listed.values())):
        raise ValueError(
            f"`weights_path` must hold an index whose weight_map names a file for each tensor, but that of {index} "
            "does not; copy it again"
        )
    for shard in sorted(set(listed.values())):
        if Path(shard).is_absolute() or ".." in Path(shard).parts:
            raise ValueError(
                f"`weights_path` must name shards inside its folder, but {index} names {shard!r}; use an index of "
                "files that lie beside it"
            )
    absent = [shard for shard in sorted(set(listed.values())) if not (folder / shard).is_file()]
    if absent:
        raise ValueError(
            f"`weights_path` must hold all shards, but {folder} lacks {', '.join(map(_shown, absent))}; copy them there"
        )
    names_of = {shard: _names(folder / shard) for shard in sorted(set(listed.values()))}
    for name, shard in listed.items():
        if name not in names_of[shard]:
            raise ValueError(
                "`weights_path` must hold an index that is its shards' own, but "
                f"{index} has {_shown(name)} in {shard}, which lacks it; copy both again"
            )
    files = {name: folder / shard for shard, names in names_of.items() for name in names}
    return files | {name: folder / shard for name, shard in listed.items()}


def _shown(name: str) -> str:
    """A name from a file as a message of one line says it."""
    return name if name.isprintable() else repr(name)


def _mapping(file: Path, demand: str) -> dict[str, Any]:
    """The JSON object in a file; ``ValueError`` if it holds anything else."""
    try:
        content = json_of(file.read_text(encoding="utf-8"))
    except ValueError as error:  # a JSON error or bytes that are no text
        raise ValueError(f"{demand}, but {file} is damaged ({first_line(error)}); copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{demand}, but {file} holds a {type(content).__name__}; copy it again")
    return content


def _names(file: Path) -> set[str]:
    """The names of a file's tensors."""
    try:
        with safe_open(file, framework="pt") as handle:
            return set(handle.keys())
    except SafetensorError as error:
        raise ValueError(
            f"`weights_path` must hold whole safetensors, but {file} is damaged ({first_line(error)}); copy it again"
        ) from error


@dataclass(frozen=True, slots=True)
class TensorSource:
    """The origin of a tensor of the model: ``keys``, its tensors in the checkpoint, put together by ``transform``.

    ``transform`` is None where there is one key, whose tensor is the model's as it is. ``patterns``: what the transform
    calls each of the keys; ``target``: the name by which it knows its result.
    """

    target: str
    keys: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    transform: Any = None

    def put_together(self, pieces: Sequence[Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
        """The model's tensors by name, of one tensor for each of ``keys``."""
        transform = copy.deepcopy(self.transform)
        for key, pattern, piece in zip(self.keys, self.patterns, pieces, strict=True):
            transform.add_tensor(self.target, key, pattern, piece)
        converted = transform.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}


def origins(model: PreTrainedModel, keys: Iterable[str], like: Callable[[str], Tensor]) -> dict[str, TensorSource]:
    """Returns the origin of each tensor of ``model``, by its name there, in a checkpoint that holds ``keys``.

    The rules are transformers' own: prefixes, renamed layers, experts that lie apart on the disk and as one tensor in
    the model. Keys that no rule leads to a name of the model are left out, as there. ``like`` gives a tensor of the
    shape that a key's has, on the meta device.
    """
    from transformers import core_model_loading as loading
    from transformers.conversion_mapping import get_model_conversion_mapping

    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, loading.WeightConverter)]
    state, by_pattern = model.state_dict(), {key: rule for rule in converters for key in rule.source_patterns}
    ends = (model.base_model_prefix, state)
    origins_of: dict[str, TensorSource] = {}
    for key in sorted(keys, key=loading.dot_natural_key):  # experts in the order of their numbers
        name, pattern = loading.rename_source_key(key, renamings, converters, *ends)
        if name not in state and key in state:
            name, pattern = loading.rename_source_key(key, [], [], *ends)
        if name in state:
            origin = origins_of.setdefault(name, TensorSource(name, transform=by_pattern.get(pattern or "")))
            origin.keys.append(key)
            origin.patterns.append(pattern or key)
    for origin in [
        origin for origin in origins_of.values() if origin.transform and len(origin.transform.target_patterns) > 1
    ]:
        converted = origin.put_together([like(key) for key in origin.keys], model)
        origins_of |= dict.fromkeys(converted, origin)
    return origins_of


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every buffer that a checkpoint holds."""
    for prefix, module in model.named_modules():
        for key, buffer in module.named_buffers(prefix, recurse=False):
            if key.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield key, buffer
