"""Where a model's initial values come from, one tensor at a time, so that the model may be larger than memory."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from zobench.machine.texts import first_line
from zobench.models import checkpoint, gguf, identity, initialisation
from zobench.models.checkpoint import TensorSource
from zobench.models.initialisation import Rule
from zobench.models.stored import DTYPES, GGML, FilePiece, Stored, floats, packed_matrices

if TYPE_CHECKING:
    from transformers import PreTrainedModel


POOL = 4_194_301
"""Length of the pool of normals: prime, so that no two of the first POOL rows of a matrix start at the same place."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


TensorLocation = tuple[Path, int, torch.dtype]
"""A file, the offset of a tensor's first byte in it, and the tensor's dtype there."""

Rows = slice | EllipsisType
"""Some rows of a tensor, or all of it."""


class Weights(Protocol):
    """A source of initial values by parameter name; a tied tensor has the same values under each of its names."""

    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        """Writes rows ``first``, ``first + 1``, ... of parameter ``name`` into ``out``: contiguous, on any device."""

    def locate(self, name: str) -> TensorLocation | None:
        """Where the values of ``name`` follow one another in a file that may be read instead; None: nowhere."""
        return None

    @property
    def is_quantised(self) -> bool:
        """Whether files hold these values quantised, each as :meth:`stored` says."""
        return False

    def stored(self, name: str) -> Stored | None:
        """Where the bytes of ``name`` are in files that may be read instead, and what they stand for; None: nowhere."""
        return None


class RandomWeights(Weights):
    """Values distributed as the model's own initialisation (:mod:`zobench.models.initialisation`): mostly normal
    matrices, zero biases, unit norms, a zero padding row.

    A function of (seed, name) only: not of the order of calls, nor of the device. Normals are copied from a pool of
    :data:`POOL` of them, from a place that (seed, name) decides, because drawing each of them takes minutes for a model
    of 30B. The pool lives on ``out``'s device as long as this object does.
    """

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        self._seed, self._model = seed, model
        self._canonical = canonical_names(model)
        known_rules = initialisation.rules(model)
        self._rules = {
            name: known_rules.get(name) or _default_rule(name, model.get_submodule(name.rpartition(".")[0]))
            for name in self._canonical.values()
        }
        self._lock = threading.Lock()
        self._pools: dict[tuple[torch.dtype, torch.device, float], Tensor] = {}

    @torch.no_grad()
    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        name = self._canonical[name]
        rule = self._rules[name]
        if rule.constant is not None:
            out.fill_(rule.constant)
            return
        if rule.std is None:
            with self._lock:  # no pool gives uniform values and the like; torch's generator is one for all threads
                drawn = initialisation.drawn(self._model, name, rule.writer, _offset(self._seed, name))
            out.copy_(drawn[first : first + out.shape[0]])
            return
        start = _offset(self._seed, name) + first * out.shape[1:].numel()
        _tile(out.detach().view(-1), self._pool(out, rule.std), start % POOL)
        if rule.zero_row is not None and first <= rule.zero_row < first + out.shape[0]:
            out[rule.zero_row - first].zero_()

    def _pool(self, out: Tensor, std: float) -> Tensor:
        key = (out.dtype, out.device, std)
        with self._lock:  # several threads fill at once, and one pool serves them all
            if key not in self._pools:
                self._pools[key] = _normals(self._seed, std).to(out.dtype).to(out.device)
            return self._pools[key]


def _normals(seed: int, std: float) -> Tensor:
    """A seed's :data:`POOL` normal numbers times ``std``, float32. NumPy draws them, because torch's generators for
    CPUs and for CUDA draw different numbers from the same seed."""
    normals = np.random.default_rng(seed).standard_normal(POOL, dtype=np.float32)
    normals *= std
    return torch.from_numpy(normals)


