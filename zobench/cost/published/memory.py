"""Device memory of the published programs: their allocations, replayed through a model of the caching allocator.

The trace follows their public code, statement by statement where tensors are large. What NVML shows is the reserved
segments and the driver's share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from zobench.cost import shapes
from zobench.cost.published import GROUP_BYTES, MIB, PaperCell, cell_of, evidence
from zobench.cost.published.evidence import Row
from zobench.cost.simulation import Allocator, Piece

STEPS = 3
"""Steps of ZO2 after which its memory is settled; MeZO's is after two."""
BLOCKS = 6
"""Blocks of ZO2 that are replayed: the others reuse their memory."""
LARGEST = MIB // 8
"""Elements of a tensor up to which MeZO's loop over all parameters is not replayed."""
FIRST, LAST = 40, 3
"""Large tensors at the two ends of that loop that are replayed: those between reuse their memory."""
_MAIN, _COMPUTE, _UPLOAD = range(3)
"""Streams."""
DECAYED = 8
"""Times the hidden width: larger tensors have weight decay, whose product is one more temporary."""


@functools.cache
def device_bytes(cell: PaperCell) -> int:
    """Bytes that NVML shows for ``cell`` on one device."""
    trace: _Zo2 | _Mezo = _Zo2(cell) if cell.offloaded else _Mezo(cell)
    trace.run()
    return trace.allocator.reserved + cell.program.driver_bytes + cell.groups * GROUP_BYTES


def memory_share(row: Row) -> float | None:
    """The error that nine of ten values of memory like that of ``row`` stay within, as a share, where they are known to
    be larger than ZO2's: of the first version of ZO2, and of a step on several GPUs."""
    if row["paper"] in evidence.OLD_PAPERS:
        return _memory_share(evidence.OLD_PAPERS[0], alone=True)
    return None if row["gpus"] == "1" else _memory_share(row["paper"], alone=False)


@functools.cache
def _memory_share(paper: str, *, alone: bool) -> float:
    rows = [row for row in evidence.rows("gpu_memory", "MB") if row["paper"] == paper]
    like = [row for row in rows if (row["gpus"] == "1") == alone and not evidence.gave_group(row)]
    errors = [abs(device_bytes(cell_of(row)) / MIB / float(row["value"]) - 1) for row in like]
    return evidence.quantile(errors, 0.9)


