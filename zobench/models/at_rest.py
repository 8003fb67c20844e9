"""Bytes of a weight in a checkpoint that is quantised, for predictions. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zobench.models import identity
from zobench.models.source import is_read_where_it_lies
from zobench.models.variants import of, weights_place
from zobench.runspec import RunSpec

PACKED = (".weight_packed", ".weight_scale")
"""How the names of quantised matrices and of their scales end in safetensors (:mod:`zobench.models.compressed`)."""


def stored_width(spec: RunSpec) -> float | None:
    """Bytes of a block's weight in the files in which the blocks of ``spec`` rest; None if these are not quantised, or
    if the blocks rest elsewhere."""
    if spec.weights != "pretrained" or not is_read_where_it_lies(spec):
        return None
    folder = Path(weights_place(spec))
    if (file := folder / identity.GGUF).is_file():
        return float(identity.remembered("widths", [file], lambda: str(_of_gguf(file))))
    if not (folder / identity.CONFIG).is_file() or not identity.read_config(folder).get("quantization_config"):
        return None
    files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    return sum(map(_packed_bytes, files)) / of(spec).all_blocks


def _of_gguf(file: Path) -> float:
    from gguf import GGUFReader

    reader: Any = GGUFReader(str(file))
    inside = [tensor for tensor in reader.tensors if tensor.name.startswith("blk.")]
    return sum(int(tensor.n_bytes) for tensor in inside) / sum(int(tensor.n_elements) for tensor in inside)


def _packed_bytes(file: Path) -> int:
    """Bytes of quantised matrices in a file; vectors beside them are too few to count."""
    entries, _ = identity.header(file)
    spans = (entry["data_offsets"] for name, entry in entries.items() if name.endswith(PACKED))
    return sum(end - begin for begin, end in spans)
