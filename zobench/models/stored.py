"""Tensors that rest quantised in a file, in blocks along their rows: where their bytes are, and what they stand for.

Every product and sum is rounded to float32 as in the formats' own readers, so that values have the same bits. Read are
GGUF's formats, and safetensors of compressed-tensors (llm-compressor, vLLM), matrices of linear layers as integers of 4
or 8 bits: ``NAME.weight_packed`` holds, for each row of the matrix, int32 words of 8 or 4 codes, the first in the
lowest bits, each with 2^(bits-1) added; ``NAME.weight_scale`` a scale for each ``group_size`` of them, or one a row. A
weight is code times scale, rounded to the scale's dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from zobench.models import identity

CHUNK = 1 << 18
"""Elements that are decoded at once: their temporaries stay in a core's cache."""

Decode = Callable[[Sequence[Tensor]], Tensor]
"""Makes values, float32 (rows, width), of the bytes of some rows: for each piece a uint8 tensor (rows, bytes of a
row)."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a file that belong to a tensor, row after row."""

    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Stored:
    """A tensor of ``shape`` as files have it. ``places``: row k of the files is row ``places[k]`` of the tensor; None:
    they lie in order."""

    shape: torch.Size
    pieces: tuple[FilePiece, ...]
    decode: Decode
    places: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of a matrix; a vector is one."""
        return self.shape[0] if len(self.shape) > 1 else 1

    def write(self, raw: Sequence[Tensor], out: Tensor) -> None:
        """Writes the tensor into ``out``, of its shape, each value rounded once to its dtype. ``raw``: the bytes of
        each piece, uint8."""
        flat, pieces = out.view(self.rows, -1), [piece.view(self.rows, -1) for piece in raw]
        step = max(1, CHUNK // flat.shape[1])
        for first in range(0, self.rows, step):
            values = self.decode([piece[first : first + step] for piece in pieces])
            if self.places is None:
                flat[first : first + step] = values
            else:
                flat[self.places[first : first + step].to(out.device)] = values.to(out.dtype)

    def read(self, rows: slice | EllipsisType = ...) -> Tensor:
        """The tensor, or some rows of it, float32."""
        raw = [_bytes(piece) for piece in self.pieces]
        if rows is ... or self.rows == 1:
            out = torch.empty(self.shape)
            self.write(raw, out)
            return out[rows]
        order = torch.arange(self.rows) if self.places is None else self.places.argsort()
        return self.decode([piece.view(self.rows, -1)[order[rows]] for piece in raw]).view(-1, *self.shape[1:])


def _bytes(piece: FilePiece) -> Tensor:
    with piece.file.open("rb") as file:
        file.seek(piece.offset)
        content = bytearray(file.read(piece.nbytes))
    if len(content) < piece.nbytes:
        raise ValueError(
            f"{piece.file} must hold {piece.nbytes} bytes from {piece.offset} on, but is shorter; copy it again"
        )
    return torch.frombuffer(content, dtype=torch.uint8)


def floats(dtype: torch.dtype) -> Decode:
    """Values that lie as they are."""
    return lambda raw: raw[0].view(dtype).float()


# --- GGML's blocks: so many bytes for 32 or 256 values of a row, little-endian ----------------------------------------


def _half(raw: Tensor) -> Tensor:
    """A float16 that stands in two bytes, (blocks, 1), in float32."""
    return raw.contiguous().view(torch.float16).float()


def _q5_0(blocks: Tensor) -> Tensor:
    return (_halves(blocks[:, 6:], 16) | (_bits(blocks[:, 2:6]) << 4)).float().sub_(16).mul_(_half(blocks[:, :2]))


def _bits(raw: Tensor) -> Tensor:
    """(blocks, 8 n) of (blocks, n) bytes, the lowest bit first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return ((raw.unsqueeze(2) >> shifts) & 1).flatten(1)


def _scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """(scales, minima), six bits each, (blocks, 8), of 12 bytes: the first four of each in the low bits of the first
    eight bytes, the others' low four bits in the last four, their high two above the first ones."""
    low, least, high = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = torch.cat([low & 63, (high & 15) | ((low >> 2) & 48)], 1)
    minima = torch.cat([least & 63, (high >> 4) | ((least >> 2) & 48)], 1)
    return scales.float(), minima.float()


def _q4_k(blocks: Tensor) -> Tensor:
    """Eight runs of 32, two in each 32 bytes."""
    return _with_minima(blocks, _halves(blocks[:, 16:], 32).view(-1, 8, 32).float())


def _q5_k(blocks: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return _with_minima(blocks, (_halves(blocks[:, 48:], 32).view(-1, 8, 32) | (high << 4)).float())


def _with_minima(blocks: Tensor, values: Tensor) -> Tensor:
    """``d sc q - dmin m`` of (blocks, 8, 32) whole numbers."""
    scales, minima = _scales(blocks[:, 4:16])
    steps, least = scales.mul_(_half(blocks[:, :2])), minima.mul_(_half(blocks[:, 2:4]))
    return values.mul_(steps.unsqueeze(2)).sub_(least.unsqueeze(2)).view(-1, 256)


def _halves(raw: Tensor, run: int) -> Tensor:
    """Low halves of ``run`` bytes, then their high halves, and so on."""
    runs = raw.reshape(len(raw), -1, 1, run)
    return torch.cat([runs & 15, runs >> 4], 2).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """Sixteen runs of 16; the low four bits in 128 bytes, the high two in 64."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    whole = (_halves(blocks[:, :128], 64).view(-1, 8, 32) | (high.reshape(-1, 8, 32) << 4)).view(-1, 16, 16)
    steps = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks[:, 208:]))
    return whole.float().sub_(32).mul_(steps.unsqueeze(2)).view(-1, 256)


@dataclass(frozen=True, slots=True)
class Format:
    """A format of GGUF: ``values`` of a row in ``nbytes``; ``block`` makes them of uint8 (blocks, ``nbytes``)."""

    values: int
    nbytes: int
    block: Callable[[Tensor], Tensor]

    def decode(self, raw: Sequence[Tensor]) -> Tensor:
        rows = raw[0]
        return self.block(rows.reshape(-1, self.nbytes)).view(len(rows), -1)


def _plain(dtype: torch.dtype) -> Format:
    return Format(1, dtype.itemsize, lambda blocks: blocks.contiguous().view(dtype).float())


GGML: Mapping[str, Format] = {
    "F32": _plain(torch.float32),
    "F16": _plain(torch.float16),
    "BF16": _plain(torch.bfloat16),
    "Q8_0": Format(32, 34, lambda blocks: blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks[:, :2]))),
    "Q4_0": Format(32, 18, lambda blocks: _halves(blocks[:, 2:], 16).float().sub_(8).mul_(_half(blocks[:, :2]))),
    "Q4_1": Format(
        32, 20, lambda blocks: _halves(blocks[:, 4:], 16).float().mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))
    ),
    "Q5_0": Format(32, 22, _q5_0),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
}
"""The formats that are read, by GGUF's names."""


METHOD, FORMAT = "compressed-tensors", "pack-quantized"
PACKED, SCALE = ".weight_packed", ".weight_scale"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Torch's floating types by their names in safetensors."""


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
