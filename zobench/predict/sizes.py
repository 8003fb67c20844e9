"""What a run tunes and reads, in numbers: sizes of adapters, of optimizer state, and of a task's batches."""

from __future__ import annotations

from zobench import models
from zobench.parallel.mesh import divided
from zobench.runspec import STATEFUL, RunSpec
from zobench.runspec.registries import TASKS

WIDTH = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one weight by dtype or wire format; fp8's scales (one per row) are below a thousandth of its values."""
LORA_RANK, PREFIX_TOKENS, PROMPT_TOKENS = 8, 5, 10
"""Sizes of the adapters, whose weights are float32 (docs/design/METHODS.md, "What is tuned")."""
ADAPTER_WIDTH = 4
STATES = {"zo-sgd-mmt": 1, "zo-adam": 2}
"""Copies of what is tuned that a zeroth-order method keeps beside it."""


def adapter(spec: RunSpec) -> tuple[int, int]:
    """Parameters that the scheme adds to each block, and outside the blocks."""
    architecture = models.get(spec.model)
    hidden, values = architecture.hidden, attention_widths(spec.model)[1]
    if spec.scheme == "lora":  # of the query and the value projection
        return LORA_RANK * (hidden + attention_widths(spec.model)[0] + hidden + values), 0
    if spec.scheme == "prefix":
        return 0, PREFIX_TOKENS * 2 * architecture.layers * values
    return 0, PROMPT_TOKENS * hidden if spec.scheme == "prompt" else 0


def attention_widths(name: str) -> tuple[int, int]:
    """Widths of a token's queries, and of its keys or values, in all heads together."""
    return models.get(name).attention_widths


def trained(spec: RunSpec) -> tuple[int, int]:
    """Parameters that are tuned in each block, and outside the blocks."""
    if spec.scheme != "full":
        return adapter(spec)
    return models.block_parameter_count(spec.model), models.resident_parameter_count(*models.variant(spec))


def trained_width(spec: RunSpec) -> int:
    """Bytes of one tuned weight."""
    return WIDTH[spec.dtype] if spec.scheme == "full" else ADAPTER_WIDTH


def state_width(spec: RunSpec) -> int:
    """Bytes of a zeroth-order method's state per tuned weight: float32 as written, as the weights as shipped."""
    assert spec.method in STATEFUL or spec.method not in STATES
    return STATES.get(spec.method, 0) * (4 if spec.definition == "as-written" else trained_width(spec))


def snapshot_bytes(spec: RunSpec) -> int:
    """Bytes of all that is tuned and the method's state beside it, Adam's two moments of backpropagation included."""
    inside, outside = trained(spec)
    state = 2 * trained_width(spec) if spec.method == "fo-adam" else state_width(spec)
    return (models.get(spec.model).layers * inside + outside) * (trained_width(spec) + state)


def added(spec: RunSpec) -> tuple[int, int]:
    """Bytes of adapters and state beside the model's weights, in each block and outside the blocks."""
    own, state = (ADAPTER_WIDTH if spec.scheme != "full" else 0), state_width(spec)
    inside, outside = trained(spec)
    return inside * (own + state), outside * (own + state)


def rows(spec: RunSpec) -> int:
    """Rows of a training batch that one device computes: its shard."""
    return spec.batch_size // divided(spec)[0]


def longest(spec: RunSpec) -> int:
    """Tokens of the longest row that a run reads."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, TASKS.get(spec.task).longest_tokens)


def usual(spec: RunSpec) -> int:
    """Tokens of the rows of a usual batch, of which the durations are."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, TASKS.get(spec.task).usual_tokens)


def judged(spec: RunSpec) -> int:
    """Tokens of a batch whose probabilities the loss asks for: all, or with a task those of its candidates."""
    return rows(spec) * (longest(spec) if spec.task == "none" else 8)
