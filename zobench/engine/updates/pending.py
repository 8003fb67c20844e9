"""The updates along directions of low rank that weights at rest lack: they are summed up in factors; when and how they
are written into the weights."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zobench.engine.base import Entry, Point
from zobench.engine.directions.factor_rules import Basis, FactorRule, add_product, begins, joined, uncast
from zobench.engine.directions.factors import Factors, LowRank, is_matrix, subspace_of
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.weights.blocks import Field, Memory, Pieces, Unit
from zobench.engine.weights.wire import DeviceWeights, is_read_only
from zobench.models.weights import Weights

Term = tuple[int, Tensor]
"""The seed of a subspace and factors in it: together a change of the weights, A F B."""


@dataclass(eq=False, slots=True)
class PendingGroup:
    """Pending entries that become one change of the weights, rounded once: those of one ``subspace``, which share one
    term, or those of one step whose directions have each a subspace of their own (``subspace`` None).

    ``end``: the place in the journal after its last one. The change is ``W = kept * W + sum of A F B`` over ``terms``,
    where ``kept`` is what weight decay leaves.
    """

    subspace: int | None
    step: int
    end: int
    terms: list[Term] = field(default_factory=list)
    kept: float = 1.0

    def takes(self, entry: Entry) -> bool:
        """Whether an entry that follows belongs to the group."""
        return entry.subspace == self.subspace and (self.subspace is not None or entry.step == self.step)

    def add(self, factors: Factors, entry: Entry, end: int, device: torch.device | str) -> None:
        """Takes an entry, which ends at the place ``end`` of the journal."""
        shared = self.subspace is not None and bool(self.terms)
        if entry.weight_decay and not shared:
            kept = 1.0 - entry.lr * entry.weight_decay
            self.terms = [(seed, factors.decay(buffer, kept)) for seed, buffer in self.terms]
        if not shared:
            self.terms.append((subspace_of(entry), factors.empty(device)))
        factors.update(self.terms[-1][1], entry)
        self.kept *= 1.0 - entry.lr * entry.weight_decay
        self.step, self.end = entry.step, end

    def change(self, factors: Factors, entries: Sequence[Entry], end: int, subtracted: Tensor) -> None:
        """Takes the updates of one step, which all share the group's subspace: ``F = kept * F - subtracted``."""
        first, kept = entries[0], 1.0 - entries[0].lr * sum(entry.weight_decay for entry in entries)
        buffer = factors.decay(self.terms[0][1], kept) if self.terms else torch.zeros_like(subtracted)
        buffer.view(torch.float32).sub_(subtracted.view(torch.float32))
        self.terms, self.kept = [(subspace_of(first), buffer)], self.kept * kept
        self.step, self.end = first.step, end


