"""The updates that a unit's weights at rest lack, summed up in factors of low rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zobench.engine.base import Entry, Point
from zobench.engine.basis import Basis
from zobench.engine.blocks import Field, Unit
from zobench.engine.factor_rules import FactorRule, begins
from zobench.engine.factors import Factors, is_matrix, subspace_of
from zobench.models.weights import Weights

Term = tuple[int, Tensor]
"""The seed of a subspace and factors in it: together a change of the weights, U V^T."""


@dataclass(eq=False, slots=True)
class Group:
    """Pending entries that become one change of the weights, rounded once: those of one ``subspace``, which share one
    term, or those of one step whose directions have each a subspace of their own (``subspace`` None).

    ``end``: the place in the journal after its last one. The change is ``W = kept * W + sum of U V^T`` over ``terms``,
    where ``kept`` is what weight decay leaves.
    """

    subspace: int | None
    step: int
    end: int
    terms: list[Term] = field(default_factory=list)
    kept: float = 1.0

    def takes(self, entry: Entry) -> bool:
        """Whether an entry that follows belongs to it."""
        return entry.subspace == self.subspace and (self.subspace is not None or entry.step == self.step)

    def add(self, factors: Factors, entry: Entry, end: int, device: torch.device | str) -> None:
        """Takes an entry, which ends at the place ``end`` of the journal."""
        shared = self.subspace is not None and bool(self.terms)
        if entry.weight_decay and not shared:
            kept = 1.0 - entry.lr * entry.weight_decay
            self.terms = [(seed, factors.decay(own, kept)) for seed, own in self.terms]
        if not shared:
            self.terms.append((subspace_of(entry), factors.empty(device)))
        factors.update(self.terms[-1][1], entry)
        self.kept *= 1.0 - entry.lr * entry.weight_decay
        self.step, self.end = entry.step, end

    def change(self, factors: Factors, entries: Sequence[Entry], end: int, made: Tensor) -> None:
        """Takes the updates of one step, which all share the group's subspace: ``F = kept * F - made``."""
        first, kept = entries[0], 1.0 - entries[0].lr * sum(entry.weight_decay for entry in entries)
        own = factors.decay(self.terms[0][1], kept) if self.terms else torch.zeros_like(made)
        own.view(torch.float32).sub_(made.view(torch.float32))
        self.terms, self.kept = [(subspace_of(first), own)], self.kept * kept
        self.step, self.end = first.step, end


class Pending:
    """The entries of a journal that a unit's weights at rest lack, in groups; brought up to date as it grows.

    With a rule that has state, that is here too: it follows from ``state``, what it began as (by :attr:`Field.key`;
    None: zeros), and the journal alone, however far the weights have come.
    """

    def __init__(self, unit: Unit, factors: Factors, state: Weights | None = None) -> None:
        self._unit, self.factors, self._began = unit, factors, state
        self._rule = factors.directions.rule
        self._seen, self._applied = 0, -1
        self._state: Tensor | None = None
        self._told = 0
        self.groups: list[Group] = []

    def follow(self, journal: Sequence[Entry], device: torch.device | str) -> list[Group]:
        """All groups after the unit's own place in the journal."""
        applied = self._unit.applied
        if self._applied != applied or self._seen > len(journal):
            self.groups, self._seen, self._applied = [], applied, applied
            self._catch_up(journal, device)
        for entries, end in self._steps(journal, self._seen):
            if not self.groups or not self.groups[-1].takes(entries[0]):
                self.groups.append(Group(entries[0].subspace, entries[0].step, end))
            if self._rule is None:
                self.groups[-1].add(self.factors, entries[0], end, device)
            else:
                self.groups[-1].change(self.factors, entries, end, self._change(self._rule, entries, device))
        self._seen = self._told = len(journal)
        return self.groups

    def drop(self, count: int) -> None:
        """The first groups are in the weights at rest now, and the unit knows."""
        del self.groups[:count]
        self._applied = self._unit.applied

    def terms(self) -> tuple[list[Term], float]:
        """All groups as terms of one change of the weights, and what all weight decay leaves of these."""
        kept, terms = 1.0, list[Term]()
        for group in reversed(self.groups):
            terms = [(seed, self.factors.decay(own, kept)) for seed, own in group.terms] + terms
            kept *= group.kept
        return terms, kept

    def state(self, journal: Sequence[Entry], device: torch.device | str) -> Tensor | None:
        """The rule's state after the whole journal, a buffer of :attr:`Factors.fields`; None if it has none."""
        self.follow(journal, device)
        return self._state

    def _steps(self, journal: Sequence[Entry], first: int) -> Iterator[tuple[Sequence[Entry], int]]:
        """The updates of this unit from a place in the journal on, and the place after them: those of one step
        together where a rule takes their sum, else one by one."""
        places = ((place, journal[place]) for place in range(first, len(journal)) if self._unit.moves(journal[place]))
        if self._rule is None:
            yield from (((entry,), place + 1) for place, entry in places)
            return
        for _, step in itertools.groupby(places, key=lambda pair: pair[1].step):
            own = list(step)
            yield [entry for _, entry in own], own[-1][0] + 1

    def _catch_up(self, journal: Sequence[Entry], device: torch.device | str) -> None:
        """Brings the rule's state to the unit's own place in the journal, from the start if it is past that."""
        if self._rule is None or not self._rule.has_state:
            return
        if self._state is None or self._told > self._unit.applied:
            self._state, self._told = self._start(device), 0
        for entries, _ in self._steps(journal[: self._unit.applied], self._told):
            self._change(self._rule, entries, device)
        self._told = self._unit.applied

    def _start(self, device: torch.device | str) -> Tensor:
        if self._began is None:
            return self.factors.empty(device)
        made = self.factors.empty("cpu")
        for item in self.factors.fields:
            self._began.fill(item.key, item.view(made), item.first)
        return made.to(device)

    def _change(self, rule: FactorRule, entries: Sequence[Entry], device: torch.device | str) -> Tensor:
        """What the updates of one step subtract, as factors; the rule's state is then that after it."""
        made, first = self.factors.empty(device), entries[0]
        for entry in entries:
            self.factors.add(made, entry.seed, entry.g)
        for item in self._unit.trainable:
            own, state = (
                self.factors.of(item, made),
                None if self._state is None else self.factors.of(item, self._state),
            )
            fresh = begins(first.extra, is_matrix(item))
            if state is not None and is_matrix(item) and not fresh and first.extra != subspace_of(first):
                old, new = (self._basis(item, int(seed), device) for seed in (first.extra, subspace_of(first)))
                state.copy_(rule.carried(state, old, new))
            own.copy_(rule.change(own, state, first.lr, is_matrix=is_matrix(item), begins=fresh))
        return made

    def _basis(self, item: Field, seed: int, device: torch.device | str) -> Basis:
        return self.factors.directions.shared(item, seed, device).rows(item.first, item.shape[0])


def closed(groups: Sequence[Group], points: Sequence[Point]) -> int:
    """How many of the groups no later entry can join: all, unless the last has a subspace that several steps share and
    no point has left it."""
    if not groups or groups[-1].subspace is None:
        return len(groups)
    left = any(point.seed is not None and point.subspace != groups[-1].subspace for point in points)
    return len(groups) - (not left)
