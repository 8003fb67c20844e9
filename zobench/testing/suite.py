"""How a suite is run without pytest, and what its checks have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def failures(suite: type) -> dict[str, Exception]:
    """The checks of a suite that fail, by name, and how; each on an instance of its own."""
    failed: dict[str, Exception] = {}
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite(), name)()
            except Exception as error:
                failed[name] = error
    return failed


def refused(call: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    """The text of the error with which ``call`` is refused: one line of the given kind."""
    try:
        call()
    except kind as error:
        text = str(error)
        assert text, "a refusal must say why"
        assert "\n" not in text, f"a refusal must be one line, but is {text!r}"
        return text
    raise AssertionError(f"a {kind.__name__} must be raised, but nothing was")


def assert_same(tensors: dict[str, Tensor], wanted: dict[str, Tensor], close: float = 0.0) -> None:
    """Tensors by name are equal, bit for bit or up to an absolute difference of ``close``."""
    torch.testing.assert_close(tensors, wanted, rtol=0.0, atol=close)


def assert_close(numbers: list[float], wanted: list[float], rel: float) -> None:
    """Numbers are equal up to a share of ``rel``."""
    torch.testing.assert_close(numbers, wanted, rtol=rel, atol=0.0)
