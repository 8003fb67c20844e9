"""The words of a spec: the values that its fields may take, and what groups of them have in common."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping


class Choices(Mapping[str, tuple[str, ...]]):
    """Field -> the words that it may be. Those of a registry are named as ``module:attribute`` and asked for at use."""

    def __init__(self, words: Mapping[str, tuple[str, ...]]) -> None:
        self._words = words

    def __getitem__(self, field: str) -> tuple[str, ...]:
        return tuple(word for given in self._words[field] for word in _names(given))

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)


def _names(given: str) -> tuple[str, ...]:
    module, _, attribute = given.partition(":")
    names: tuple[str, ...] = getattr(importlib.import_module(module), attribute).names() if attribute else (given,)
    return names


CHOICES = Choices({
    "weights": ("random", "pretrained", "shared"),
    "engine": ("resident", "offload"),
    "tier": ("auto", "device", "pinned", "pageable", "disk", "checkpoint"),
    "dtype": ("fp32", "fp16", "bf16"),
    "noise": ("torch", "counter"),
    "granularity": ("block", "linear", "tile"),
    "wire": ("none", "fp16", "bf16", "fp8"),
    "autocast": ("none", "fp16", "bf16", "tf32"),
    "data": ("random", "ragged"),
    "method": (
        "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
        "forward-grad", "hybrid", "fo-sgd", "fo-adam",
    ),
    "definition": ("as-written", "as-shipped"),
    "lr_schedule": ("constant", "linear", "cosine"),
    "scheme": ("full", "lora", "prefix", "prompt"),
    "parallel": ("none", "pertp", "ddp", "2d", "2d-outer"),
    "transfers": ("auto", "whole", "sliced"),
    "checkpoint": ("none", "sync", "async", "journal"),
    "task": ("none", "zobench.runspec.registries:TASKS"),
    "program": ("zobench.runspec.registries:PROGRAMS",),
})  # fmt: skip
"""The allowed values of every field that is a word from a list."""

FIRST_ORDER = ("fo-sgd", "fo-adam")
"""Methods that backpropagate through the whole model."""
BACKWARD = (*FIRST_ORDER, "hybrid")
"""Methods that backpropagate at all: their model is resident."""
STATEFUL = ("zo-sgd-mmt", "zo-adam")
"""Zeroth-order methods whose state, of the weights' shape, rests and travels with the weights."""
SHIPPED = ("zo-sgd-sign", "zo-adam", "zo-sgd-sparse")
"""Methods whose published program computes something else than its paper's formula (ZO-Bench, appendix A)."""

SEQ_LEN = 2048
"""The papers' tokens per sequence."""

SWITCHES = ("overlap", "reusable_memory", "fused_update")
"""The ablation switches of ZO2 table 3; each removes exactly one thing."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Text naming the nearest of ``known`` to a mistyped ``word``: ``did you mean ...?`` or the whole list."""
    options = list(known)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), lowered, n=3, cutoff=0.55)
    if near:
        return "did you mean " + " or ".join(lowered[match] for match in near) + "?"
    return "use one of " + ", ".join(options)


SIZES = ("device_memory",)
"""Fields in bytes, which text may give with a unit."""
