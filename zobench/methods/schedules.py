"""Learning-rate schedules: the rate of every step as a function of the run and the step alone."""

from __future__ import annotations

import math

from zobench.runspec import RunSpec


def learning_rate(spec: RunSpec, step: int, total: int) -> float:
    """The learning rate of step ``step``, counted from 0, of ``total``: ``spec.lr`` times what is left of it.

    constant: 1; linear: 1 - step / total; cosine: (1 + cos(pi step / total)) / 2. Step ``total`` would have rate 0.
    """
    assert 0 <= step <= total, f"step {step} of {total}"
    if spec.lr_schedule == "linear":
        return spec.lr * (1 - step / total)
    if spec.lr_schedule == "cosine":
        return spec.lr * (1 + math.cos(math.pi * step / total)) / 2
    return spec.lr
