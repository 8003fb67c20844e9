"""The work of a step in forwards, operations and bytes, and the floor: the least time that it can take here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zobench import models
from zobench.cost import interval, roofline, shapes, sizes
from zobench.cost.footprint import consolidate_after, consolidates, fit, is_sized, streamed_layers, wire_width
from zobench.parallel.mesh import divided, is_out_of_place
from zobench.result import Result
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import ENGINES, NOISES, TIERS, WIDTHS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The rates of the machine per second: floating-point operations by dtype, elements of noise by stream ("fused":
    drawn and applied in one pass), bytes to and from a tier, and the sum of both ways where they share the disk.

    ``operators``: by dtype "attention" in FLOP/s, "passes" and "losses" in bytes/s, "normals" and "fused" in elements/s
    (:mod:`zobench.measure.calibrate`); where they were not measured, attention is as fast as products, noise in 16 bits
    as in 32, and a pass half as fast as a copy. ``kernel``: seconds of the smallest operator.

    ``touch``: bytes of new pages that a CPU writes, beside what writing them again takes. ``link_both``: bytes over a
    GPU's link, both ways together, while both are in use; None on a CPU. Of several ranks: ``host``, bytes between host
    memory and all devices together, each way, None if every link has its own; ``between``, bytes that a rank receives
    from the others, None if it was not measured.
    """

    flops: Mapping[str, float]
    noise: Mapping[str, float]
    bytes_up: Mapping[str, float]
    bytes_down: Mapping[str, float]
    disk_both: float
    operators: Mapping[str, Mapping[str, float]]
    kernel: float = 0.0
    touch: float = math.inf
    link_both: float | None = None
    host: float | None = None
    between: float | None = None

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> Rates:
        """From what ``measure.calibrate`` measured; a rate that is not available there is taken from the copy rate.

        Raises ``KeyError`` or ``TypeError`` for rates of another version, which lack something, or that are none.
        """
        noise, flops = calibration["noise_elements_per_second"], calibration["matmul_flops_per_second"]
        operators, rates = calibration.get("operators_per_second") or {}, [calibration[name] for name in _RATES]
        kernel, touch, between = (calibration.get(name) for name in _LATER)
        _check(rates[0], *filter(None, (*rates, kernel, touch, between)), *(noise[name] for name in _STREAMS))
        _check(*(flops[kind] for kind in _DTYPES))
        _check(*(operators[kind][name] for kind in _DTYPES if operators for name in _OPERATORS))
        copy = calibration["copy_bytes_per_second"] / 2  # that rate counts bytes read and bytes written
        up, down = calibration["link_up_bytes_per_second"] or copy, calibration["link_down_bytes_per_second"] or copy
        read = min(up, calibration["disk_read_bytes_per_second"] or up)
        write = min(down, calibration["disk_write_bytes_per_second"] or down)
        passes = calibration["copy_bytes_per_second"] / 2  # of memory that is new, as activations are
        plain = {"passes": passes, "losses": passes, "normals": noise["torch"], "fused": noise["fused"]}
        return cls(
            flops=flops,
            noise={name: noise[name] for name in _STREAMS},
            bytes_up={"pinned": up, "pageable": up / 2, "disk": read, "checkpoint": read},
            bytes_down={"pinned": down, "pageable": down / 2, "disk": write, "checkpoint": write},
            disk_both=calibration["disk_both_bytes_per_second"] or max(read, write),
            operators=operators or {kind: {"attention": rate, **plain} for kind, rate in flops.items()},
            kernel=kernel or 0.0,
            touch=touch or math.inf,
            link_both=calibration["link_both_bytes_per_second"],
            host=None if calibration["link_up_bytes_per_second"] else copy,
            between=between,
        )


_RATES = (
    "copy_bytes_per_second", "link_up_bytes_per_second", "link_down_bytes_per_second", "link_both_bytes_per_second",
    "disk_read_bytes_per_second", "disk_write_bytes_per_second", "disk_both_bytes_per_second",
)  # fmt: skip
_LATER = ("kernel_seconds", "touch_bytes_per_second", "between_ranks_bytes_per_second")
_DTYPES = ("fp32", "fp16", "bf16")
_STREAMS = ("torch", "counter", "fused")
_OPERATORS = ("attention", "passes", "losses", "normals", "fused")


def _check(*rates: Any) -> None:
    """Raises ``TypeError`` for what is no rate: everything is divided by them."""
    if not all(type(rate) in (int, float) and 0 < rate < math.inf for rate in rates):
        raise TypeError("a rate must be a number above 0")


def transfer_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step's transfers alone, to and from a rank: N T_block of equation 4."""
    up, down = _transfer_seconds(spec, *_links(spec, rates))
    return (up + down if TIERS[spec.tier].is_file else max(up, down)) * (1 if spec.fused_update else 2)


