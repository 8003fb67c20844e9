"""Numbers of tuned parameters, bytes of adapters and optimizer state, and tokens of a task's batches."""

from __future__ import annotations

from zobench import models
from zobench.cost import shapes
from zobench.data.tasks.file import task_of
from zobench.parallel.mesh import divided
from zobench.runspec import METHODS, RunSpec, scheme_of
from zobench.runspec.kinds import AUTOCASTS, WIDTHS, Widths

USUAL_CANDIDATES = 2
"""The candidates of an example whose task does not say how many it has."""


def adapter(spec: RunSpec) -> tuple[int, int]:
    """Parameters that the scheme adds to each block, and outside the blocks."""
    architecture, size = models.of(spec), scheme_of(spec).adapter
    if size is None:
        return 0, 0
    queries, values = architecture.attention_widths
    widths = Widths(
        layers=architecture.layers, hidden=architecture.hidden, queries=queries, values=values,
        matrices=sum(inputs * outputs for inputs, outputs in shapes.block(architecture).linears),
    )  # fmt: skip
    return size(widths, spec)


def adapter_width(spec: RunSpec) -> int:
    """Bytes of one parameter that is tuned beside the model's own weights, 0 where these are tuned."""
    kind = scheme_of(spec)
    return 0 if kind.tunes_all else kind.tuned_width


def base_width(spec: RunSpec) -> float:
    """Bytes of one of a block's own weights in the model as it is tuned: its dtype's, or less where it keeps its
    matrices in another form."""
    width, base = WIDTHS[spec.dtype], scheme_of(spec).base
    if base is None:
        return width
    block = shapes.block(models.of(spec))
    matrices = sum(inputs * outputs for inputs, outputs in block.linears)
    return (matrices * base(spec) + sum(block.vectors) * width) / block.parameters


def tunes_all(spec: RunSpec) -> bool:
    """Whether the model's own weights are tuned, and not an adapter."""
    return scheme_of(spec).tunes_all


def trained(spec: RunSpec) -> tuple[int, int]:
    """Parameters that are tuned in the largest block, and outside the blocks."""
    if not tunes_all(spec):
        return adapter(spec)
    return models.of(spec).block, models.resident_parameter_count(*models.variant(spec))


def largest_tensor(spec: RunSpec) -> int:
    """Elements of the largest tensor of the model: a table outside the blocks, or a stack of experts in one."""
    return max(*models.resident_sizes(*models.variant(spec)), models.of(spec).largest_linear)


def trained_count(spec: RunSpec, layers: int | None = None) -> int:
    """Parameters that are tuned in all blocks, or in ``layers`` of them."""
    count = models.of(spec).layers if layers is None else layers
    return models.blocks_parameter_count(models.of(spec), count) if tunes_all(spec) else count * adapter(spec)[0]


def moved(spec: RunSpec) -> tuple[int, int]:
    """Parameters that are tuned in all blocks, and outside them; of the hybrid those alone that directions move: the
    first ``zo_layers`` blocks and what comes before them, without an untied head."""
    kind, model, outside = METHODS.get(spec.method), models.of(spec), trained(spec)[1]
    if not (kind.backpropagates and kind.draws):
        return trained_count(spec), outside
    head = model.vocab * model.embedding_width if tunes_all(spec) and not is_tied(spec) else 0
    return trained_count(spec, min(spec.zo_layers, model.layers)), outside - head if spec.zo_layers else 0


def is_tied(spec: RunSpec) -> bool:
    """Whether the head's weights are the word embedding's."""
    return models.of(spec).tied if spec.tie_embeddings is None else spec.tie_embeddings


def factors(spec: RunSpec) -> tuple[int, int]:
    """Numbers that stand for a direction of low rank in all that is tuned: those that each direction has of its own (U,
    and z of what is no matrix), and V, which it may share."""
    structure, architecture = METHODS.get(spec.method).structure, models.of(spec)
    assert structure is not None, f"{spec.method} has directions of full rank"
    rank = structure.rank(spec)
    if not tunes_all(spec):
        inside, outside = adapter(spec)
        return architecture.layers * inside + outside, architecture.layers * inside + outside
    separate = sum(count * structure.per_direction(*sides, rank) for sides, count in matrices(spec))
    shared = sum(count * structure.shared(*sides, rank) for sides, count in matrices(spec))
    return separate + architecture.layers * sum(shapes.block(architecture).vectors), shared


