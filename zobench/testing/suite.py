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
    assert tensors.keys() == wanted.keys(), f"names differ: {sorted(tensors.keys() ^ wanted.keys())}"
    for name, tensor in wanted.items():
        same = torch.equal(tensors[name], tensor) if not close else torch.allclose(tensors[name], tensor, 0.0, close)
        assert same, f"{name} differs by up to {(tensors[name] - tensor).abs().max():g}, and {close:g} is allowed"


def assert_close(numbers: list[float], wanted: list[float], rel: float) -> None:
    """Numbers are equal up to a share of ``rel``."""
    for n, (number, expected) in enumerate(zip(numbers, wanted, strict=True)):
        assert abs(number - expected) <= rel * abs(expected), (
            f"number {n} must be {expected!r} up to {rel:g}, but is {number!r}"
        )
