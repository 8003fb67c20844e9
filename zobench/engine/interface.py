"""The engine's interface: what a method, a whole run, and a rank's snapshots and measurements need of an engine.

What only some methods need is a capability, a protocol that ``isinstance`` asks for: :class:`PartedEngine`,
:class:`TangentEngine`, :class:`PopulationEngine`. :class:`~zobench.engine.Engine` is all of these,
:class:`~zobench.engine.backprop.Backprop` a :class:`TunedEngine` with gradients and without these capabilities,
:class:`~zobench.parallel.engine.ParallelEngine` one whose :attr:`~TunedEngine.local` is one rank's engine.
An engine of a plug-in is one that passes :class:`zobench.testing.EngineConformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zobench.data.batch import Batch
    from zobench.engine.base import EngineConfig, Entry, PassRecord, Point, Position
    from zobench.engine.passes.population import Reward
    from zobench.engine.transfers.pipeline import Pipeline
    from zobench.engine.transfers.schedule import Event
    from zobench.engine.updates.rules import UpdateRule
    from zobench.engine.weights.blocks import Unit


class SteppingEngine(Protocol):
    """The engine as a method sees it: losses at points, a place for updates, and gradients where it has any."""

    @property
    def config(self) -> EngineConfig:
        """Where the weights are, and which mechanisms are on."""

    def probe(self, batch: Batch, points: Sequence[Point]) -> list[float]:
        """The batch's mean loss at each point, float32 values; afterwards the weights are where they were."""

    def commit(self, entries: Sequence[Entry]) -> None:
        """Appends updates, which every later look at the weights finds applied."""

    def shared(self, values: Sequence[int]) -> list[int]:
        """Rank 0's ``values``, which all ranks use; without ranks ``values`` themselves."""

    @property
    def gradients(self) -> GradientEngine | None:
        """This engine as one that backpropagates, or None if it does not."""


@runtime_checkable
class PartedEngine(Protocol):
    """An engine whose points and entries can move one part of the model alone."""

    @property
    def parts(self) -> int:
        """How many parts of the model points and entries can name."""


@runtime_checkable
class TangentEngine(Protocol):
    """An engine that differentiates along a direction."""

    def tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        """(loss, its derivative along z(seed)) at the weights. Raises ``ValueError`` where it cannot be had."""


@runtime_checkable
class PopulationEngine(Protocol):
    """An engine on which many points each see a batch of their own in one pass."""

    def fitness(self, reward: Reward, batches: Sequence[Batch], points: Sequence[Point]) -> list[float]:
        """Returns the number that ``reward`` gives each member of a population at ``points``, each with a batch of its
        own. Raises ``ValueError`` where points have no directions of low rank of their own."""


def lacks(engine: object, what: str) -> ValueError:
    """The error of an engine without a capability; ``what`` needs it."""
    return ValueError(f"{what} needs an Engine, but got {type(engine).__name__}; build that")


class GradientEngine(SteppingEngine, Protocol):
    """The engine as a first-order method sees it; with ``moves`` also as the zeroth-order half of a hybrid does."""

    @property
    def moves(self) -> bool:
        """Whether some weights are trained along directions, by :meth:`probe` and :meth:`commit`."""

    def backward(self, batch: Batch, scale: float = 1.0) -> float:
        """The batch's mean loss; its gradients are left in the tensors' ``grad``. The backward pass computes
        ``scale`` times them, so that small ones do not underflow in fp16."""

    def gradient_norm(self) -> float:
        """The Euclidean norm of all gradients."""

    def update(self, optimizer: str, *, lr: float, weight_decay: float = 0.0, foreach: bool = True) -> None:
        """One step of an optimizer by the gradients, which are freed."""

    def discard(self) -> None:
        """Frees the gradients."""


class Start(Protocol):
    """Weights at rest of an earlier run, by the names of its units, as :meth:`LocalEngine.read` gave them."""

    def fill(self, unit: str, out: Tensor) -> bool:
        """Writes the first bytes of ``out``, a uint8 buffer with the unit's base; False if the unit is as it was."""

    def position(self, unit: str) -> Position:
        """How far the unit had come."""


