"""Safetensors of compressed-tensors (llm-compressor, vLLM): matrices of linear layers as integers of 4 or 8 bits.

``NAME.weight_packed`` holds, for each row of the matrix, int32 words of 8 or 4 codes, the first in the lowest bits,
each with 2^(bits-1) added; ``NAME.weight_scale`` a scale for each ``group_size`` of them, or one a row. A weight is
code times scale, rounded to the scale's dtype, as the format's own reader has it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zobench.models import identity
from zobench.models.stored import FilePiece, Stored

METHOD, FORMAT = "compressed-tensors", "pack-quantized"
PACKED, SCALE = ".weight_packed", ".weight_scale"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""What safetensors calls the floating types."""


def bits_of(config: Mapping[str, Any]) -> int:
    """Bits of a code, of a ``quantization_config``. Raises ``ValueError``, one line, for what is not read."""
    method = config.get("quant_method", "unknown")
    if method != METHOD:
        raise ValueError(f"quant_method={method}")
    if config.get("format") != FORMAT:
        raise ValueError(f"format={config.get('format')}")
    groups = list((config.get("config_groups") or {}).values())
    weights = groups[0].get("weights") if len(groups) == 1 and isinstance(groups[0], Mapping) else None
    if not isinstance(weights, Mapping):
        raise ValueError(f"{len(groups)} config_groups")
    for key, allowed in (
        ("type", ("int",)), ("num_bits", (4, 8)), ("symmetric", (True,)), ("strategy", ("group", "channel")),
        ("actorder", (None, "weight", "static")),
    ):  # fmt: skip
        if weights.get(key) not in allowed:
            raise ValueError(f"{key}={weights.get(key)}")
    if groups[0].get("input_activations") or groups[0].get("output_activations"):
        raise ValueError("quantised activations")
    return int(weights["num_bits"])


def packed_matrices(files: Mapping[str, Path], bits: int) -> dict[str, Stored]:
    """The matrices that are packed in ``files`` (by the names of their tensors), by their plain names."""
    heads = {file: identity.header(file) for file in set(files.values())}
    stored = {}
    for key, file in files.items():
        if key.endswith(PACKED):
            name = key.removesuffix(PACKED)
            scale = name + SCALE
            if scale not in files:
                raise ValueError(f"`weights_path` must hold {scale} beside {key}, but lacks it; copy all files again")
            stored[f"{name}.weight"] = _stored(_entry(heads[file], key), file, _entry(heads[files[scale]], scale),
                                               files[scale], bits)  # fmt: skip
    return stored


def _stored(codes: tuple[Any, int], file: Path, scales: tuple[Any, int], scale_file: Path, bits: int) -> Stored:
    (what, where), (scale, scale_offset) = codes, scales
    rows, words = what["shape"]
    decode = functools.partial(_decode, bits, DTYPES[scale["dtype"]])
    sizes = [entry["data_offsets"][1] - entry["data_offsets"][0] for entry in (what, scale)]
    pieces = FilePiece(file, where, sizes[0]), FilePiece(scale_file, scale_offset, sizes[1])
    return Stored(torch.Size([rows, words * 32 // bits]), pieces, decode)


def _decode(bits: int, dtype: torch.dtype, raw: Sequence[Tensor]) -> Tensor:
    codes, scales = raw[0], raw[1].contiguous().view(dtype)
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], 2).flatten(1)
    groups = codes.reshape(len(codes), scales.shape[1], -1).float().sub_(2 ** (bits - 1)).to(dtype)
    return (groups * scales.unsqueeze(2)).flatten(1).float()


def _entry(head: tuple[dict[str, Any], int], key: str) -> tuple[Any, int]:
    """(what a file says of a tensor, where it begins)."""
    entries, first = head
    return entries[key], first + entries[key]["data_offsets"][0]
