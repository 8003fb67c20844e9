"""Attention on a CPU by the faster of two kernels, measured for each length of rows.

torch's fused kernel for CPUs is far below the rate of products in 16 bits. Beside it there are two batched products
with a softmax between them. Which is faster depends on the processor, the dtype and the length of the rows, so each is
timed once; a run notes the choice in its journal, because the two add in another order and so differ in the last bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from zobench.engine.passes.drive import Drive
from zobench.measure.calibrate import best_seconds

NAME = "zobench_fast"
"""The name of :func:`attend` among transformers' attention functions."""
FUSED, PRODUCTS = "fused", "products"
LENGTHS = (32, 128, 512, 2048)
"""Tokens of the rows that kernels are timed on."""
TOKENS = 2048
"""Tokens of all rows together of a timed call."""
SECONDS = 0.05
"""The seconds for which one kernel is timed at one length; at least one call."""
FASTER = 1.1
"""Times the rate of the fused kernel from which another is taken."""
SCORES = 1 << 20
"""Scores of queries and keys that are in memory at once, about, so that they stay in a processor's cache."""
QUERIES = 64
"""Queries of a row that are computed at once at least."""

Choice = tuple[tuple[int, str], ...]
"""(tokens of a row at most, the kernel for such rows), in rising order; the last is for all longer rows too."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts that a kernel's rate depends on beside the length of rows: the dtype, and the numbers of heads of
    queries and of keys, each of ``width`` numbers a token."""

    dtype: torch.dtype
    heads: int
    key_heads: int
    width: int


_CHOICE: ContextVar[Choice] = ContextVar("the kernels of attention that a model is being called with", default=())