class LocalEngine(PartedEngine, Protocol):
    """One rank's own engine, whose weights lie in units: what snapshots and journals need of it, which is how many
    updates each unit holds at rest and repeating them, and what a measurement of a step's transfers and computation
    needs.

    ``journal``: all updates in order. ``passes``: passes over the model so far. ``failed``: within a pass, or after an
    error in one. ``before_change`` is called with a unit before a step changes it. ``units``: those that are streamed,
    in call order, which are ``blocks``, then those that stay on the device. ``pipeline``: what moves the streamed ones,
    or None without any. ``rule``: the update, if it is not SGD's. ``thresholds``: of sparse directions, by tensor id.
    """

    config: EngineConfig
    journal: list[Entry]
    passes: int
    failed: bool
    before_change: Callable[[Unit], None]
    units: list[Unit]
    blocks: Sequence[Unit]
    pipeline: Pipeline | None
    rule: UpdateRule | None
    thresholds: dict[int, float]

    @property
    def head_units(self) -> Sequence[Unit]:
        """The units that the head uses."""

    def number(self, unit: Unit) -> int:
        """A streamed unit's place in its tier."""

    def kept_bytes(self, unit: Unit) -> int:
        """Bytes at the front of the unit's weights at rest that steps change."""

    def rest_bytes(self, unit: Unit) -> int:
        """Bytes of the unit's weights at rest."""

    def position(self, unit: Unit) -> Position:
        """How far the unit's weights at rest have come, between two passes."""

    def read(self, unit: Unit, out: Tensor, first: int = 0) -> None:
        """Copies bytes of a unit's weights at rest, from byte ``first`` on, into ``out`` (uint8, on the CPU)."""

    def retrace(self, records: Sequence[PassRecord], start: Start | None = None) -> None:
        """Brings an engine built from ``start``, or from its base, to the end of ``records``, bit for bit."""

    def transfer_only(self) -> None:
        """One traversal's transfers without any compute."""

    def compute_only(self) -> AbstractContextManager[None]:
        """Inside, steps run without any transfer."""

    def visit(self, look: Callable[[Unit, list[Tensor]], None]) -> None:
        """Calls ``look(unit, tensors)`` for every unit but the word embedding and the head."""


class TunedEngine(SteppingEngine, Protocol):
    """The engine as a whole run sees it: it steps, evaluates and saves the weights with every update applied, and
    closes."""

    @property
    def model(self) -> nn.Module:
        """The model whose weights are tuned."""

    def evaluate(self, batch: Batch) -> float:
        """The batch's mean loss."""

    def scores(self, batch: Batch) -> Tensor:
        """The score of each of the batch's candidates, float32 (c,) on the CPU."""

    def next_logits(self, batch: Batch) -> Tensor:
        """The logits after each row's last token, float32 (rows, vocabulary) on the CPU; rows are padded on the
        left."""

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, CPU copy) of every parameter, tied ones once, and of every buffer that a checkpoint holds."""

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter#state, CPU copy) of every state of a rule or an optimizer."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a Hugging Face checkpoint."""

    @property
    def local(self) -> LocalEngine | None:
        """This rank's own engine, or None where weights do not lie in units that a journal tells."""

    @property
    def bytes_at_rest(self) -> int:
        """Bytes of the streamed units in their tier; 0 for a resident model."""

    @property
    def tier_note(self) -> str:
        """A caution for readers of a measurement about the tier, or ""."""

    def flush(self) -> None:
        """Applies every committed update for good."""

    def drain(self) -> None:
        """Returns when all transfers are done."""

    def record(self) -> None:
        """Starts an empty timeline of the lanes."""

    def timeline(self) -> list[Event]:
        """The events of the lanes since :meth:`record`."""

    def close(self) -> None:
        """Frees memory, files and threads."""

    def __enter__(self) -> TunedEngine:
        """The engine itself, if it is open."""

    def __exit__(self, *_: object) -> None:
        """Closes it."""
