"""A Hugging Face checkpoint written unit by unit: safetensors, an index if they are several, and the configuration.

Files and tensors have the names that transformers gives them, so that every loader of its checkpoints reads them. All
of it is on the disk before anything that was in the folder goes; nothing is pickled.
"""

from __future__ import annotations

import collections
import copy
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from safetensors.torch import save_file
from torch import Tensor, nn

from zobench.machine import files
from zobench.models.checkpoint import persistent_buffers
from zobench.models.identity import CONFIG, INDEX, SINGLE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARD_BYTES = 1 << 30
REPLACED = re.compile(r"model-\d{5}(-of-\d{5})?\.safetensors")
"""The names of shards, transformers' and those that zobench once gave them."""
ADAPTER = "adapter_config.json"


def check_folder(folder: Path) -> None:
    """Raises ``ValueError`` if a checkpoint in ``folder`` would not be what transformers loads from there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"a checkpoint needs a folder, but {folder} is a file; name another one")
    for path in (folder / name for name in (SINGLE, INDEX, CONFIG)):
        if path.is_dir():
            raise ValueError(f"a checkpoint needs {path} to be a file or absent, but it is a folder; name another one")
    if (folder / ADAPTER).exists():
        raise ValueError(
            f"a checkpoint needs a folder without an adapter, but {folder} has {ADAPTER}, and transformers would load "
            "that adapter's base instead; name another folder"
        )


def save_checkpoint(model: nn.Module, tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Writes ``tensors`` (name, CPU tensor) into ``folder``, which is made if absent: one file, or shards of about a
    gibibyte.

    The safetensors of a checkpoint that is there are replaced, once the new ones are complete; other files stay, and no
    weights among them are loaded before these. Raises ``ValueError``, before it reads a tensor, where that cannot be.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pretrained = cast("PreTrainedModel", model)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as temporary:
        staging = Path(temporary)
        _describe(pretrained, staging)
        written = [_written(shard, staging / str(n)) for n, shard in enumerate(shards(_converted(pretrained, tensors)))]
        files_of = {f"model-{n:05d}-of-{len(written):05d}.safetensors": sizes for n, sizes in enumerate(written, 1)}
        if len(written) == 1:
            files_of = {SINGLE: written[0]}
        for number, name in enumerate(files_of):
            (staging / str(number)).rename(staging / name)
        if len(written) > 1:
            (staging / INDEX).write_text(_index(files_of), encoding="utf-8")
        for path in staging.iterdir():
            path.chmod((staging / CONFIG).stat().st_mode)  # safetensors makes files that nobody else can read
            files.sync(path)
        _exchange(staging, folder)


def _describe(model: PreTrainedModel, folder: Path) -> None:
    """Writes the configurations, with what transformers adds to them for other programs."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], str(model.dtype).removeprefix("torch.")
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # what is written is not quantised, whatever it once was
    config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _converted(model: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors as transformers writes them: renamed, experts apart, and without those that it never saves.

    Tensors that one rule makes into others are held until all of them are there.
    """
    from transformers.core_model_loading import revert_weight_conversion

    names = [name for name, _ in (*model.named_parameters(), *persistent_buffers(model))]
    together = _together(model, names)
    missing, waiting = collections.Counter(together.values()), collections.defaultdict[str, dict[str, Tensor]](dict)
    for name, tensor in tensors:
        if name in (model._keys_to_ignore_on_save or ()):
            continue
        group = together[name]
        waiting[group][name] = tensor
        missing[group] -= 1
        if not missing[group]:
            yield from revert_weight_conversion(model, waiting.pop(group)).items()
    assert not waiting, f"of what makes {', '.join(waiting)} on the disk, some tensors were not given"


def _together(model: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
    """Returns for each of the model's tensors a name that it shares with those that one rule puts together on the
    disk."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    loaded_by = getattr(model, "_weight_conversions", None)
    rules = get_model_conversion_mapping(model, add_legacy=False) if loaded_by is None else loaded_by
    back = [rule.reverse_transform() for rule in reversed(rules) if isinstance(rule, WeightConverter)]

    def first(name: str) -> str:
        renamed = (rule.rename_source_key(name) for rule in back)
        return next((target for target, pattern in renamed if pattern is not None), name)

    return {name: first(name) for name in names}


def shards(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Tensors by name, contiguous, about :data:`SHARD_BYTES` at a time."""
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        shard[name] = tensor.contiguous()
        if sum(item.nbytes for item in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def _written(shard: Mapping[str, Tensor], file: Path) -> dict[str, int]:
    """Writes a shard; the bytes of each of its tensors."""
    with files.writing(file):
        save_file(dict(shard), file, metadata={"format": "pt"})
    return {name: tensor.nbytes for name, tensor in shard.items()}


def _index(sizes_of: Mapping[str, Mapping[str, int]]) -> str:
    """The list of tensors as transformers writes it, from the bytes of each by its file, ``sizes_of``."""
    weight_map = {name: file for file, sizes in sizes_of.items() for name in sizes}
    total = sum(sum(sizes.values()) for sizes in sizes_of.values())
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=1)


def _exchange(new: Path, folder: Path) -> None:
    """Puts a new checkpoint in the place of an old one. Whoever is killed meanwhile leaves a folder that says that it
    has no weights, never one with some of each."""
    names = {path.name for path in new.iterdir()}
    for entry in (SINGLE, INDEX):
        (folder / entry).unlink(missing_ok=True)
    for path in folder.iterdir():
        if REPLACED.fullmatch(path.name) and path.is_file():
            path.unlink()
    for name in sorted(names, key=lambda name: name in (SINGLE, INDEX)):
        os.replace(new / name, folder / name)
    files.sync(folder)
