"""Real values on the null GPU: each operator runs as CUDA's (allocator, streams, checks; its kernels compute nothing),
then once more on the CPU on the same memory, where its stream has arrived.

Memory that is allocated without a value is filled with NaN. What each operator reads and writes is told to the runtime,
which finds two that touch the same memory on two streams without a wait between them.
"""

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from tests.nullcuda.counts import runtime

ENABLED = os.environ.get("NULLCUDA_VALUES", "1") != "0"
_aten = torch.ops.aten

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def begin() -> None:
    """From now on, in this thread and in those it starts."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # it asks cuDNN for plans, which a stub cannot give
    if not ENABLED:
        return
    HostValues().__enter__()
    run = threading.Thread.run

    @functools.wraps(run)
    def run_with_values(thread: threading.Thread) -> None:
        with HostValues():
            run(thread)

    threading.Thread.run = run_with_values  # type: ignore[method-assign, assignment]


# --- the same memory as a CPU tensor ----------------------------------------------------------------------------------


def on_host(value: Any) -> Any:
    """``value``, or for a CUDA tensor a CPU tensor of its memory."""
    if not isinstance(value, Tensor) or not value.is_cuda:
        return value
    if value._is_zerotensor():  # forward-mode differentiation has zeros without memory
        return torch.zeros(value.shape, dtype=value.dtype)
    storage = value.untyped_storage()
    if not storage.nbytes() or not value.numel():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    raw = torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    alias = torch.empty(0, dtype=value.dtype)
    alias.set_(raw.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return alias.conj() if value.is_conj() else alias


def _extent(tensor: Tensor) -> int:
    """Bytes from the tensor's first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def arrive(name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
    """An operation on the current stream: everything issued on it before is done, and the runtime hears of it."""
    first = next((tensor for tensor in (*writes, *reads) if tensor.is_cuda), None)
    if first is None:
        return
    with torch.cuda.device(first.device):
        stream = torch._C._cuda_getCurrentRawStream(first.device.index)
        for tensors, written in ((reads, 0), (writes, 1)):
            for tensor in tensors:
                if tensor.is_cuda and tensor.numel() and not tensor._is_zerotensor():
                    runtime().nullcuda_touched(stream, tensor.data_ptr(), _extent(tensor), written, _text(name))
        runtime().nullcuda_issue(stream)


