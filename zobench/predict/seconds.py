"""Predicts the seconds of a cell before it runs, and the floor: the least time that a step can take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.parallel.mesh import divided
from zobench.predict import links, sizes
from zobench.predict.footprint import (
    consolidate_after,
    consolidates,
    fit,
    streamed_layers,
    wire_width,
)
from zobench.result import Result
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import ENGINES, NOISES, TIERS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What the machine does per second: floating-point operations by dtype, elements of noise by stream ("fused": drawn
    and applied in one pass), bytes to and from a tier, and the sum of both ways where they share the disk.

    ``operators``: by dtype "attention" in FLOP/s, "passes" and "losses" in bytes/s, "normals" and "fused" in elements/s
    (:mod:`zobench.measure.operators`); where they were not measured, attention is as fast as products, noise in 16 bits
    as in 32, and a pass half as fast as a copy. ``kernel``: seconds of the smallest operator.

    Of several ranks: ``host``, bytes between host memory and all devices together, each way, None if every link has
    its own; ``between``, bytes that a rank receives from the others, None if it was not measured.
    """

    flops: Mapping[str, float]
    noise: Mapping[str, float]
    bytes_up: Mapping[str, float]
    bytes_down: Mapping[str, float]
    disk_both: float
    operators: Mapping[str, Mapping[str, float]]
    kernel: float = 0.0
    host: float | None = None
    between: float | None = None

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> Rates:
        """From what ``measure.calibrate`` measured; a rate that is not available there is taken from the copy rate.

        Raises ``KeyError`` or ``TypeError`` for rates of another version, which lack something.
        """
        copy = calibration["copy_bytes_per_second"] / 2  # that rate counts bytes read and bytes written
        up, down = calibration["link_up_bytes_per_second"] or copy, calibration["link_down_bytes_per_second"] or copy
        read = min(up, calibration["disk_read_bytes_per_second"] or up)
        write = min(down, calibration["disk_write_bytes_per_second"] or down)
        noise, flops = calibration["noise_elements_per_second"], calibration["matmul_flops_per_second"]
        passes = calibration["copy_bytes_per_second"] / 2  # of memory that is new, as activations are
        plain = {"passes": passes, "losses": passes, "normals": noise["torch"], "fused": noise["fused"]}
        return cls(
            flops=flops,
            noise={name: noise[name] for name in ("torch", "counter", "fused")},
            bytes_up={"pinned": up, "pageable": up / 2, "disk": read, "checkpoint": read},
            bytes_down={"pinned": down, "pageable": down / 2, "disk": write, "checkpoint": write},
            disk_both=calibration["disk_both_bytes_per_second"] or max(read, write),
            operators=calibration.get("operators_per_second")
            or {kind: {"attention": rate, **plain} for kind, rate in flops.items()},
            kernel=calibration.get("kernel_seconds", 0.0),
            host=None if calibration["link_up_bytes_per_second"] else copy,
            between=calibration.get("between_ranks_bytes_per_second"),
        )


def step_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step: products and noise, and the transfers that they do not hide (DistZO2, equation 4)."""
    spec = fit(spec)[0]
    compute = compute_seconds(spec, rates)
    if not streamed_layers(spec):
        return compute
    transfer = transfer_seconds(spec, rates)
    return links.step_seconds(1, transfer, compute) if spec.overlap else compute + transfer


def compute_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step's products and noise on each rank, which work at the same time: T_comp of equation 4.

    PertP halves a rank's forwards and data parallelism its rows; z is drawn for every point, whatever a rank looks at.
    """
    architecture = models.of(spec)
    pairs = sizes.rows(spec) * sizes.usual(spec) ** 2
    attention = int(2 * architecture.layers * pairs * architecture.hidden * passes(spec))
    return _product_seconds(spec, rates, attention) + _noise_seconds(spec, rates)


def transfer_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step's transfers alone, to and from a rank: N T_block of equation 4."""
    up, down = _transfer_seconds(spec, *_links(spec, rates))
    return (up + down if TIERS[spec.tier].is_file else max(up, down)) * (1 if spec.fused_update else 2)


def predicted_step(result: Result) -> float | None:
    """The step of ``result`` by this module's formulas alone, with the rates that travel with it; None without them,
    and for a task, whose tokens are not counted."""
    return _by_its_rates(result, step_seconds)


