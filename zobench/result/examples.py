"""Which test examples a run got right, and the loss of each, as text of a few bytes an example."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEY = "test_examples"  # the key of a result's ``evaluation`` that holds them


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Examples:
    """The n test examples in the order of their evaluation, which is the same with every seed and method: ``right``,
    bool (n,); ``loss``, float16 (n,), in nats, infinite above 65504."""

    right: NDArray[np.bool_]
    loss: NDArray[np.float16]


def packed(examples: Sequence[tuple[bool, float]]) -> dict[str, str]:
    """``right``: a bit each, the first of a byte the highest; ``loss``: two bytes each, the lower first; in base64."""
    import numpy as np

    right = np.packbits(np.array([right for right, _ in examples], dtype=bool)).tobytes()
    with np.errstate(over="ignore"):
        loss = np.array([loss for _, loss in examples], dtype=np.float64).astype("<f2").tobytes()
    return {"right": base64.b64encode(right).decode(), "loss": base64.b64encode(loss).decode()}


def unpacked(evaluation: Mapping[str, Any]) -> Examples | None:
    """The examples of a run's ``evaluation``; None of one that has none. Raises ``ValueError`` for other text."""
    stored = checked(evaluation)
    if stored is None:
        return None
    import numpy as np

    right, loss = stored
    bits = np.unpackbits(np.frombuffer(right, dtype=np.uint8), count=len(loss) // 2).astype(bool)
    return Examples(right=bits, loss=np.frombuffer(loss, dtype="<f2"))


def checked(evaluation: Mapping[str, Any]) -> tuple[bytes, bytes] | None:
    """The bits and the losses as bytes, as many as the ``evaluation`` has test examples; see :func:`unpacked`."""
    if KEY not in evaluation:
        return None
    count, stored = evaluation.get("test", {}).get("count", 0), evaluation[KEY]
    try:
        right, loss = (base64.b64decode(stored[name], validate=True) for name in ("right", "loss"))
    except (KeyError, TypeError, ValueError):
        right = loss = b""
    if not right or (len(right), len(loss)) != (-(-count // 8), 2 * count):
        raise ValueError(f"`evaluation` must hold what a fine-tuning run found on dev and test, but does not in {KEY}")
    return right, loss
