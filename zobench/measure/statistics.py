"""A distribution-free interval for the median of step times."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that covers the median with probability >= ``level``.

    Each value lies below the median with probability 1/2, whatever the distribution, so the count below is binomial.
    None if even the smallest and largest value do not reach the level: at 95 % that is fewer than 6 values.
    """
    ordered = sorted(values)
    n = len(ordered)
    tail, rank = 0, 0
    for k in range(n // 2):
        tail += math.comb(n, k)  # ways that at most k values lie below the median
        if 1 - 2 * tail / 2**n < level:
            break
        rank = k + 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None