@functools.cache
def _text(name: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(name.encode())  # kept for ever: the runtime holds the pointer


# --- operators --------------------------------------------------------------------------------------------------------


class HostValues(TorchDispatchMode):
    """Gives the operators on CUDA tensors their values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch's compiler, seconds, into every process

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d" or not any(_is_cuda(leaf) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)  # a collective has its values from NCCL
        if _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return RULES.get(func, computed)(func, args, kwargs)


def _is_cuda(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.is_cuda
    return isinstance(leaf, torch.device) and leaf.type == "cuda"


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Most operators: CUDA's result, whose values are the CPU's."""
    out = func(*args, **kwargs)
    written = _written(func, args, kwargs)
    if not written and any(result.alias_info is not None for result in func._schema.returns):
        return out  # a view
    arrive(func.name(), _tensors((args, kwargs)), written or _tensors(out))
    on_cpu = func(*tree_map(on_host, args), **_host_options(kwargs))
    if written:
        return out
    for mine, value in zip(_tensors(out), _tensors(on_cpu), strict=True):
        if mine.numel() and not mine._is_zerotensor():
            on_host(mine).copy_(value)
    return out


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operator writes, by its schema."""
    tensors: list[Any] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensors.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return _tensors(tensors)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _host_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    options = {key: tree_map(on_host, value) for key, value in kwargs.items()}
    if options.get("device") is not None:
        options["device"] = torch.device("cpu")
    return {**options, "pin_memory": False} if options.get("pin_memory") else options


def as_is(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """No kernel gives these their values."""
    return func(*args, **kwargs)


def poisoned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Memory without a value: NaN in every floating-point type, -1 in integers."""
    out = func(*args, **kwargs)
    if out.is_cuda and out.untyped_storage().nbytes():
        arrive(func.name(), [], [out] if out.numel() else [])
        ctypes.memset(out.untyped_storage().data_ptr(), 0xFF, out.untyped_storage().nbytes())
    return out


def copied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Between memories the runtime copies; what else a copy does, converting and striding, is done here."""
    to, source = args[:2]
    if to.device == source.device:
        return computed(func, args, kwargs)
    if _is_plain_copy(to, source):
        return func(*args, **kwargs)
    out = func(*args, **kwargs)
    arrive(func.name(), [source], [to])
    on_host(to).copy_(on_host(source))
    return out


def _is_plain_copy(a: Tensor, b: Tensor) -> bool:
    dense = a.is_contiguous() or torch._prims_common.is_non_overlapping_and_dense(a)
    return dense and (a.dtype, a.shape, a.stride(), a.is_conj()) == (b.dtype, b.shape, b.stride(), b.is_conj())


def converted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``to``: the copy that CUDA makes is empty of values."""
    out, source = func(*args, **kwargs), args[0]
    arrive(func.name(), [source], [out])
    if out.numel():
        on_host(out).copy_(on_host(source))
    return out


def sized_by_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result's size depends on values, for which CUDA waits."""
    device = next(tensor.device for tensor in _tensors((args, kwargs)) if tensor.is_cuda)
    arrive(func.name(), _tensors((args, kwargs)), [])
    torch.cuda.current_stream(device).synchronize()
    on_cpu = func(*tree_map(on_host, args), **_host_options(kwargs))

    def given(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        out = torch.empty(value.shape, dtype=value.dtype, device=device)
        if value.numel():
            on_host(out).copy_(value)
        return out

    return tree_map(given, on_cpu)


def indexed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return (sized_by_values if masks else computed)(func, args, kwargs)


def compared(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].device != args[1].device:
        return func(*args, **kwargs)  # torch's error
    return sized_by_values(func, args, kwargs)


def random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Values of the CPU's generator of the same seed after the same draws: the same state gives the same values, and a
    run with torch's noise has those of a run on the CPU."""
    generator = kwargs.get("generator")
    if generator is None:
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
    like = _like(generator)
    out = func(*args, **kwargs)
    arrive(func.name(), [], [out])
    options = {**_host_options(kwargs), "generator": like}
    if func in (_aten.normal_.default, _aten.uniform_.default, _aten.random_.default):
        value = func(torch.empty(out.shape, dtype=out.dtype), *args[1:], **options)
    else:
        value = func(*args, **options)
    on_host(out).copy_(value)
    _states[_state(generator)] = like.get_state()
    if len(_states) > STATES:
        del _states[next(iter(_states))]
    return out


STATES = 10_000
_states: dict[bytes, Tensor] = {}
"""State of a CUDA generator that has drawn -> that of the CPU's generator which has drawn the same."""


def _state(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().tolist())


def _like(generator: torch.Generator) -> torch.Generator:
    """A generator of the CPU as far as CUDA's is; one of its own where nobody has seen how that came there."""
    state, generator_state = _state(generator), torch.Generator()
    if state in _states:
        return generator_state.set_state(_states[state])
    seed, offset = generator.initial_seed(), generator.get_offset()
    return generator_state.manual_seed(hash((seed, offset)) % (1 << 62) if offset else seed)


def attended(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention as the CPU computes it; what the backward pass would need beside it stays without a value."""
    out = func(*args, **kwargs)
    named = _by_name(func, args, kwargs)
    bias = named.get("attn_bias")
    arrive(func.name(), _tensors((args, kwargs)), [out[0]])
    grouped = args[0].shape[-3] != args[1].shape[-3]
    value = functional.scaled_dot_product_attention(
        *map(on_host, args[:3]),
        attn_mask=on_host(bias),
        is_causal=named["is_causal"],
        scale=named.get("scale"),
        enable_gqa=grouped,
    )
    on_host(out[0]).copy_(value)
    return out


def attended_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients of query, key and value, as the CPU computes them from a forward pass of its own."""
    out = func(*args, **kwargs)
    named = _by_name(func, args, kwargs)
    query, key, value, bias = (on_host(named.get(name)) for name in ("query", "key", "value", "attn_bias"))
    arrive(func.name(), _tensors((args, kwargs)), list(out[:3]))
    options = {"attn_mask": bias, "scale": named.get("scale")}
    dropout, causal = named["dropout_p"], named["is_causal"]
    ran = _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, **options)
    gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        on_host(args[0]), query, key, value, *ran, dropout, causal, **options
    )
    for mine, gradient in zip(out[:3], gradients, strict=True):
        on_host(mine).copy_(gradient)
    return out


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call, the defaults included."""
    arguments = func._schema.arguments
    named = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return named | dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs


def _rules() -> Iterator[tuple[Any, Rule]]:
    for name in ("empty.memory_format", "empty_strided.default", "empty_like.default", "new_empty.default",
                 "new_empty_strided.default"):  # fmt: skip
        yield name, poisoned
    for name in ("record_stream.default", "is_pinned.default", "_local_scalar_dense.default", "resize_.default",
                 "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"):  # fmt: skip
        yield name, as_is
    for name in ("nonzero.default", "masked_select.default", "_unique2.default", "unique_dim.default",
                 "bincount.default", "repeat_interleave.Tensor"):  # fmt: skip
        yield name, sized_by_values
    for name in ("normal_.default", "normal.float_float", "randn.default", "randn.generator", "uniform_.default",
                 "rand.default", "random_.default"):  # fmt: skip
        yield name, random
    for name in ("flash", "efficient", "cudnn"):
        yield f"_scaled_dot_product_{name}_attention.default", attended
        yield f"_scaled_dot_product_{name}_attention_backward.default", attended_backward
    yield "linalg_qr.default", sized_by_values  # cuSOLVER, which computes it, has no stand-in here
    yield "copy_.default", copied
    yield "_to_copy.default", converted
    yield "index.Tensor", indexed
    yield "equal.default", compared


def _operator(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(_aten, packet), overload)


RULES: dict[Any, Rule] = {_operator(name): rule for name, rule in _rules()}
"""What differs from ``computed``."""

without_values = _disable_current_modes
"""Inside, operators on CPU tensors are plain."""