class _Trace:
    """The allocations of both programs: perturb, update, one layer's forward, the head. ``run`` replays their first
    steps."""

    def __init__(self, cell: PaperCell) -> None:
        self.cell, self.allocator, self.stream = cell, Allocator(), _MAIN
        self.free = self.allocator.release
        self.cache: list[Piece] | None = None
        model = cell.model
        self.rows = max(1, int(cell.rows))
        self.tokens = self.rows * cell.seq
        self.hidden, self.inner, self.logits = model.hidden, model.inner, self.tokens * model.vocab
        self.queries, self.keys = model.attention_widths
        self.block = shapes.block(model)
        sizes = cell.outside
        self.table, self.head, self.rest = sizes[:1], sizes[1:2], sizes[2:]
        for size in sizes:
            self.new(size)

    def new(self, elements: float, width: int | None = None) -> Piece:
        """A tensor of ``elements``, ``width`` bytes each, else as wide as the weights."""
        return self.allocator.allocate(elements * (width or self.cell.width), self.stream)

    def perturb(self, sizes: Sequence[int]) -> None:
        """z, scaled twice, for each tensor; the old z is freed when the new one exists."""
        last = None
        for size in sizes:
            z = self.new(size)
            self._drop(last)
            last = z
            self.free(self.new(size), self.new(size))
        self._drop(last)

    def update(self, sizes: Sequence[int]) -> None:
        """z and the terms of the update of each tensor."""
        last = None
        for size in sizes:
            z = self.new(size)
            self._drop(last)
            last, term = z, self.new(size)
            if size > self.hidden * DECAYED:
                decay, total = self.new(size), self.new(size)
                self.free(term, decay)
                term = total
            scaled = self.new(size)
            self.free(term, scaled)
        self._drop(last)

    def mask(self) -> Piece | None:
        """Plain attention's causal mask, made by way of another."""
        if self.cell.program.fused_attention:
            return None
        first, mask = self.new(self.cell.seq**2), self.new(self.cell.seq**2)
        self.free(first)
        return mask

    def layer(self, states: Piece) -> Piece:
        """One block's forward; ``states`` stay the caller's."""
        tokens, hidden, queries = self.tokens, self.hidden, self.queries
        normed = self.new(tokens * hidden)
        scaled, keys, values = self._gated_heads() if self.block.gated else self._plain_heads()
        out = self._attention()
        self.free(scaled)
        if self.cache is None:
            self.free(keys, values)
        else:
            self.cache += [keys, values]
        joined = self._after(tokens * queries, out)
        dropped = self._after(tokens * hidden, self._after(tokens * hidden, joined))
        middle = self._after(tokens * hidden, dropped, normed)
        return self._feed_forward(middle)

    def _plain_heads(self) -> tuple[Piece, Piece, Piece]:
        """OPT's queries, keys and values: each projected, then copied per head."""
        size, width = self.tokens * self.queries, self.tokens * self.keys
        queries = self._after(size, self.new(size))
        keys = self._after(width, self.new(width))
        values = self._after(width, self.new(width))
        return self._after(size, queries), keys, values

    def _gated_heads(self) -> tuple[Piece, Piece, Piece]:
        """Qwen3's: queries are normalised in float32, keys and values repeated for all heads."""
        size, width = self.tokens * self.queries, self.tokens * self.keys
        projected, normed = self.new(size), self.new(size, 4)
        queries = self._after(size, projected, normed)
        keys = self._after(size, self.new(width))
        return queries, keys, self._after(size, self.new(width))

    def _attention(self) -> Piece:
        cell, heads = self.cell, self.cell.model.heads
        if cell.program.fused_attention:
            out = self.new(self.tokens * self.queries)
            self.free(self.new(self.rows * heads * cell.seq, 4))
            return out
        scores, width = self.rows * heads * cell.seq**2, 4 if cell.precision == "fp32" else 2
        clamped = self._after(scores, self._after(scores, self.new(scores, width), width=width), width=width)
        if cell.precision == "fp16":  # the softmax is in float32
            shares = self._after(scores, self.new(scores, 4), width=2)
        else:
            shares = self.new(scores, width)
        self.free(clamped)
        return self._after(self.tokens * self.queries, shares, width=width)

    def _feed_forward(self, middle: Piece) -> Piece:
        tokens, hidden, inner = self.tokens, self.hidden, self.inner
        normed, first, second = self.new(tokens * hidden), self.new(tokens * inner), self.new(tokens * inner)
        if self.block.gated:
            product = self._after(tokens * inner, second)
            second = self._after(tokens * inner, product)
        self.free(first, normed)
        projected = self._after(tokens * hidden, second)
        return self._after(tokens * hidden, projected, middle)

    def _after(self, elements: float, *read: Piece, width: int | None = None) -> Piece:
        """A new tensor that is made from ``read``, which are then freed."""
        made = self.new(elements, width)
        self.free(*read)
        return made

    def _drop(self, piece: Piece | None) -> None:
        if piece is not None:
            self.free(piece)