def fastest_narrow(rates: Rates) -> tuple[str | None, str]:
    """(the 16-bit type in which this machine multiplies fastest, None if it is faster in fp32; a line that says why)"""
    measured = ", ".join(f"{name} {rates.flops[name] / 1e9:.0f}" for name in _DTYPES)
    best = max(("fp16", "bf16"), key=lambda name: rates.flops[name])
    chosen = best if rates.flops[best] >= rates.flops["fp32"] else None
    why = f"16 bits: {chosen or 'not measured, fp32 is faster'}; products of this machine in GFLOP/s: {measured}"
    return chosen, why


def floor_seconds(spec: RunSpec, rates: Rates) -> float:
    """The least that a step can take here: its forwards alone (:func:`forward_seconds`), or its transfers alone.

    ``max(forwards, P b / B_up, P b / B_down)`` with P b over the blocks that travel, and what is written back over the
    steps between. On a disk both ways share one rate.
    Source: docs/design/PERFORMANCE.md, "The floor of a step".
    """
    spec = fit(spec)[0]
    forwards = forward_seconds(spec, rates)
    if not streamed_layers(spec):
        return forwards
    up, down = _transfer_seconds(spec, *_links(spec, rates, best=True))
    shared = rates.disk_both / _local(spec)
    both = sum(_transfer_seconds(spec, shared, shared)) if TIERS[spec.tier].is_file and down else 0
    return max(forwards, up, down, both)


def floor_share(result: Result) -> float | None:
    """The floor over the measured step, by the rates that travel with the result; None where it has none, and for a
    task, whose tokens are not counted."""
    floor = by_its_rates(result, floor_seconds)
    return floor / result.step_seconds if floor is not None and result.step_seconds else None


def link_rate(result: Result, part: str) -> float | None:
    """Parameters of the streamed blocks over the median seconds of ``part``, in which transfers alone bring them to
    (``upload_seconds``) or from (``offload_seconds``) every rank: what DistZO2's table 2 shows. Each parameter counts
    once, however many ranks it goes to (:func:`zobench.measure.observe.alone` says why).
    """
    measured = [seconds for seconds in result.parts.get(part, []) if seconds and seconds > 0]
    if not measured or not is_sized(result.spec):
        return None
    spec = fit(result.spec)[0]
    return models.blocks_parameter_count(models.of(spec), streamed_layers(spec)) / statistics.median(measured)


def by_its_rates(result: Result, seconds: Callable[[RunSpec, Rates], float]) -> float | None:
    """``seconds`` of the spec of ``result`` by the rates that travel with it; None without them, and for a task, whose
    tokens are not counted."""
    if result.spec.task != "none":
        return None
    rates = rates_of(result)
    try:
        return None if rates is None else seconds(ran(result), rates)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # the model of another version
        return None


def rates_of(result: Result) -> Rates | None:
    """The rates that travel with ``result``; None without them, and for those of another version or of none."""
    try:
        return Rates.of(result.environment.calibration or {})
    except (KeyError, TypeError, AttributeError):
        return None


def ran(result: Result) -> RunSpec:
    """The spec of ``result``, with the interval of write-backs that was chosen for it."""
    plan = result.environment.writeback_plan
    return interval.as_run(result.spec, interval.Consolidation(**plan) if plan else None)


def passes(spec: RunSpec) -> float:
    """Returns how many forwards of its batch a rank computes in a step: 2 operations per weight and token each.

    A backward pass is two forwards, one where the weights are frozen; the hybrid's ends at its last ZO layer. A forward
    derivative is two more than its forward: of the activations, and of the weights that are tuned.
    """
    kind, derivative = METHODS.get(spec.method), 2.0 if sizes.tunes_all(spec) else 1.0
    count = looks(spec)
    if kind.tangents:
        count += spec.queries * derivative
    if kind.gradients is not None:
        count += (derivative + spec.checkpointing) * kind.gradients(spec, models.of(spec).layers)
    return count


def looks(spec: RunSpec) -> float:
    """Losses of its whole batch that a rank computes in a step.

    Two for every query, one where ranks share out the signs of a pair; ZO-SGD-Block a pair for each part of the model,
    ZO-SGD-Cons three more for its candidates; one where gradients are taken, one for every forward derivative.
    """
    return METHODS.get(spec.method).looks(spec, models.of(spec).layers, divided(spec)[1])


def operations(spec: RunSpec) -> float:
    """Floating-point operations of a rank's products with weights in a step: 2 per weight and token in each forward.

    The weights are the blocks' matrices, of a mixture's those of the experts that a token goes through, and the head's
    table; tokens and positions are looked up."""
    model = models.of(spec)
    weights = shapes.active(model) + model.vocab * model.embedding_width
    return 2 * weights * _tokens(spec) * passes(spec)


def attention_operations(spec: RunSpec) -> float:
    """Floating-point operations of a rank's attention in a step: 2 per pair of tokens and number of a query, for scores
    and for sums, of which causal attention needs half."""
    model = models.of(spec)
    pairs = sum(block.pairs(sizes.usual(spec)) * count for block, count in shapes.blocks(model))
    return 2 * pairs * sizes.rows(spec) * passes(spec)