def fastest_narrow(rates: Rates) -> tuple[str | None, str]:
    """(the 16-bit type in which this machine multiplies fastest, None if it is faster in fp32; a line that says why)"""
    told = ", ".join(f"{name} {rates.flops[name] / 1e9:.0f}" for name in ("fp32", "fp16", "bf16"))
    best = max(("fp16", "bf16"), key=lambda name: rates.flops[name])
    chosen = best if rates.flops[best] >= rates.flops["fp32"] else None
    return chosen, f"16 bits: {chosen or 'not measured, fp32 is faster'}; products of this machine in GFLOP/s: {told}"


def floor_seconds(spec: RunSpec, rates: Rates) -> float:
    """The least that a step can take here: its products alone, or its transfers alone.

    ``max(2 n P T / F, P b / B_up, P b / B_down)`` with n forwards of T tokens, P b over the blocks that travel, and
    what is written back over the steps between. On a disk both ways share one rate.
    Source: docs/design/PERFORMANCE.md, "The floor of a step".
    """
    spec = fit(spec)[0]
    products = _product_seconds(spec, rates)
    if not streamed_layers(spec):
        return products
    up, down = _transfer_seconds(spec, *_links(spec, rates, best=True))
    shared = rates.disk_both / _local(spec)
    both = sum(_transfer_seconds(spec, shared, shared)) if TIERS[spec.tier].is_file and down else 0
    return max(products, up, down, both)


def floor_share(result: Result) -> float | None:
    """The floor over the measured step, by the rates that travel with the result; None where it has none, and for a
    task, whose tokens are not counted."""
    floor = _by_its_rates(result, floor_seconds)
    return floor / result.step_seconds if floor is not None and result.step_seconds else None


def link_rate(result: Result, part: str) -> float | None:
    """Parameters of the streamed blocks over the median seconds of ``part``, in which transfers alone bring them to
    (``upload_seconds``) or from (``offload_seconds``) every rank: what DistZO2's table 2 shows. Each parameter counts
    once, however many ranks it goes to (:func:`zobench.measure.links.alone` says why).
    """
    known = [seconds for seconds in result.parts.get(part, []) if seconds and seconds > 0]
    if not known or not models.is_known(result.spec):
        return None
    spec = fit(result.spec)[0]
    return models.blocks_parameter_count(models.of(spec), streamed_layers(spec)) / statistics.median(known)