class _Mezo(_Trace):
    """All weights are on the device; every forward fills a cache of keys and values."""

    def run(self) -> None:
        blocks = self.block.tensors * self.cell.model.layers
        for size in blocks:
            self.new(size)
        order = [size for size in (*self.table, *self.rest[:1], *blocks, *self.rest[1:], *self.head) if size > LARGEST]
        order = [*order[:FIRST], *order[-LAST:]]
        for _ in range(2):
            for _ in range(self.cell.forwards):
                self.perturb(order)
                self._forward()
            self.perturb(order)
            self.update(order)

    def _forward(self) -> None:
        self.cache = [] if self.cell.program.keeps_keys else None
        mask, wide = self.mask(), self.tokens * self.hidden
        embedded, places, states = self.new(wide), self.new(wide), self.new(wide)
        self.free(embedded, places)
        for _ in range(self.cell.model.layers):
            before, states = states, self.layer(states)
            self.free(before)
        normed = self._after(wide, states)
        width = 4 if self.cell.program.float32_loss else None
        logits, shifted = self.new(self.logits), self.new(self.logits, width)
        self.free(self.new(self.logits, 4 if self.cell.autocast else width))
        self.free(logits, shifted, normed)
        self._drop(mask)
        self.free(*(self.cache or ()))


class _Zo2(_Trace):
    """Blocks come to the device, serve both forwards, and go; each stream has memory of its own."""

    def run(self) -> None:
        for step in range(STEPS):
            self._step(bool(step))

    def _step(self, pending: bool) -> None:
        self.stream, wide = _COMPUTE, self.tokens * self.hidden
        embedded = self._dual(self.table, [lambda: self.new(wide)] * self.cell.forwards, pending)
        mask = self.mask()
        places = self._dual(self.rest[:1], [lambda: self.new(wide)] * self.cell.forwards, pending)
        states = [self.new(wide) for _ in range(self.cell.forwards)]
        self.free(*embedded, *places)
        states = self._blocks(states, pending)
        normed = [self.new(wide), self.new(wide)]
        heads = self._dual(self.head, [lambda: self.new(self.logits)] * self.cell.forwards, pending)
        self.free(*heads, *self._losses(), *normed, *states)
        self._drop(mask)

    def _blocks(self, states: list[Piece], pending: bool) -> list[Piece]:
        live, resident = self.cell.program.live_blocks, {0: self._upload()}
        for block in range(1, min(self.cell.model.layers, BLOCKS)):
            if block >= live - 1 and block - live in resident:
                self.free(*resident.pop(block - live))
            states = self._compute(states, pending)
            resident[block] = self._upload()
        states = self._compute(states, pending)
        for pieces in resident.values():
            self.free(*pieces)
        return states

    def _compute(self, states: list[Piece], pending: bool) -> list[Piece]:
        out = self._dual(self.block.tensors, [functools.partial(self.layer, state) for state in states], pending)
        self.free(*states)
        return out

    def _dual(self, sizes: Sequence[int], forwards: Sequence[Callable[[], Piece]], pending: bool) -> list[Piece]:
        """The pending update of tensors of ``sizes``, and each forward after a perturbation; a last one brings the
        weights back."""
        self.stream = _COMPUTE
        if pending:
            self.update(sizes)
        out = []
        for forward in forwards:
            self.perturb(sizes)
            out.append(forward())
        self.perturb(sizes)
        return out

    def _losses(self) -> list[Piece]:
        """Returns the pieces that the losses keep: logits shifted by a token; in float32 the first is gone before the
        second exists."""
        if not self.cell.program.float32_loss:
            shifted = [self.new(self.logits) for _ in range(self.cell.forwards)]
            for _ in shifted:
                self.free(self.new(self.logits, 4 if self.cell.autocast else None))
            return shifted
        kept: list[Piece] = []
        for number in range(self.cell.forwards):
            shifted_one = self.new(self.logits, 4)
            self.free(self.new(self.logits, 4))
            if number == 0:
                self.free(shifted_one)
            else:
                kept.append(shifted_one)
        return kept

    def _upload(self) -> list[Piece]:
        self.stream = _UPLOAD
        pieces = [self.new(size) for size in self.block.tensors]
        self.stream = _COMPUTE
        return pieces
