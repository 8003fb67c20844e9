"""What the units' weights at rest lack along directions of low rank: when it is written into them, and how."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from zobench.engine.base import Entry, Point
from zobench.engine.basis import Basis
from zobench.engine.blocks import Field, Memory, Pieces, Unit
from zobench.engine.factors import Factors, LowRank, is_matrix
from zobench.engine.pending import Group, Pending, Term, closed
from zobench.engine.perturb import is_decayed
from zobench.engine.thin import add_product, joined
from zobench.engine.wire import Wire, is_read_only
from zobench.models.weights import Weights


class Deferred:
    """Updates in factors, beside the weights at rest as long as their subspace lasts, whatever ``writeback_every``, and
    after that until they span so many steps. It keeps A and B of each subspace that is in use.

    ``master``: where the weights of a streamed unit are unpacked, with a ``wire``. ``state``: what that of a rule
    begins as.
    """

    def __init__(
        self, directions: LowRank, journal: Sequence[Entry], writeback_every: float, device: str, wire: Wire | None,
        master: Tensor | None, state: Weights | None = None,
    ) -> None:  # fmt: skip
        self._directions, self._journal, self._every = directions, journal, writeback_every
        self._device, self._wire, self._master, self._state = device, wire, master, state
        self._pending: dict[int, Pending] = {}
        self._bases: dict[int, dict[int, Basis]] = {}
        self._zeros = torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        """Lets go of all factors."""
        self._pending.clear()
        self._bases.clear()

    # --- factors ------------------------------------------------------------------------------------------------------

    def groups(self, unit: Unit) -> list[Group]:
        """The unit's pending entries."""
        return self._of(unit).follow(self._journal, self._device) if unit.trained else []

    def terms(self, unit: Unit) -> tuple[list[Term], float]:
        """The same as terms of one change of the weights, and what their weight decay leaves of these."""
        return self._of(unit).terms() if self.groups(unit) else ([], 1.0)

    def factors(self, unit: Unit) -> Factors:
        """Where the factors of the unit's tensors lie."""
        return self._of(unit).factors

    def factor(self, unit: Unit, item: Field, term: Term) -> Tensor:
        """The factor of one of the unit's tensors."""
        return self.factors(unit).of(item, term[1])

    def basis(self, item: Field, seed: int, device: torch.device) -> Basis:
        """A and B of a matrix, or of the rows of it that are here; made once for as long as their subspace lasts."""
        bases = self._bases.setdefault(item.tensor_id, {})
        if seed not in bases:
            bases[seed] = self._directions.shared(item, seed, device)
        return bases[seed].rows(item.first, item.shape[0])

    def nothing(self, unit: Unit, device: torch.device) -> Tensor:
        """Factors that are all zero, which nobody writes."""
        nbytes = self.factors(unit).nbytes
        if self._zeros.numel() < nbytes or self._zeros.device != device:
            self._zeros = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        return self._zeros[:nbytes]

    def state(self, unit: Unit) -> tuple[Sequence[Field], Tensor | None]:
        """A rule's state of the unit's tensors, all updates applied: fields of a buffer, which is None without one."""
        if not unit.trained or self._directions.rule is None or not self._directions.rule.has_state:
            return (), None
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

    def weights(self, unit: Unit) -> Tensor | Pieces:
        """Where the weights of a unit on the device are: in its buffer, or unpacked."""
        assert unit.buffer is not None, f"{unit.name} is not on the device"
        if not unit.streamed or self._wire is None:
            return unit.buffer
        assert self._master is not None
        return self._master

    def decoded(self, unit: Unit) -> Tensor | Pieces:
        """The same, in the model's dtype."""
        weights = self.weights(unit)
        if weights is self._master:
            assert self._wire is not None
            assert isinstance(weights, Tensor)
            assert isinstance(unit.buffer, Tensor)
            self._wire.decode(unit, unit.buffer, weights)
        return weights

    def due(self, unit: Unit, points: Sequence[Point]) -> int:
        """How many groups are to be written into the weights in a pass through ``points``."""
        groups = self.groups(unit)
        count = 0 if is_read_only(unit, self._wire) else closed(groups, points)
        if not count or groups[count - 1].step - self._journal[unit.applied].step + 1 < self._every:
            return 0
        return count

    def keep(self, unit: Unit, weights: Memory, count: int) -> None:
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
        if count and unit.streamed and self._wire is not None:
            assert isinstance(weights, Tensor)
            assert isinstance(unit.buffer, Tensor)
            self._wire.encode(unit, weights, unit.buffer)

    def settle(self, unit: Unit) -> None:
        """Writes everything into the weights at rest, where these are ever written."""
        if unit.trained and unit.applied < len(self._journal) and not is_read_only(unit, self._wire):
            weights, groups = self.decoded(unit), self.groups(unit)
            self.keep(unit, weights, len(groups))
            unit.applied = len(self._journal)

    def caught_up(self, unit: Unit, weights: Tensor | Pieces) -> Tensor | Pieces:
        """``weights`` with everything in them, in a copy where they are the unit's own: for itself it stays pending."""
        groups = self.groups(unit)
        if not groups:
            return weights
        own = weights.clone() if weights is unit.buffer or weights is self._master else weights
        for group in groups:
            self._fold(unit, own, group)
        return own

    def _fold(self, unit: Unit, weights: Memory, group: Group) -> None:
        """``W = kept * W + A F B`` in place, over all of the group's terms at once."""
        for item in unit.trainable:
            own, parts = item.view(weights), [self.factor(unit, item, term) for term in group.terms]
            kept = group.kept if is_decayed(item.name) else 1.0
            if is_matrix(item):
                bases = [self.basis(item, seed, own.device) for seed, _ in group.terms]
                pairs = list(zip(bases, parts, strict=True))
                left, right = [basis.outer(part) for basis, part in pairs], [basis.inner(part) for basis, part in pairs]
                add_product(own, joined(left, 1), joined(right, 0), kept)
            else:
                total = own.float() * kept
                for part in parts:
                    total.add_(part)
                own.copy_(total)