def _by_its_rates(result: Result, seconds: Callable[[RunSpec, Rates], float]) -> float | None:
    if result.spec.task != "none":
        return None
    try:
        return seconds(result.spec, Rates.of(result.environment["calibration"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # no rates, or those or the model of another version
        return None


def passes(spec: RunSpec) -> float:
    """What a rank computes in a step, in forwards of its batch: 2 operations per parameter and token each.

    Two for every query, one where ranks share out the signs of a pair; ZO-SGD-Block a pair for each part of the model,
    ZO-SGD-Cons three more for its candidates. A backward pass is two forwards, one where the weights are frozen; the
    hybrid's ends at its last ZO layer. A forward derivative is two more: of the activations, and of the weights that
    are tuned.
    """
    layers = models.of(spec).layers
    kind, derivative = METHODS.get(spec.method), 2.0 if sizes.tunes_all(spec) else 1.0
    count = 2 * kind.pairs(spec, layers) / divided(spec)[1] + kind.candidates
    if kind.singles is not None:
        count += kind.singles(spec)
    if kind.tangents:
        count += spec.queries * (1 + derivative)
    if kind.gradients is not None:
        count += 1
        count += (derivative + spec.checkpointing) * kind.gradients(spec, layers)
    return count


def operations(spec: RunSpec) -> float:
    """Floating-point operations of a rank's products in a step: 2 per parameter and token in each forward."""
    tokens = sizes.rows(spec) * sizes.usual(spec)
    return 2 * models.parameter_count(*models.variant(spec)) * tokens * passes(spec)


def _product_seconds(spec: RunSpec, rates: Rates, attention: int = 0) -> float:
    """Seconds of a rank's forwards of a step: 2 operations per parameter and token each, and those of attention."""
    speed = rates.flops[spec.dtype if spec.autocast == "none" else spec.autocast] / sharers(spec)
    return (operations(spec) + attention) / speed


def _noise_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of drawing z for what is tuned. MeZO draws it four times a query; the counter stream once, and once per
    pending update; ZO-SGD-Cons for three more moves; Forward-Grad for the tangents and the update."""
    kind = METHODS.get(spec.method)
    if not kind.draws:
        return 0.0
    parameters = sizes.drawn(spec) * spec.queries
    if NOISES[spec.noise].in_place:
        return kind.draws * kind.normals * parameters / rates.noise["torch"]
    draws = (kind.counter_draws + pending(spec)) * kind.normals
    return draws * parameters / (rates.noise["fused"] / sharers(spec))


def pending(spec: RunSpec) -> float:
    """Updates of each query that a step goes over again with counter noise, in the mean of the run's steps; those in
    factors are summed up."""
    if METHODS.get(spec.method).structure is not None:
        return 1.0
    middle = spec.warmup + (spec.steps + 1) / 2
    return min(middle, (kept_steps(spec) + 1) / 2)


def _local(spec: RunSpec) -> int:
    """The number of ranks on each node."""
    return spec.gpus // spec.nodes


def sharers(spec: RunSpec) -> int:
    """Ranks among which a node's cores are shared out: on a CPU they are the devices. A torch generator uses one."""
    return _local(spec) if spec.device == "cpu" else 1


def is_sliced(spec: RunSpec, rates: Rates) -> bool:
    """Whether the ranks of ``spec`` will bring slices: where asked, or where GPUs have a way between them that is
    faster than the host's link: without NVLink what they give each other takes that link too."""
    if not ENGINES[spec.engine].is_streamed or _local(spec) == 1 or not TIERS[spec.tier].is_shared:
        return False
    linked = rates.between is not None and rates.between > rates.bytes_up["pinned"]
    wanted = spec.transfers == "auto" and spec.device.startswith("cuda") and linked
    return wanted or spec.transfers == "sliced"


def _links(spec: RunSpec, rates: Rates, best: bool = False) -> tuple[float, float]:
    """Bytes per second at which each rank gets whole blocks from its tier, and brings them back.

    A file is each rank's own, on a disk that they share. ``best``: pageable memory as if it were pinned."""
    tier = "pinned" if best and spec.tier == "pageable" else spec.tier
    up, down, ranks = rates.bytes_up[tier], rates.bytes_down[tier], _local(spec)
    if TIERS[tier].is_file:
        return up / ranks, down / ranks
    if ranks == 1:
        return up, down
    above, below = (links.Links(link=link, host=rates.host, peers=rates.between) for link in (up, down))
    block = float(models.block_parameter_count(models.of(spec)) * wire_width(spec))
    seconds = links.sliced_seconds if is_sliced(spec, rates) else links.whole_seconds
    return block / seconds(block, ranks, above), block / links.offload_seconds(block, ranks, below)


def _transfer_seconds(spec: RunSpec, up: float, down: float) -> tuple[float, float]:
    """Seconds of a step's uploads and of its share of the write-backs, at ``up`` and ``down`` bytes per second."""
    uploaded, written = transferred(spec)
    return uploaded / up, written / down


def transferred(spec: RunSpec) -> tuple[float, float]:
    """Bytes of a step's uploads, and of its share of the write-backs, of a spec that streams.

    Frozen weights are not written back; adapters and state travel beside the weights."""
    layers = streamed_layers(spec)
    weights = models.blocks_parameter_count(models.of(spec), layers) * wire_width(spec)
    tuned = (sizes.ADAPTER_WIDTH if not sizes.tunes_all(spec) else 0) + sizes.state_width(spec)
    added = sizes.trained_count(spec, layers) * tuned
    written = added + (weights if sizes.tunes_all(spec) else 0)
    return METHODS.get(spec.method).uploads * (weights + added), written / kept_steps(spec)


def kept_steps(spec: RunSpec) -> float:
    """After how many steps a run writes updates into the weights at rest; infinity if it is over before."""
    structure = METHODS.get(spec.method).structure
    if structure is not None and (lasts := structure.lasts(spec)) >= spec.steps + spec.warmup:
        return math.inf
    if spec.writeback_every != "inf":
        return max(int(spec.writeback_every), 1 if structure is None else lasts)
    return consolidate_after(spec) if consolidates(spec) else math.inf
