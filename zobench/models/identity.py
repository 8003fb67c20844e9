"""The identity of a folder's model, whatever the folder is called: fingerprints of its config.json and its weights. No
torch.

A run of such a model is hashed by them. Of the weights not all bytes are read, which would take minutes for hundreds of
gigabytes: for every tensor its name, dtype, shape and place count, and of its bytes the first, the middle and the last
:data:`CHUNK`; a tensor of up to three of these counts whole. So weights that were trained further, converted or cut
into other files have another fingerprint; a change inside one large tensor alone may not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from zobench.machine.texts import json_of
from zobench.models import cache

SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
"""The names that transformers gives to weights in one file, to the list of several files', and to a configuration."""
GGUF = "weights.gguf"
"""A link to a GGUF file, in a folder that only describes it (:mod:`zobench.models.gguf`)."""
CHUNK = 4096
"""Bytes of a sample."""
_DIGITS = 12
_SAYS_NOTHING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
"""Keys of a config.json that do not decide what the model computes in a run, whose dtype is the spec's."""


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json in ``folder``. Raises ``ValueError``, one line, if there is none or it is not a model's."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"`model` must be a folder with a config.json, but {folder} has none; name a model's folder")
    try:
        values = json_of(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, but is not ({error}); copy it again") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"{path} must name a model_type, but does not; give the folder of a transformers model")
    return values


MOST_LAYERS = 2000
"""The most layers of a model: one of a damaged file, with a thousand million, would be built for hours."""


def check_layers(config: Any) -> None:
    """Raises ``ValueError`` for a configuration of transformers with more layers than any model has."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ValueError(f"num_hidden_layers={layers} is more than {MOST_LAYERS}")


def config_hash(folder: Path) -> str:
    """A fingerprint of the folder's config.json: of what it says, not of how it is written."""
    values = {key: value for key, value in read_config(folder).items() if key not in _SAYS_NOTHING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def weights_hash(folder: Path) -> str:
    """A fingerprint of the folder's safetensors, kept by the files' paths, sizes and times of their last change.

    Raises ``ValueError`` if the folder has none.
    """
    if (link := folder / GGUF).is_file():
        return file_hash(link)
    files = _files(folder)
    if not files:
        raise ValueError(
            f"`weights=pretrained` needs *.safetensors, but {folder} has none; use weights=random, or convert once: "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)"
        )
    return remembered("weights", files, lambda: _digest(files))


def file_hash(path: Path) -> str:
    """A fingerprint of all bytes of a file, kept likewise."""
    return remembered("files", [path], lambda: _whole(path))


def remembered(kind: str, files: Iterable[Path], make: Callable[[], str]) -> str:
    """Returns what ``make`` returns for ``files``, called once while they have the same paths, sizes and times."""
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([CHUNK, facts]).encode()).hexdigest()[:32]
    kept = cache.read(kind, key)
    if kept is None:
        cache.keep(kind, key, kept := make())
    return kept


def header(file: Path) -> tuple[dict[str, Any], int]:
    """(the entries of a safetensors file, the offset of its first tensor)."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        return json.loads(handle.read(length)), 8 + length


def _files(folder: Path) -> list[Path]:
    """The files that transformers reads: the one file, the shards that an index names and that are there, else all;
    what is wrong with them the reader says (:mod:`zobench.models.checkpoint`)."""
    if (single := folder / SINGLE).is_file():
        return [single]
    every = [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]  # a pipe is read for ever
    try:
        named = json.loads((folder / INDEX).read_text() if (folder / INDEX).is_file() else "")["weight_map"].values()
        inside = sorted(folder / name for name in set(named) if ".." not in Path(name).parts)
        return [file for file in inside if file.is_file()] or every
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return every


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            for piece in _samples(file, path.stat().st_size):
                digest.update(piece)
    return digest.hexdigest()[:_DIGITS]


def _samples(file: BinaryIO, size: int) -> Iterable[bytes]:
    """The header of a safetensors file, then samples of each tensor; of a file with no such header, of its whole."""
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length) if length < size else b""
    yield size.to_bytes(8, "little") + header
    try:
        entries = [entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        spans = [(8 + length + begin, 8 + length + end) for begin, end in entries]
        if not all(type(begin) is type(end) is int and 0 <= begin <= end <= size for begin, end in spans):
            raise ValueError("a tensor lies outside of the file")
    except (ValueError, KeyError, TypeError, AttributeError):
        spans = [(0, size)]
    for begin, end in sorted(spans):
        whole = end - begin <= 3 * CHUNK
        for start in (begin,) if whole else (begin, (begin + end - CHUNK) // 2, end - CHUNK):
            file.seek(start)
            yield file.read(end - begin if whole else CHUNK)


def _whole(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
