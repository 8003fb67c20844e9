"""The weights of a GGUF file as they lie in it, under the names that transformers' own reader gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zobench.models.stored import GGML, FilePiece, Stored
from zobench.models.weights import Weights, canonical_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GGUFWeights(Weights):
    """The values of a GGUF file for ``model``, decoded from the file's own bytes; nothing is converted on the disk.

    Raises ``ValueError``, one line, for a tensor that is missing, of another shape, in a format that is not read, or
    that transformers' reader changes in another way than by the order of its rows.
    """

    def __init__(self, file: Path, model: PreTrainedModel) -> None:
        from gguf import GGUFReader
        from transformers import modeling_gguf_pytorch_utils as gguf_utils

        reader: Any = GGUFReader(str(file))
        kind = bytes(reader.fields["general.architecture"].parts[-1]).decode()
        processors: Any = gguf_utils.TENSOR_PROCESSORS
        self._file, self._entries = file, {tensor.name: tensor for tensor in reader.tensors}
        self._processor = processors.get(kind, gguf_utils.TensorProcessor)(config=model.config.to_dict())
        named: dict[str, str] = gguf_utils.get_gguf_hf_weights_map(model, self._processor)
        self._names = {model_name: name for name, model_name in named.items()}
        self._shapes = {name: tensor.shape for name, tensor in model.named_parameters(remove_duplicate=False)}
        first = canonical_names(model)
        for name, canonical in first.items():  # of tied tensors the file holds one
            present = [
                other for other, same in first.items() if same == canonical and self._names.get(other) in self._entries
            ]
            self._names[name] = self._names[present[0]] if present else ""
        self._decoded: dict[str, Stored] = {}

    @torch.no_grad()
    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        out.copy_(self.stored(name).read(slice(first, first + out.shape[0])))

    @property
    def is_quantised(self) -> bool:
        return True

    def stored(self, name: str) -> Stored:
        if name not in self._decoded:
            self._decoded[name] = self._located(name)
        return self._decoded[name]

    def _located(self, name: str) -> Stored:
        entry = self._entries.get(self._names[name])
        if entry is None:
            raise ValueError(f"`{name}` must be in {self._file.name}, but is not; download it again")
        shape, kind = self._shapes[name], entry.tensor_type.name
        if kind not in GGML:
            raise ValueError(
                f"`{name}` must be in one of the formats {', '.join(GGML)}, but {self._file.name} has {kind}; use "
                "tier=disk, which converts it once"
            )
        if tuple(reversed(entry.shape.tolist())) != tuple(shape):
            raise ValueError(
                f"`{name}` must have shape {tuple(shape)}, but {self._file.name} has "
                f"{tuple(reversed(entry.shape.tolist()))}; use tier=disk, which converts it once"
            )
        pieces = (FilePiece(self._file, int(entry.data_offset), int(entry.n_bytes)),)
        return Stored(shape, pieces, GGML[kind].decode, self._places(name, entry.name, shape))

    def _places(self, name: str, file_name: str, shape: torch.Size) -> Tensor | None:
        """The row of the tensor for each row of the file, int64 (rows,); None if they stay in order."""
        rows = shape[0]
        order = np.arange(1, rows + 1, dtype=np.float64)
        numbered = order if len(shape) == 1 else np.repeat(order[:, None], 2, 1)
        read = self._processor.process(numbered, file_name).weights
        if read.shape != numbered.shape or sorted(read.reshape(rows, -1)[:, 0].tolist()) != order.tolist():
            raise ValueError(
                f"`tier=checkpoint` reads a GGUF file's rows as they lie, but {name} is changed when it is read; use "
                "tier=disk, which converts it once"
            )
        source = torch.from_numpy(read.reshape(rows, -1)[:, 0].copy()).long() - 1
        if torch.equal(source, torch.arange(rows)):
            return None
        if len(shape) == 1:
            raise ValueError(f"`tier=checkpoint` needs {name} in order, but its file has another; use tier=disk")
        return source.argsort()