def largest_factors(spec: RunSpec) -> int:
    """Numbers that a direction has of its own in the largest unit: a block, or what is outside them."""
    structure, layers = METHODS.get(spec.method).structure, models.of(spec).layers
    assert structure is not None, f"{spec.method} has directions of full rank"
    if not tunes_all(spec):
        return max(adapter(spec))
    factors = [(count, structure.per_direction(*sides, structure.rank(spec))) for sides, count in matrices(spec)]
    block = sum(count // layers * size for count, size in factors if count >= layers)
    return max(block, *(size for _, size in factors))


def matrices(spec: RunSpec) -> list[tuple[tuple[int, int], int]]:
    """The ((rows, columns), number) of the matrices of a model all of whose weights are tuned. What is outside the
    blocks counts as one table, beside which are up to three that add columns alone."""
    architecture = models.of(spec)
    outside = -(-models.resident_parameter_count(*models.variant(spec)) // architecture.hidden)
    inside = [((outputs, inputs), architecture.layers) for inputs, outputs in shapes.block(architecture).linears]
    return [*inside, ((outside, architecture.hidden), 1), ((0, architecture.hidden), 3)]


def drawn(spec: RunSpec) -> int:
    """Numbers that are drawn for one direction: with U also V, where it has that for itself."""
    structure = METHODS.get(spec.method).structure
    if structure is not None:
        return sum(factors(spec)) if structure.is_apart else factors(spec)[0]
    return sum(moved(spec))


def precision(spec: RunSpec) -> str:
    """The type in which products are computed."""
    return spec.dtype if spec.autocast == "none" else spec.autocast


def trained_width(spec: RunSpec) -> int:
    """Bytes of one tuned weight."""
    return WIDTHS[spec.dtype] if tunes_all(spec) else adapter_width(spec)


def state_width(spec: RunSpec) -> int:
    """Bytes of state per tuned weight that rest and travel with the weights."""
    return METHODS.get(spec.method).travelling_states * _element(spec)


def _element(spec: RunSpec) -> int:
    """Bytes of an element of the method's state."""
    return METHODS.get(spec.method).definition(spec).state_width or trained_width(spec)


def optimizer_width(spec: RunSpec) -> int:
    """Bytes of all of the method's state per tuned weight, wherever it is."""
    return METHODS.get(spec.method).states * _element(spec)


def has_whole_attention(spec: RunSpec) -> bool:
    """Whether whole matrices of tokens x tokens are made: no kernel on CUDA fuses attention in 32 bits of fewer heads
    for keys than for queries, as one on a CPU does; and some models have none anywhere."""
    model, is_cast = models.of(spec), AUTOCASTS[spec.autocast].is_cast
    queries, keys = model.attention_widths
    plain = spec.device.startswith("cuda") and WIDTHS[spec.dtype] == 4 and not is_cast and keys < queries
    return model.whole_attention or plain


def snapshot_bytes(spec: RunSpec) -> int:
    """Bytes of all that is tuned and of the method's state, that of backpropagation's optimizer included."""
    structure = METHODS.get(spec.method).structure
    momentum = 4 * structure.states * factors(spec)[0] if structure is not None and structure.states else 0
    return (trained_count(spec) + trained(spec)[1]) * (trained_width(spec) + optimizer_width(spec)) + momentum


def added(spec: RunSpec) -> tuple[int, int]:
    """Bytes of adapters and state beside the model's weights, in the largest block and outside the blocks."""
    adapters, state = adapter_width(spec), state_width(spec)
    inside, outside = trained(spec)
    return inside * (adapters + state), outside * (adapters + state)


def rows(spec: RunSpec) -> int:
    """Rows of a training batch that one device computes: its shard."""
    return spec.batch_size // divided(spec)[0]


def rows_at_once(spec: RunSpec) -> int:
    """The rows of one pass over the model, a micro-batch of :func:`rows`."""
    return rows(spec) // spec.accumulate


def uploads(spec: RunSpec) -> int:
    """How often a step takes every block to the device."""
    return METHODS.get(spec.method).uploads * spec.accumulate


def longest(spec: RunSpec) -> int:
    """Tokens of the longest row that a run reads."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, task_of(spec).longest_tokens)


def usual(spec: RunSpec) -> int:
    """Tokens of a row of a typical batch, from which durations are predicted."""
    return spec.seq_len if spec.task == "none" else min(spec.seq_len, task_of(spec).usual_tokens)


def computed(spec: RunSpec) -> int:
    """The tokens whose products are computed: packed rows have no padding, and common beginnings once."""
    return max(1, round(usual(spec) * task_of(spec).packed_share)) if spec.packed else usual(spec)


def has_task(spec: RunSpec) -> bool:
    """Whether the task of a stored run can be read: one of a file may be gone, or say something else by now."""
    try:
        return bool(task_of(spec))
    except ValueError:
        return False


def dev_examples(spec: RunSpec) -> int:
    """Examples of a task's dev set: ``shots`` of each class, where they are given; no more than it is known to have."""
    task = task_of(spec)
    if spec.shots or not task.counts:
        return spec.shots * max(len(task.names), 1) if spec.shots else spec.dev_size
    if "dev" in task.counts:
        return min(spec.dev_size, task.counts["dev"])
    return task.dev_rows(spec.train_size, spec.dev_size, task.counts["train"])


def test_examples(spec: RunSpec) -> int:
    """Examples that the test set has of those asked for, as far as is known."""
    return min(spec.test_size, task_of(spec).counts.get("validation", spec.test_size))


def rows_of_example(spec: RunSpec) -> int:
    """Rows that an evaluation computes of a task's example: one for its candidates of one token each, as the loss
    "choice" has them, or one for each longer candidate, or for each token of a free answer."""
    task = task_of(spec)
    return task.goal.new_tokens or (1 if task.loss == "choice" else max(len(task.names), USUAL_CANDIDATES))


def judged(spec: RunSpec) -> int:
    """Tokens of a batch that count in the loss: all of them, or with a task those of its answer candidates."""
    return rows(spec) * (longest(spec) if spec.task == "none" or task_of(spec).goal.every_token else 8)