def products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, is_causal: bool
) -> Tensor:
    """Attention as two batched products with a softmax between them: ``query`` (b, heads, t, width), ``key`` and
    ``value`` (b, key heads, t, width), ``mask`` (b or 1, heads or 1, t, t), true or 0 where a key is seen, or None;
    the output is (b, t, heads, width). Scores and shares are stored in the dtype of the products, and torch sums their
    exponentials in float32. Of causal rows the keys behind a block of queries are left out."""
    b, heads, length, _ = query.shape
    output = query.new_empty(b, length, heads, value.shape[-1])
    rows = max(1, SCORES // (heads * length * min(length, QUERIES)))
    size = min(length, max(QUERIES, SCORES // (heads * length * min(rows, b)) // 32 * 32))
    for first in range(0, b, rows):
        part = slice(first, min(first + rows, b))
        visible = None if mask is None else mask[part] if len(mask) > 1 else mask
        for start in range(0, length, size):
            stop = min(start + size, length)
            keys = stop if is_causal else length
            block = None if visible is None else visible[:, :, start:stop, :keys]
            attended = _block(
                query[part, :, start:stop], key[part, :, :keys], value[part, :, :keys], block, scale,
                start if is_causal else None,
            )  # fmt: skip
            output[part, start:stop] = attended.transpose(1, 2)
    return output


def _block(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, first: int | None) -> Tensor:
    """Attention of some queries over all of their keys, (b, heads, queries, width). ``first``: the place of the first
    query among the keys where each sees those up to itself, else None."""
    b, heads, count, width = query.shape
    key_heads, keys = key.shape[1:3]
    grouped, inner = query.reshape(b * key_heads, -1, width), key.reshape(b * key_heads, keys, width)
    scores = query.new_empty(b * key_heads, grouped.shape[1], keys)
    scores.baddbmm_(grouped, inner.transpose(1, 2), beta=0, alpha=scale)
    each, least = scores.view(b, heads, count, keys), torch.finfo(scores.dtype).min
    if first is not None:
        behind = torch.ones(count, count, dtype=torch.bool, device=query.device).triu_(1)
        each[..., first:].masked_fill_(behind, least)
    if mask is not None:
        _ = each.masked_fill_(~mask, least) if mask.dtype == torch.bool else each.add_(mask).clamp_(min=least)
    weights = torch.softmax(scores, -1)
    return torch.bmm(weights, value.reshape(b * key_heads, keys, -1)).view(b, heads, count, -1)


def _by_products(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> Tensor:
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return products(query, key, value, mask, scale, is_causal=mask is None and causal)


def _fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return sdpa_attention_forward(module, query, key, value, mask, **options)[0]


KERNELS: Mapping[str, Callable[..., Tensor]] = {FUSED: _fused, PRODUCTS: _by_products}
"""Every kernel, called as transformers calls an attention function; the output is (b, t, heads, width)."""


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention by the kernel that :func:`using` has chosen for rows of this length, as transformers calls attention
    functions; by torch's fused one where a model asks for more than scores, a mask and a softmax."""
    more = any(options.get(name) is not None for name in ("position_bias", "cache", "softcap")) or options.get(
        "dropout"
    )
    length = query.shape[2]
    name = FUSED if more or key.shape[2] != length or not query.is_cpu else kernel_for(_CHOICE.get(), length)
    if name == FUSED:
        return KERNELS[name](module, query, key, value, attention_mask, **options), None
    if torch.is_autocast_enabled("cpu"):  # it would cast the operands of each product again
        query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        return KERNELS[name](module, query, key, value, attention_mask, **options), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)


def kernel_for(choice: Choice, length: int) -> str:
    """The kernel for rows of so many tokens."""
    return next((name for most, name in choice if length <= most), choice[-1][1] if choice else FUSED)


@contextmanager
def using(choice: Choice) -> Iterator[None]:
    """Inside, :func:`attend` takes the kernels of ``choice``."""
    token = _CHOICE.set(choice)
    try:
        yield
    finally:
        _CHOICE.reset(token)


@contextmanager
def replaced(model: nn.Module, name: str) -> Iterator[None]:
    """Inside, the model's attention is transformers' attention function of this name."""
    kept = [(part, part._attn_implementation) for part in parts(model.config)]
    try:
        for part, _ in kept:
            part._attn_implementation_internal = name
        yield
    finally:
        for part, implementation in kept:
            part._attn_implementation_internal = implementation


def parts(config: Any) -> list[Any]:
    """A model's configuration, and those of its parts."""
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return [config, *(part for part in inner if part is not None)]


def driven(drive: Drive, choice: Choice) -> Drive:
    """``drive`` with the kernels of ``choice``, where the model's attention is transformers' function for torch's."""

    def drive_with(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        if any(part._attn_implementation != "sdpa" for part in parts(model.config)):
            return drive(model, input_ids, attention_mask)
        with using(choice), replaced(model, NAME):
            return drive(model, input_ids, attention_mask)

    return drive_with if choice else drive


# --- the choice -------------------------------------------------------------------------------------------------------


@functools.cache
def choice_of(shape: Shape) -> Choice:
    """The kernel for each of :data:`LENGTHS` on this machine, timed once in a process: torch's fused one unless
    products are faster by :data:`FASTER`."""
    each = [(length, [seconds(name, shape, length) for name in (FUSED, PRODUCTS)]) for length in LENGTHS]
    return _merged([(n, PRODUCTS if fused > FASTER * by_products else FUSED) for n, (fused, by_products) in each])


def each_alone(choice: Choice) -> list[Choice]:
    """Every kernel of a choice by itself, for rows of any length: what is compared on a small model, whose rows are
    all short. () where there is none."""
    alone: list[Choice] = [((LENGTHS[-1], name),) for name in sorted({name for _, name in choice})]
    return alone or [()]


def _merged(each: Sequence[tuple[int, str]]) -> Choice:
    """Lengths that follow one another with the same kernel as one."""
    return tuple(entry for entry, after in zip(each, [*each[1:], (0, "")], strict=True) if entry[1] != after[1])


def seconds(name: str, shape: Shape, length: int) -> float:
    """The seconds of one call of causal attention by a kernel, on rows of ``length`` tokens, :data:`TOKENS` in all."""
    rows, generator = max(1, TOKENS // length), torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(rows, heads, length, shape.width, generator=generator).to(shape.dtype)
        for heads in (shape.heads, shape.key_heads, shape.key_heads)
    )
    module: Any = SimpleNamespace(num_key_value_groups=shape.heads // shape.key_heads, is_causal=True)
    with torch.inference_mode():
        return best_seconds("cpu", lambda: KERNELS[name](module, query, key, value, None), SECONDS)


def described(choice: Choice) -> str:
    """``attention: fused up to 128 tokens, products above (measured)``."""
    named = [f"{name} up to {most} tokens" for most, name in choice[:-1]]
    return f"attention: {', '.join([*named, choice[-1][1] + (' above' if named else '')])} (measured)"