class ModelWeights(Weights):
    """The values that a materialised model has at the time of the call."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # not its tensors: each may be freed once it has been copied

    @torch.no_grad()
    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        out.copy_(self._model.get_parameter(name)[first : first + out.shape[0]])


class PretrainedWeights(Weights):
    """The values of a checkpoint in safetensors (one file or shards): a local folder, or a model on the hub.

    The names of its tensors, and how they are put together, are transformers' own rules for ``model``, whose persistent
    buffers get the checkpoint's values at once. Only safetensors are read: opening a pickle would run code. Raises
    ``ValueError``, one line, for what :mod:`zobench.models.checkpoint` refuses, an unreachable hub, and a tensor that
    is missing, of another shape, or quantised in a way that is not read (:mod:`zobench.models.stored`).
    """

    def __init__(self, folder_or_hub_id: str | Path, model: PreTrainedModel) -> None:
        self._folder = checkpoint.located(str(folder_or_hub_id))
        bits = checkpoint.check_config(self._folder)
        self._model = model
        self._files = checkpoint.tensors(self._folder)
        self._packed = packed_matrices(self._files, bits) if bits else {}
        self._files |= {key: stored.pieces[0].file for key, stored in self._packed.items()}
        self._origins = checkpoint.origins(
            model, self._files, lambda key: torch.empty(self._piece(key, slice(0))[0], device="meta")
        )
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}
        first, last = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
        ends = [_weight_name(model, first), _weight_name(model, last)]
        self._twin = dict(zip(ends, reversed(ends), strict=True))  # a tied checkpoint holds only one of the two
        canonical = canonical_names(model)
        self._tied = len({canonical[name] for name in ends}) == 1
        for name in set(canonical) - set(ends):  # of others that are tied, the first or a later name is there
            first_name = canonical[name]
            if first_name in self._origins:
                self._origins.setdefault(name, self._origins[first_name])
            elif name in self._origins:
                self._origins[first_name] = self._origins[name]
        self._fill_buffers(model)

    @torch.no_grad()
    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        """See :class:`Weights`; the checkpoint's dtype is cast to ``out``'s."""
        shape, tensor = self._read(name, slice(first, first + out.shape[0]))
        self._check_shape(name, self._shapes[name], shape)
        if tensor.dtype not in FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            remedy = "save it in one of these" if tensor.is_floating_point() else "give one that is not quantised"
            raise ValueError(f"`{name}` must be fp32, fp16 or bf16, but {self._folder} has {dtype}; {remedy}")
        out.copy_(tensor)

    def locate(self, name: str) -> TensorLocation:
        """See :class:`Weights`.

        Raises ``ValueError`` if the checkpoint lacks it, or has it in another shape or in pieces.
        """
        origin = self._origin(name)
        key, file = origin.keys[0], self._files[origin.keys[0]]
        if origin.transform is not None:
            raise ValueError(
                f"`tier=checkpoint` reads weights as they lie, but {self._folder} has {name} in another form, as {key} "
                "and others; use tier=disk"
            )
        entries, start = identity.header(file)
        entry = entries[key]
        if tuple(entry["shape"]) != tuple(self._shapes[name]) or entry["dtype"] not in DTYPES:
            raise ValueError(
                f"`{name}` must have shape {tuple(self._shapes[name])} in fp32, fp16 or bf16, but {self._folder} has "
                f"{tuple(entry['shape'])} in {entry['dtype']}; give the weights of this model"
            )
        return file, start + entry["data_offsets"][0], DTYPES[entry["dtype"]]

    @property
    def is_quantised(self) -> bool:
        return bool(self._packed)

    def stored(self, name: str) -> Stored:
        """See :class:`Weights`; what is not quantised is there too, in its own dtype."""
        origin = self._origin(name)
        if origin.transform is None and (packed := self._packed.get(origin.keys[0])) is not None:
            self._check_shape(name, self._shapes[name], packed.shape)
            return packed
        file, offset, dtype = self.locate(name)
        shape = self._shapes[name]
        return Stored(shape, (FilePiece(file, offset, shape.numel() * dtype.itemsize),), floats(dtype))

    def _origin(self, name: str) -> TensorSource:
        """Returns the origin of a tensor; where it is tied and absent, that of its twin."""
        return self._origins.get(name) or self._origins.get(self._twin.get(name, name)) or self._lacks(name)

    def _read(self, name: str, rows: Rows) -> tuple[torch.Size, Tensor]:
        """(shape of the whole tensor, these rows of it)."""
        origin, twin = self._origins.get(name), self._origins.get(self._twin.get(name, ""))
        shape, tensor = self._rows(name, self._origin(name), rows)
        if self._tied and origin and twin and not torch.equal(tensor, self._rows(self._twin[name], twin, rows)[1]):
            raise ValueError(
                f"`tie_embeddings=true` needs a head equal to the embedding, but {self._folder} holds two different "
                "tensors; use tie_embeddings=false"
            )
        return shape, tensor

    def _rows(self, name: str, origin: TensorSource, rows: Rows) -> tuple[torch.Size, Tensor]:
        if origin.transform is None:
            return self._piece(origin.keys[0], rows)
        pieces = [self._piece(key, ...)[1] for key in origin.keys]
        try:
            whole = origin.put_together(pieces, self._model)[name]
        except (RuntimeError, ValueError, LookupError) as error:
            raise ValueError(
                f"`{name}` must be what transformers makes of {len(pieces)} tensors in {self._folder}, but they do not "
                f"go together ({first_line(error)}); give this model's weights"
            ) from error
        return whole.shape, whole[rows]

    def _lacks(self, name: str) -> NoReturn:
        raise ValueError(f"`{name}` must be in the checkpoint, but {self._folder} lacks it; give this model's weights")

    def _check_shape(self, name: str, wanted: torch.Size, shape: torch.Size) -> None:
        if shape != wanted:
            raise ValueError(
                f"`{name}` must have shape {tuple(wanted)}, but {self._folder} has {tuple(shape)}; "
                "give the weights of this model"
            )

    def _piece(self, key: str, rows: Rows) -> tuple[torch.Size, Tensor]:
        """(shape, rows) of one tensor of the checkpoint, whose file is opened each time: the pages read through an open
        handle count as this process's memory."""
        if (packed := self._packed.get(key)) is not None:
            return packed.shape, packed.read(rows)
        with safe_open(self._files[key], framework="pt") as handle:
            tensor = handle.get_slice(key)
            return torch.Size(tensor.get_shape()), tensor[rows]

    @torch.no_grad()
    def _fill_buffers(self, model: PreTrainedModel) -> None:
        """A buffer that is not there, and without which transformers loads a checkpoint, is what its class makes it."""
        optional = model._keys_to_ignore_on_load_missing or ()
        for name, buffer in checkpoint.persistent_buffers(model):
            if name in self._origins or not any(re.search(pattern, name) for pattern in optional):
                shape, values = self._read(name, ...)
                self._check_shape(name, buffer.shape, shape)
                buffer.copy_(values)


