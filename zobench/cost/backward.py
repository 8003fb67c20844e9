"""Predicted bytes of backpropagation: what a forward keeps for the backward pass, gradients, and the optimizer."""

from __future__ import annotations

from zobench import models
from zobench.cost import sizes
from zobench.cost.sizes import is_tied, judged, longest, rows, trained, trained_count, trained_width, tunes_all
from zobench.engine.base import rows_per_chunk
from zobench.runspec import METHODS, RunSpec, scheme_of
from zobench.runspec.kinds import AUTOCASTS, WIDTHS

LOGITS_BYTES = 32 << 20
"""Float32 logits that are made at once."""


def peak(spec: RunSpec) -> int:
    """Bytes at the peak of a first-order or hybrid run on one device, without dropout, as zobench's engine runs it.

    With parallel=fsdp a rank holds its share of weights, gradients and state, and whole what is used just then: the
    weights outside the blocks and their gradients, and of two blocks weights and gradients.

    The peak is where the backward pass begins, where it ends (all gradients; a tied table's exists three times), or in
    the optimizer's step (with ``foreach`` of all tensors at once). ZO-Bench's table 5 has the same terms: |x|,
    sum_l max(|a_l|, |x_l|), and 2 or 3 |x| for Adam.
    """
    width = WIDTHS[spec.dtype]
    ranks = spec.gpus if spec.parallel == "fsdp" else 1
    weights = models.parameter_count(*models.variant(spec)) * width // ranks
    if not tunes_all(spec):
        weights += (trained_count(spec) + trained(spec)[1]) * trained_width(spec)
    tuned, table = _gradients(spec) // ranks, table_bytes(spec)
    if ranks > 1:
        whole = models.resident_parameter_count(*models.variant(spec))
        weights += 2 * (whole + 2 * models.of(spec).block) * width
    copies = METHODS.get(spec.method).states
    state = copies * tuned
    largest = 2 * sizes.largest_tensor(spec) * width if tunes_all(spec) else 0  # of one tensor at a time
    temporary = (tuned if spec.foreach else largest) if copies else 0
    tied = _has_table_gradient(spec) and is_tied(spec)
    stages = (begins(spec), _enters(spec), tuned + (2 * table if tied else 0), tuned + temporary)
    return weights + state + max(stages)


def begins(spec: RunSpec) -> int:
    """Bytes beside weights and state when the backward pass has just left the head.

    Tokens go through it a chunk at a time. Each keeps its logarithms until its own turn, and makes a gradient of the
    table, of which three exist while two are added up: then the logarithms of two chunks are gone.
    """
    architecture = models.of(spec)
    tokens, row = judged(spec), 4 * architecture.vocab
    chunk = min(tokens, rows_per_chunk(architecture.vocab, LOGITS_BYTES)) * row
    table = table_bytes(spec) if _has_table_gradient(spec) else 0
    cast = 0  # autocast makes the head's weights in 16 bits anew for every chunk, and keeps them
    if AUTOCASTS[spec.autocast].is_cast:
        cast = -(-tokens * row // chunk) * architecture.vocab * architecture.embedding_width * 2
    later = 3 * table - 2 * chunk if tokens * row > chunk else table
    before = kept(spec) - (rows(spec) * longest(spec) * _of_a_layer(spec) if spec.checkpointing else 0)
    at_head = tokens * row + cast + max(2 * chunk, later + tokens * architecture.hidden * WIDTHS[spec.dtype])
    return before + at_head


def _enters(spec: RunSpec) -> int:
    """Bytes beside weights and state when the backward pass has entered the last layer, whose forward has run again
    with ``checkpointing``: the gradients of its output, of the residual and of its widest activations are new."""
    architecture, width = models.of(spec), WIDTHS[spec.dtype]
    inner = architecture.inner * (2 if AUTOCASTS[spec.autocast].is_cast else width)
    gradients = rows(spec) * longest(spec) * (2 * architecture.hidden * width + inner)
    return kept(spec) + gradients + (table_bytes(spec) if _has_table_gradient(spec) else 0)


def kept(spec: RunSpec) -> int:
    """Bytes that a forward keeps for its backward, without the logits (checked against the ledger, layer by layer);
    with ``checkpointing`` the inputs of all layers, and what one of them keeps while its backward pass runs.

    Where autocast computes, every product's operands are kept in 16 bits whatever is tuned, and its 16-bit weights for
    the backward pass of every layer. The inputs of LoRA's two A are float32: in 16 bits each makes its own, in 32 they
    share the layer's.
    """
    architecture, tokens = models.of(spec), rows(spec) * longest(spec)
    width, hidden, autocast = WIDTHS[spec.dtype], architecture.hidden, AUTOCASTS[spec.autocast].is_cast
    layers = architecture.layers - min(spec.zo_layers, architecture.layers)
    embedding = architecture.embedding_width
    around = hidden + (hidden if embedding == hidden else 2 * embedding)
    layer = _of_a_layer(spec)
    cast = 2 * models.blocks_parameter_count(architecture, 1 if spec.checkpointing else layers) if autocast else 0
    inside = layers * hidden * width + layer if spec.checkpointing else layers * layer
    return tokens * (inside + around * width) + cast


def _of_a_layer(spec: RunSpec) -> int:
    """Bytes of a token that a layer keeps for its backward pass."""
    architecture, autocast = models.of(spec), AUTOCASTS[spec.autocast].is_cast
    inputs = 0 if autocast else scheme_of(spec).inputs
    layer = architecture.kept(WIDTHS[spec.dtype], autocast, tunes_all(spec))
    return layer + 4 * architecture.hidden * (min(1, inputs) if spec.dtype == "fp32" else inputs)


def _gradients(spec: RunSpec) -> int:
    """Bytes of the gradients of all that first-order steps move: what the hybrid leaves above ``zo_layers``."""
    layers, outside = models.of(spec).layers, trained(spec)[1]
    if tunes_all(spec) and spec.zo_layers:  # the embeddings are below, the last norm and an untied head above
        outside = 0 if is_tied(spec) else table_bytes(spec) // WIDTHS[spec.dtype]
    return (trained_count(spec, layers - min(spec.zo_layers, layers)) + outside) * trained_width(spec)


def _has_table_gradient(spec: RunSpec) -> bool:
    return tunes_all(spec) and not (spec.zo_layers and is_tied(spec))


def table_bytes(spec: RunSpec) -> int:
    """Bytes of the word embedding's weights; the head's are as many."""
    architecture = models.of(spec)
    return architecture.vocab * architecture.embedding_width * WIDTHS[spec.dtype]