def _tokens(spec: RunSpec) -> int:
    """The tokens of a rank's batch."""
    return sizes.rows(spec) * sizes.usual(spec)


def low_rank_operations(spec: RunSpec) -> float:
    """Floating-point operations of a rank's step along directions of low rank, beside its products with W: the thin
    products of each token in each forward, and what makes an estimate the update of its factors."""
    structure = METHODS.get(spec.method).structure
    if structure is None or not sizes.tunes_all(spec):
        return 0.0
    rank, products, update = structure.rank(spec), 0, 0
    for (rows, columns), count in sizes.matrices(spec):
        products += count * 2 * rank * (rows + columns)
        update += count * sum(2 * math.prod(shape) for shape in structure.update(rows, columns, rank))
    return products * _tokens(spec) * passes(spec) + update


def forward_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a rank's forwards of a step, each part at the rate that it reached alone: products, attention, and the
    losses, whose logits are read and written once in float32."""
    precision = sizes.precision(spec)
    operators, width = rates.operators[precision], WIDTHS[precision]
    logits = min(sizes.judged(spec), _tokens(spec)) * models.of(spec).vocab * looks(spec)
    nbytes = logits * (2 * 4 + (width + 4 if width < 4 else 0))
    products = (operations(spec) + low_rank_operations(spec)) / rates.flops[precision]
    attention = attention_operations(spec) / operators["attention"]
    return (products + attention + nbytes / operators["losses"]) * sharers(spec)


def draws(spec: RunSpec) -> int:
    """Draws of z with torch noise in a step, for each query: four for a pair, its three moves and the update; two by a
    rank with one sign that does not go through the other (DistZO2, section 4.2); one more for each further update. The
    moves are those of each micro-batch."""
    kind = METHODS.get(spec.method)
    moves = kind.draws - 1 - (2 if kind.has_pairs and is_out_of_place(spec) else 0)
    return moves * spec.accumulate + kind.updates(spec)


def pending(spec: RunSpec) -> float:
    """Updates of each query that a step draws again with counter noise, in the mean of the run's steps."""
    return pending_steps(spec) * METHODS.get(spec.method).updates(spec)


def pending_steps(spec: RunSpec) -> float:
    """Steps whose updates a step goes over again with counter noise, in the mean of the run's; updates in factors are
    summed up."""
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
    above, below = (roofline.Links(link=link, host=rates.host, peers=rates.between) for link in (up, down))
    block = float(models.of(spec).block * wire_width(spec))
    seconds = roofline.sliced_seconds if is_sliced(spec, rates) else roofline.whole_seconds
    return block / seconds(block, ranks, above), block / roofline.offload_seconds(block, ranks, below)


def _transfer_seconds(spec: RunSpec, up: float, down: float) -> tuple[float, float]:
    """Seconds of a step's uploads and of its share of the write-backs, at ``up`` and ``down`` bytes per second."""
    uploaded, written = transferred(spec)
    return uploaded / up, written / down


def traversal_bytes(spec: RunSpec) -> tuple[float, float]:
    """Bytes that one way through the model takes to the device, and that it brings back where it writes.

    Frozen weights are not written back; adapters and state travel beside the weights."""
    layers = streamed_layers(spec)
    weights = models.blocks_parameter_count(models.of(spec), layers) * wire_width(spec)
    added = sizes.trained_count(spec, layers) * (sizes.adapter_width(spec) + sizes.state_width(spec))
    return float(weights + added), float(added + (weights if sizes.tunes_all(spec) else 0))


def transferred(spec: RunSpec) -> tuple[float, float]:
    """Bytes of a step's uploads, and of its share of the write-backs, of a spec that streams."""
    up, down = traversal_bytes(spec)
    return sizes.uploads(spec) * up, down / kept_steps(spec)


def kept_steps(spec: RunSpec) -> float:
    """After how many steps a run writes updates into the weights at rest; infinity if it is over before."""
    structure = METHODS.get(spec.method).structure
    if structure is not None and (lasts := structure.lasts(spec)) >= spec.steps + spec.warmup:
        return math.inf
    if spec.writeback_every != "inf":
        return max(int(spec.writeback_every), 1 if structure is None else lasts)
    return consolidate_after(spec) if consolidates(spec) else math.inf


# ---- DistZO2's equation 4, which the figure of the cost model shows beside measured steps; plans and tables have
# zobench.cost.local, which prices each operation


def step_seconds(spec: RunSpec, rates: Rates) -> float:
    """Seconds of a step: forwards and noise, and the transfers that they do not hide (DistZO2, equation 4)."""
    spec = fit(spec)[0]
    compute = compute_seconds(spec, rates)
    if not streamed_layers(spec):
        return compute
    transfer = transfer_seconds(spec, rates)
    return max(transfer, compute) if spec.overlap else compute + transfer


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
    counted = (kind.counter_draws + pending(spec)) * kind.normals * spec.accumulate
    return counted * parameters / (rates.noise["fused"] / sharers(spec))