@torch.no_grad()
def materialise(model: PreTrainedModel, weights: Weights, device: torch.device | str) -> None:
    """Replaces the model's meta parameters by filled ones on ``device``, keeping ties, and moves its buffers there."""
    fresh: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        values = torch.empty_like(parameter, device=device)
        weights.fill(name, values)
        fresh[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, key, fresh[parameter])
        for key, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, key, buffer.to(device))


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter to the first name of the same parameter, as ``named_parameters()`` has it."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    return {name: first[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}


def _default_rule(name: str, module: nn.Module) -> Rule:
    """The rule of a parameter of ``module`` that the model's own initialisation leaves as it was constructed."""
    key = name.rpartition(".")[2]
    if key == "bias":
        return Rule(constant=0.0)
    if key == "weight" and "Norm" in type(module).__name__:
        return Rule(constant=1.0)
    raise ValueError(
        f"`{name}` must belong to a module that its model initialises, but got {type(module).__name__}; "
        "use weights=pretrained"
    )


def _offset(seed: int, name: str) -> int:
    """A place in the pool; not Python's ``hash``, which differs from process to process."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) % POOL


def _tile(out: Tensor, pool: Tensor, start: int) -> None:
    """``out[i] = pool[(start + i) % len(pool)]``."""
    done = 0
    while done < out.numel():
        piece = pool[start : start + out.numel() - done]
        target = out[done : done + piece.numel()]
        if out.is_cpu:
            # Plain memcpy: torch's copy wakes threads at each call, which costs milliseconds where cores are shared.
            # Measured on 2 busy cores of an EPYC, 200M elements, median of 7: fp32 2.4 to 4.8, fp16 and bf16 4.6 to 9.7
            # G elements/s (torch's copy: 0.5); into memory never touched before 0.2 to 0.5, which is its page faults.
            target.view(torch.uint8).numpy()[:] = piece.view(torch.uint8).numpy()
        else:
            target.copy_(piece)
        start, done = 0, done + piece.numel()


def _weight_name(model: nn.Module, module: Any) -> str:
    return next(f"{name}.weight" for name, candidate in model.named_modules() if candidate is module)


class GGUFWeights(Weights):
    """The values of a GGUF file for ``model``, decoded from the file's own bytes; nothing is converted on the disk.

    Raises ``ValueError``, one line, for a tensor that is missing, of another shape, in a format that is not read, or
    that transformers' reader changes in another way than by the order of its rows.
    """

    def __init__(self, file: Path, model: PreTrainedModel) -> None:
        from gguf import GGUFReader
        from transformers import modeling_gguf_pytorch_utils as gguf_utils

        with gguf.refusing(file):
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
