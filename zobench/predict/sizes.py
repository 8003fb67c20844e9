"""Numbers of tuned parameters, bytes of adapters and optimizer state, and tokens of a task's batches."""

from __future__ import annotations

from zobench import models
from zobench.data.tasks.file import task_of
from zobench.parallel.mesh import divided
from zobench.predict import shapes
from zobench.runspec import METHODS, SCHEMES, RunSpec
from zobench.runspec.kinds import WIDTHS, Widths

ADAPTER_WIDTH = 4
"""Bytes of an adapter's weight, which is float32 (docs/design/METHODS.md, "What is tuned")."""


def adapter(spec: RunSpec) -> tuple[int, int]:
    """Parameters that the scheme adds to each block, and outside the blocks."""
    architecture, size = models.of(spec), SCHEMES.get(spec.scheme).adapter
    if size is None:
        return 0, 0
    queries, values = architecture.attention_widths
    return size(Widths(layers=architecture.layers, hidden=architecture.hidden, queries=queries, values=values))


def tunes_all(spec: RunSpec) -> bool:
    """Whether the model's own weights are tuned, and not an adapter."""
    return SCHEMES.get(spec.scheme).tunes_all


def trained(spec: RunSpec) -> tuple[int, int]:
    """Parameters that are tuned in the largest block, and outside the blocks."""
    if not tunes_all(spec):
        return adapter(spec)
    return models.block_parameter_count(models.of(spec)), models.resident_parameter_count(*models.variant(spec))


def trained_count(spec: RunSpec, layers: int | None = None) -> int:
    """Parameters that are tuned in all blocks, or in ``layers`` of them."""
    count = models.of(spec).layers if layers is None else layers
    return models.blocks_parameter_count(models.of(spec), count) if tunes_all(spec) else count * adapter(spec)[0]


def factors(spec: RunSpec) -> tuple[int, int]:
    """Numbers that stand for a direction of low rank in all that is tuned: those that each direction has of its own (U,
    and z of what is no matrix), and V, which it may share."""
    structure, architecture = METHODS.get(spec.method).structure, models.of(spec)
    assert structure is not None, f"{spec.method} has directions of full rank"
    rank = structure.rank(spec)
    if not tunes_all(spec):
        inside, outside = adapter(spec)
        return architecture.layers * inside + outside, architecture.layers * inside + outside
    block, outside = shapes.block(architecture), models.resident_parameter_count(*models.variant(spec))
    left = rank * sum(outputs for _, outputs in block.linears) + sum(block.vectors)
    right = rank * sum(inputs for inputs, _ in block.linears)
    tables = rank * -(-outside // architecture.hidden)
    return architecture.layers * left + tables, architecture.layers * right + rank * architecture.hidden * 4


def drawn(spec: RunSpec) -> int:
    """Numbers that are drawn for one direction."""
    if METHODS.get(spec.method).structure is not None:
        return factors(spec)[0]
    return trained_count(spec) + trained(spec)[1]


def trained_width(spec: RunSpec) -> int:
    """Bytes of one tuned weight."""
    return WIDTHS[spec.dtype] if tunes_all(spec) else ADAPTER_WIDTH


def state_width(spec: RunSpec) -> int:
    """Bytes of state per tuned weight that rest and travel with the weights."""
    return METHODS.get(spec.method).travelling_states * _element(spec)


def _element(spec: RunSpec) -> int:
    """Bytes of an element of the method's state."""
    return METHODS.get(spec.method).definition(spec).state_width or trained_width(spec)


def optimizer_width(spec: RunSpec) -> int:
    """Bytes of all of the method's state per tuned weight, wherever it is."""
    return METHODS.get(spec.method).states * _element(spec)


def snapshot_bytes(spec: RunSpec) -> int:
    """Bytes of all that is tuned and of the method's state, that of backpropagation's optimizer included."""
    return (trained_count(spec) + trained(spec)[1]) * (trained_width(spec) + optimizer_width(spec))


def added(spec: RunSpec) -> tuple[int, int]:
    """Bytes of adapters and state beside the model's weights, in the largest block and outside the blocks."""
    own, state = (0 if tunes_all(spec) else ADAPTER_WIDTH), state_width(spec)
    inside, outside = trained(spec)
    return inside * (own + state), outside * (own + state)


def rows(spec: RunSpec) -> int:
    """Rows of a training batch that one device computes: its shard."""
    return spec.batch_size // divided(spec)[0]


def longest(spec: RunSpec) -> int:
    """Tokens of the longest row that a run reads."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, task_of(spec).longest_tokens)


def usual(spec: RunSpec) -> int:
    """Tokens of a row of a typical batch, from which durations are predicted."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, task_of(spec).usual_tokens)


def judged(spec: RunSpec) -> int:
    """Tokens of a batch that count in the loss: all of them, or with a task those of its answer candidates."""
    return rows(spec) * (longest(spec) if spec.task == "none" or task_of(spec).goal.every_token else 8)
