"""The methods by their formulas."""

import numpy as np

from zobench.runspec import METHODS

ZEROTH_ORDER = (
    "zo-sgd", "zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "zo-adam", "zo-sgd-block", "zo-sgd-sparse",
)  # fmt: skip
"""Those of ZO-Bench."""
NEWER = ("fzoo", "hizoo", "sparse-mezo", "conmezo", "meazo", "es", "r-adazo", "adamezo")
"""Of 2024 and later."""
SHIPPED = tuple(kind.name for kind in METHODS.builtin() if kind.as_shipped is not None and kind.name in ZEROTH_ORDER)
DEFINITIONS = [(name, "as-written") for name in ZEROTH_ORDER] + [(name, "as-shipped") for name in SHIPPED]


class Formula:
    """The updates of ZO-Bench's methods by their formulas, float64: no part of the package has a share in them."""

    def __init__(self, spec):
        self.spec, self.shipped, self.t, self.m, self.v = spec, spec.definition == "as-shipped", 0, {}, {}

    def update(self, directions, gradients):
        """name -> what is subtracted, but for the learning rate, given what each g belongs to: name -> tensor."""
        slopes = np.sign(gradients) if (self.spec.method, self.shipped) == ("zo-sgd-sign", True) else gradients
        self.t += 1
        return {
            name: self._rule(name, sum(g * u[name].double() for g, u in zip(slopes, directions, strict=True)))
            for name in directions[0]
        }

    def _rule(self, name, ghat):
        ghat = ghat / self.spec.queries
        if self.spec.method == "zo-sgd-sign" and not self.shipped:
            return ghat.sign()
        if self.spec.method == "zo-sgd-mmt":
            self.m[name] = 0.9 * self.m.get(name, 0.0) + ghat
            return self.m[name]
        if self.spec.method == "zo-adam":
            self.m[name] = 0.9 * self.m.get(name, 0.0) + 0.1 * ghat
            older = self.v.get(name, 0.0 * ghat)
            self.v[name] = 0.999 * older + 0.001 * ghat**2
            if self.shipped:
                unbiased = (self.v[name] / (1 - 0.999**self.t)).sqrt() + 1e-8
                return self.m[name] / (1 - 0.9**self.t) / unbiased
            return self.m[name] / (self.v[name].maximum(older) + 1e-8).sqrt()
        return ghat
