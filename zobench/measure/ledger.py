"""Ledger: bytes of all tensors that live on one device, counted while real code runs, also where nothing is allocated.

On the meta device tensors have sizes and no memory, so a run that fits nowhere can be counted: what it counts there is
what a CUDA device would hold. Libraries' own scratch (cuBLAS and oneDNN workspaces, the buffers inside an attention
kernel) belongs to no tensor and is not in the ledger.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LARGEST_FLASH_HEAD = 256
"""Elements of a head: the flash kernel takes no longer one."""


class Ledger:
    """Counts the storages on ``device_type`` ("meta", "cpu", "cuda") that operators make inside its ``with``.

    A storage counts once, with its full size, from the operator that made it until its last tensor is gone; views share
    it. What was made before, by another thread, or from other memory (``torch.frombuffer``, ``from_numpy``, ``tensor``:
    no operators) counts only if it is given to :meth:`hold`. "meta" stands for a CUDA device (:class:`AsCuda`).
    ``peak``: the most bytes that lived at once, since the beginning or the last :meth:`reset`.
    """

    def __init__(self, device_type: str) -> None:
        self.device_type, self.peak = device_type, 0
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._dead: deque[int] = deque()
        self._total = 0
        self._lock = threading.Lock()
        self._modes = contextlib.ExitStack()

    @property
    def live(self) -> int:
        """Bytes that live now."""
        with self._lock:
            self._bury()
            return self._total

    def reset(self) -> None:
        """Starts the peak again from what lives now."""
        self.peak = self.live

    def hold(self, tensor: Tensor) -> Tensor:
        """Counts ``tensor``'s storage from now on, whoever made it, and on whatever device. Returns ``tensor``."""
        with self._lock:
            self._bury()
            self._count(tensor.untyped_storage())
        return tensor

    def __enter__(self) -> Ledger:
        if self.device_type == "meta":
            self._modes.enter_context(AsCuda())
        self._modes.enter_context(Watch(self.saw))
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.close()

    def saw(self, operator: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """Counts what an operator made: the storages of its outputs that are none of its inputs'."""
        storages = {id(storage): storage for storage in self._storages(inputs)}
        with self._lock:
            self._bury()
            for key, storage in storages.items():
                if key in self._sizes:
                    self._count(storage)  # its size is another after resize_, or an out= that was too small
            for storage in self._storages(outputs):
                if id(storage) not in storages:
                    self._count(storage)

    def _storages(self, tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
        return (tensor.untyped_storage() for tensor in tensors if tensor.device.type == self.device_type)

    def _count(self, storage: torch.UntypedStorage) -> None:
        # PyTorch keeps one Python object per storage until the storage's own end: its id names the storage. Addresses
        # are used again, and on the meta device are 0. The callback may run in any thread, so it only takes note.
        key, size = id(storage), storage.nbytes()
        if key not in self._sizes:

            def note(_: object, key: int = key) -> None:
                self._dead.append(key)

            self._alive[key] = weakref.ref(storage, note)
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self._total)

    def _bury(self) -> None:
        """Subtracts the storages that were freed; called before every count, so that the peak never includes one."""
        while self._dead:
            key = self._dead.popleft()
            self._total -= self._sizes.pop(key)
            del self._alive[key]


class Watch(TorchDispatchMode):
    """Shows ``saw`` every operator: its name, and the tensors that it was given and that it made. In inference mode
    composite ones arrive whole, and are taken apart here."""

    def __init__(self, saw: Callable[[str, list[Tensor], list[Tensor]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._saw = saw

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
            inputs, outputs = ([leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
                           for values in ((args, kwargs), result))  # fmt: skip
            self._saw(str(func.overloadpacket), inputs, outputs)
        return result


class AsCuda(TorchFunctionMode):
    """Lets code run on the meta device as it would on a CUDA device, on a batch without padding.

    Attention: PyTorch's own choice on meta is plain products, with matrices of tokens x tokens. The rules are those of
    PyTorch's ``sdp_utils.cpp`` and ``attention.cu``: 16-bit heads without a mask take the flash kernel, which makes its
    output, laid out as the query, and a float32 log-sum-exp per row (``mha_fwd`` in ``flash_api.cpp``); other heads, if
    as many for keys as for queries, the memory-efficient kernel, which makes its output, and the log-sum-exp where a
    gradient is taken. The rest is plain products.
    Not counted: flash's float32 partial outputs, made where batch * heads * tokens / 64 is less than 1.6 times the
    device's multiprocessors.

    Truth values: a tensor without values is true. ``transformers`` asks them only whether nothing is masked or packed.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention and args[0].is_meta:
            return _attention(func, *args, **(kwargs or {}))
        if func is Tensor.__bool__ and args[0].is_meta:
            return True
        return func(*args, **(kwargs or {}))


def _attention(
    plain: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    kernels = torch.ops.aten
    output: Tensor
    flash = query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None
    if flash and query.shape[-1] % 8 == 0 and query.shape[-1] <= LARGEST_FLASH_HEAD:
        output, *_ = kernels._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
    elif query.shape[1] == key.shape[1]:
        bias = attn_mask.to(query.dtype) if attn_mask is not None else None  # a mask of truth values becomes a bias
        derived = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        output, *_ = kernels._scaled_dot_product_efficient_attention(
            query, key, value, bias, derived, dropout_p, is_causal, scale=scale
        )
    else:
        output = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return output
