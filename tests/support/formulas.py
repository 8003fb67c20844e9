"""The methods by their formulas, and how well an estimate of random directions can know the gradient."""

import math

from zobench.runspec import METHODS


def beta(q, d):
    """(mean, standard deviation) of cos^2."""
    a, b = q / 2, (d - 1) / 2
    return a / (a + b), math.sqrt(a * b / (a + b + 1)) / (a + b)


def cos2(ghat, gradient):
    return float((ghat @ gradient) ** 2 / ((ghat @ ghat) * (gradient @ gradient)))


ZEROTH_ORDER = (
    "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
)  # fmt: skip
"""Those of ZO-Bench."""
NEWER = ("fzoo", "hizoo", "sparse-mezo", "conmezo", "meazo", "es", "r-adazo", "adamezo")
"""Of 2024 and later."""
SHIPPED = tuple(kind.name for kind in METHODS.builtin() if kind.as_shipped is not None and kind.name in ZEROTH_ORDER)
DEFINITIONS = [(name, "as-written") for name in ZEROTH_ORDER] + [(name, "as-shipped") for name in SHIPPED]
