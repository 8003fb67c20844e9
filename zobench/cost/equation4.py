"""DistZO2's equation 4 with a machine's measured rates: a step is its compute, or its transfers where they take longer.

The figure of the cost model shows it beside measured steps. Plans and tables have :mod:`zobench.cost.local`, which
prices each operation.
"""

from __future__ import annotations

from zobench.cost import links, sizes
from zobench.cost.footprint import fit, streamed_layers
from zobench.cost.seconds import Rates, by_its_rates, draws, forward_seconds, pending, sharers, transfer_seconds
from zobench.result import Result
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import NOISES


def step_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step: forwards and noise, and the transfers that they do not hide (DistZO2, equation 4)."""
    spec = fit(spec)[0]
    compute = compute_seconds(spec, rates)
    if not streamed_layers(spec):
        return compute
    transfer = transfer_seconds(spec, rates)
    return links.step_seconds(1, transfer, compute) if spec.overlap else compute + transfer


def compute_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step's forwards and noise on each rank, which work at the same time: T_comp of equation 4.

    PertP halves a rank's forwards and data parallelism its rows; with exact=true z is drawn for both points.
    """
    return forward_seconds(spec, rates) + _noise_seconds(spec, rates)


def predicted_step(result: Result) -> float | None:
    """:func:`step_seconds` of ``result`` by the rates that travel with it; None without them, and for a task."""
    return by_its_rates(result, step_seconds)


def _noise_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of drawing z for what is tuned. MeZO draws it four times a query, stored it is drawn once; the
    counter stream once, and once per pending update; ZO-SGD-Cons for three more moves; Forward-Grad for the tangents
    and the update."""
    kind = METHODS.get(spec.method)
    if not kind.draws:
        return 0.0
    parameters = sizes.drawn(spec) * spec.queries
    if NOISES[spec.noise].in_place:
        return NOISES[spec.noise].draws(draws(spec)) * kind.normals * parameters / rates.noise["torch"]
    counted = (kind.counter_draws + pending(spec)) * kind.normals
    return counted * parameters / (rates.noise["fused"] / sharers(spec))
