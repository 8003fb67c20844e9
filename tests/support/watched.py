"""Functions with something that is done before each of their calls."""

from collections.abc import Callable
from typing import Any


def before(set_attribute: Callable[..., None], owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Has ``act`` get the arguments of every call of the owner's function first; where it raises, that is all."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return original(*args, **kwargs)

    set_attribute(owner, name, call)