class Pending:
    """The entries of a journal that a unit's weights at rest lack, in groups; brought up to date as it grows.

    With a rule that has state, the state is here too: it follows from ``state``, what it began as (by
    :attr:`Field.key`; None: zeros), and the journal alone, however far the weights have come.
    """

    def __init__(self, unit: Unit, factors: Factors, state: Weights | None = None) -> None:
        self._unit, self.factors, self._initial_state = unit, factors, state
        self._rule = factors.directions.rule
        self._seen, self._applied = 0, -1
        self._state: Tensor | None = None
        self._in_state = 0  # entries of the journal that the rule's state has seen
        self.groups: list[PendingGroup] = []

    def follow(self, journal: Sequence[Entry], device: torch.device | str) -> list[PendingGroup]:
        """Yields all groups after the unit's own place in the journal."""
        applied = self._unit.applied
        if self._applied != applied or self._seen > len(journal):
            self.groups, self._seen, self._applied = [], applied, applied
            self._catch_up(journal, device)
        for entries, end in self._steps(journal, self._seen):
            if not self.groups or not self.groups[-1].takes(entries[0]):
                self.groups.append(PendingGroup(entries[0].subspace, entries[0].step, end))
            if self._rule is None:
                self.groups[-1].add(self.factors, entries[0], end, device)
            else:
                self.groups[-1].change(self.factors, entries, end, self._change(self._rule, entries, device))
        self._seen = self._in_state = len(journal)
        return self.groups

    def drop(self, count: int) -> None:
        """Forgets the first groups, which are in the weights at rest now, as the unit's ``applied`` says."""
        del self.groups[:count]
        self._applied = self._unit.applied

    def terms(self) -> tuple[list[Term], float]:
        """Returns all groups as terms of one change of the weights, and the share that all weight decay leaves of
        these."""
        kept, terms = 1.0, list[Term]()
        for group in reversed(self.groups):
            terms = [(seed, self.factors.decay(buffer, kept)) for seed, buffer in group.terms] + terms
            kept *= group.kept
        return terms, kept

    def state(self, journal: Sequence[Entry], device: torch.device | str) -> Tensor | None:
        """The rule's state after the whole journal, a buffer of :attr:`Factors.fields`; None if it has none."""
        self.follow(journal, device)
        return self._state

    def _steps(self, journal: Sequence[Entry], first: int) -> Iterator[tuple[Sequence[Entry], int]]:
        """The updates of this unit from a place in the journal on, and the place after them: those of one step
        together where a rule takes their sum, else one by one."""
        numbered = ((n, journal[n]) for n in range(first, len(journal)) if self._unit.moves(journal[n]))
        if self._rule is None:
            yield from (((entry,), number + 1) for number, entry in numbered)
            return
        for _, step in itertools.groupby(numbered, key=lambda pair: pair[1].step):
            pairs = list(step)
            yield [entry for _, entry in pairs], pairs[-1][0] + 1

    def _catch_up(self, journal: Sequence[Entry], device: torch.device | str) -> None:
        """Brings the rule's state to the unit's own place in the journal, from the start if it is past that."""
        if self._rule is None or not self._rule.has_state:
            return
        if self._state is None or self._in_state > self._unit.applied:
            self._state, self._in_state = self._start(device), 0
        for entries, _ in self._steps(journal[: self._unit.applied], self._in_state):
            self._change(self._rule, entries, device)
        self._in_state = self._unit.applied

    def _start(self, device: torch.device | str) -> Tensor:
        if self._initial_state is None:
            return self.factors.empty(device)
        state = self.factors.empty("cpu")
        for item in self.factors.fields:
            self._initial_state.fill(item.key, item.view(state), item.first)
        return state.to(device)

    def _change(self, rule: FactorRule, entries: Sequence[Entry], device: torch.device | str) -> Tensor:
        """Returns the factors of what the updates of one step subtract; the rule's state is then that after the
        step."""
        change, first = self.factors.empty(device), entries[0]
        for entry in entries:
            self.factors.add(change, entry.seed, entry.g)
        for item in self._unit.trainable:
            estimate = self.factors.of(item, change)
            state = None if self._state is None else self.factors.of(item, self._state)
            is_first = begins(first.extra, is_matrix(item))
            if state is not None and is_matrix(item) and not is_first and first.extra != subspace_of(first):
                seeds = int(first.extra), subspace_of(first)
                whole = [self.factors.directions.shared(item, seed, device) for seed in seeds]
                old, new = (basis.rows(item.first, item.shape[0]) for basis in whole)
                state.copy_(rule.carried(state, old, new))
            estimate.copy_(rule.change(estimate, state, first.lr, is_matrix=is_matrix(item), begins=is_first))
        return change


def closed(groups: Sequence[PendingGroup], points: Sequence[Point]) -> int:
    """How many of the groups no later entry can join: all, unless the last has a subspace that several steps share and
    no point has left it."""
    if not groups or groups[-1].subspace is None:
        return len(groups)
    left = any(point.seed is not None and point.subspace != groups[-1].subspace for point in points)
    return len(groups) - (not left)


