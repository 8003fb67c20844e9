"""A Hugging Face checkpoint written unit by unit: safetensors shards, an index and the config; nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

SHARD_BYTES = 1 << 30


def save_checkpoint(model: nn.Module, tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Writes ``tensors`` (name, CPU tensor) as shards of about a gibibyte into ``folder``, which is made if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, int] = {}
    total = 0
    for number, shard in enumerate(_shards(tensors)):
        save_file(shard, folder / _shard_name(number), metadata={"format": "pt"})
        names |= dict.fromkeys(shard, number)
        total += sum(tensor.nbytes for tensor in shard.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: _shard_name(shard) for name, shard in sorted(names.items())},
    }
    listing = folder / "model.safetensors.index.json"
    listing.write_text(json.dumps(index, indent=1))
    for written in set(names.values()):  # safetensors makes files that nobody else can read
        (folder / _shard_name(written)).chmod(listing.stat().st_mode)
    model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]


def _shard_name(shard: int) -> str:
    return f"model-{shard + 1:05d}.safetensors"


def _shards(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        shard[name] = tensor
        if sum(item.nbytes for item in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard
