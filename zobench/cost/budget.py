"""The price of a step in the unit of a protocol's budget: forwards of a batch, bytes of weights that it moves,
predicted seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zobench import models
from zobench.cost import local, sizes
from zobench.cost.footprint import fit, streamed_layers
from zobench.cost.seconds import Rates, passes, pending_steps, transferred
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import NOISES, WIDTHS


def forwards(spec: RunSpec) -> float:
    """Forwards of its batch that a step costs, on all ranks together: :func:`zobench.cost.seconds.passes`.

    A backward pass counts as two, as one where the weights are frozen; a forward derivative as two more than the
    forward that it comes with.
    """
    return passes(spec.alone())


def moved_bytes(spec: RunSpec) -> float:
    """Bytes of weights that a step moves.

    Streamed: over the link or to and from the disk, both ways together. Resident: between memory and the processor,
    where each forward of a micro-batch reads all weights, and what is tuned is read and written each time that it is
    moved along z or updated, with the method's state; a stored z is written once and read at each of its uses.
    """
    spec = fit(spec)[0]
    if streamed_layers(spec):
        return sum(transferred(spec))
    kind = METHODS.get(spec.method)
    weights = models.parameter_count(*models.variant(spec)) * WIDTHS[spec.dtype]
    tuned = sizes.trained_count(spec) + sizes.trained(spec)[1]
    drawn = (kind.counter_draws + pending_steps(spec)) * spec.accumulate
    if NOISES[spec.noise].in_place:  # all but the update for each micro-batch
        drawn = max(kind.draws - 1, 0) * spec.accumulate + bool(kind.draws)
    stored = (drawn + 1) * spec.queries * sizes.trained_width(spec) if NOISES[spec.noise].is_stored else 0
    written = (drawn * spec.queries + kind.backpropagates) * sizes.trained_width(spec)
    read = forwards(spec) * spec.accumulate * weights
    return read + 2 * tuned * (written + sizes.optimizer_width(spec)) + tuned * stored


def price(unit: str, spec: RunSpec, rates: Callable[[], Rates] | None = None) -> tuple[float, float]:
    """Returns the price of a step of ``spec`` in ``unit`` of a protocol (:data:`zobench.recipes.protocol.UNITS`), and
    that of an evaluation on dev: as much as so many forwards of a step.

    ``rates``: this machine's, which seconds alone need. Raises ``ValueError`` for seconds without them.
    """
    if unit in PRICES:
        step = PRICES[unit](spec)
    elif rates is not None:
        step = local.predict(spec, rates()).step_seconds
    else:
        raise ValueError(
            "a budget in seconds needs this machine's rates, but none are known here; give it in forwards or gigabytes"
        )
    rows = sizes.dev_examples(spec) * sizes.rows_of_example(spec)
    return step, step * rows / spec.batch_size / forwards(spec)


PRICES: Mapping[str, Callable[[RunSpec], float]] = {
    "forwards": forwards,
    "gigabytes": lambda spec: moved_bytes(spec) / 1e9,
}
"""Unit of a budget -> what a step costs in it, where no machine is needed to say so."""