class PendingUpdates:
    """The pending updates of all units: in factors, apart from the weights at rest as long as their subspace lasts,
    whatever ``writeback_every``, and after that until they span so many steps. A and B of each subspace in use are kept
    too.

    ``weights``: where those of a unit on the device are. ``state``: what that of a rule begins as.
    """

    def __init__(
        self, directions: LowRank, journal: Sequence[Entry], writeback_every: float, device: str,
        weights: DeviceWeights, state: Weights | None = None,
    ) -> None:  # fmt: skip
        self._directions, self._journal, self._every = directions, journal, writeback_every
        self._device, self.weights, self._state = device, weights, state
        self._pending: dict[int, Pending] = {}
        self._bases: dict[int, dict[int, Basis]] = {}
        self._zeros = torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        """Lets go of all factors."""
        self._pending.clear()
        self._bases.clear()

    # --- factors ------------------------------------------------------------------------------------------------------

    def groups(self, unit: Unit) -> list[PendingGroup]:
        """The unit's pending entries."""
        if not unit.trained:
            return []
        with uncast(self._device):
            return self._of(unit).follow(self._journal, self._device)

    def terms(self, unit: Unit) -> tuple[list[Term], float]:
        """The pending entries as terms of one change of the weights, and what their weight decay leaves of these."""
        return self._of(unit).terms() if self.groups(unit) else ([], 1.0)

    def factors(self, unit: Unit) -> Factors:
        """Where the factors of the unit's tensors lie."""
        return self._of(unit).factors

    def basis(self, item: Field, seed: int, device: torch.device) -> Basis:
        """A and B of a matrix, of the rows that the field holds; made once for as long as their subspace lasts."""
        bases = self._bases.setdefault(item.tensor_id, {})
        if seed not in bases:
            bases[seed] = self._directions.shared(item, seed, device)
        return bases[seed].rows(item.first, item.shape[0])

    def zeros(self, unit: Unit, device: torch.device) -> Tensor:
        """Factors that are all zero, which nobody writes."""
        nbytes = self.factors(unit).nbytes
        if self._zeros.numel() < nbytes or self._zeros.device != device:
            self._zeros = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        return self._zeros[:nbytes]

    def state(self, unit: Unit) -> tuple[Sequence[Field], Tensor | None]:
        """A rule's state of the unit's tensors, all updates applied: fields of a buffer, which is None without one."""
        if not unit.trained or self._directions.rule is None or not self._directions.rule.has_state:
            return (), None
        with uncast(self._device):
            return self.factors(unit).fields, self._of(unit).state(self._journal, self._device)

    def forget(self, unit: Unit, points: Sequence[Point]) -> None:
        """Lets go of A and B of subspaces that neither these points nor pending entries share."""
        lasting = {point.subspace for point in points} | {group.subspace for group in self.groups(unit)}
        for item in unit.trainable:
            self._forget(item, self._bases.get(item.tensor_id, {}).keys() - lasting)

    def _forget(self, item: Field, seeds: Collection[int]) -> None:
        for seed in seeds:
            self._bases.get(item.tensor_id, {}).pop(seed, None)

    def _of(self, unit: Unit) -> Pending:
        if id(unit) not in self._pending:
            self._pending[id(unit)] = Pending(unit, Factors(unit, self._directions), self._state)
        return self._pending[id(unit)]

    # --- weights ------------------------------------------------------------------------------------------------------

    def due(self, unit: Unit, points: Sequence[Point]) -> int:
        """How many groups are to be written into the weights in a pass through ``points``."""
        groups = self.groups(unit)
        count = 0 if is_read_only(unit, self.weights.wire) else closed(groups, points)
        if not count or groups[count - 1].step - self._journal[unit.applied].step + 1 < self._every:
            return 0
        return count

    def write(self, unit: Unit, weights: Memory, count: int) -> None:
        """Writes the first groups into ``weights``, each rounded by itself, and these into ``unit.buffer``."""
        pending = self._of(unit)
        for group in pending.groups[:count]:
            self._fold(unit, weights, group)
            unit.applied = group.end
            unit.dirty = unit.changed = True
        for group in pending.groups[:count]:
            for item in unit.trainable:
                self._forget(item, {seed for seed, _ in group.terms})
        pending.drop(count)
        if count:
            self.weights.pack(unit)

    def settle(self, unit: Unit) -> None:
        """Writes everything into the weights at rest, where these are ever written."""
        if unit.trained and unit.applied < len(self._journal) and not is_read_only(unit, self.weights.wire):
            weights, groups = self.weights.unpacked(unit), self.groups(unit)
            self.write(unit, weights, len(groups))
            unit.applied = len(self._journal)

    def caught_up(self, unit: Unit, weights: Tensor | Pieces) -> Tensor | Pieces:
        """``weights`` with everything in them, in a copy where they are the unit's own: for itself it stays pending."""
        groups = self.groups(unit)
        if not groups:
            return weights
        if weights is unit.buffer or weights is self.weights.master:
            weights = weights.clone()
        for group in groups:
            self._fold(unit, weights, group)
        return weights

    def _fold(self, unit: Unit, weights: Memory, group: PendingGroup) -> None:
        """``W = kept * W + A F B`` in place, over all of the group's terms at once."""
        factors = self.factors(unit)
        with uncast(self._device):
            for item in unit.trainable:
                tensor, kept = item.view(weights), group.kept if is_decayed(item.name) else 1.0
                parts = [(seed, factors.of(item, buffer)) for seed, buffer in group.terms]
                if is_matrix(item):
                    pairs = [(self.basis(item, seed, tensor.device), part) for seed, part in parts]
                    left = joined([basis.outer(part) for basis, part in pairs], 1)
                    right = joined([basis.inner(part) for basis, part in pairs], 0)
                    add_product(tensor, left, right, kept)
                else:
                    total = tensor.float() * kept
                    for _, part in parts:
                        total.add_(part)
                    tensor.copy_(total)
