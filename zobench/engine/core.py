"""The engine: losses at points ``W + c * z(seed)`` in one pass over the model, and a journal of updates.

``probe`` drives the model's own forward on one copy of the batch per point. Each unit of weights is perturbed to
every point while it is on the device, after the journal entries that it lacks are applied. The same code serves a
resident model (MeZO) and an offloaded one (ZO2): only where the blocks come from differs
(:mod:`zobench.engine.transfers.pipeline`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from zobench.data.batch import Batch
from zobench.engine import twin
from zobench.engine.assemble import check, check_directions, precision
from zobench.engine.base import BASE, EngineConfig, Entry, PassRecord, Point, Position, check_part
from zobench.engine.build import Source, build, is_end
from zobench.engine.directions.factors import LowRank
from zobench.engine.interface import GradientEngine, Start
from zobench.engine.passes import tangent
from zobench.engine.passes.drive import Drive, adopt_bias, drive_to_head, plain
from zobench.engine.passes.fold import Marks
from zobench.engine.passes.head import Objective
from zobench.engine.passes.loss import averaged, on_cpu
from zobench.engine.passes.packing import Packer
from zobench.engine.passes.population import Population, Reward
from zobench.engine.passes.products import RowForwards
from zobench.engine.transfers.lanes import Lanes
from zobench.engine.updates import replay
from zobench.engine.updates.rules import UpdateRule
from zobench.engine.weights.blocks import Field, Unit
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.engine.weights.tiers import Hosts
from zobench.machine.accelerator import Accelerator
from zobench.models import blocks as find_blocks
from zobench.models.checkpoint import persistent_buffers
from zobench.models.weights import ModelWeights, Weights

T = TypeVar("T")


class Engine:
    """One model under zeroth-order fine-tuning.

    ``model`` is a ``transformers`` causal model, real or on the meta device. The engine takes its weights over; read
    them with :meth:`named_tensors` or :meth:`save_pretrained` before closing it. ``weights`` gives initial values, by
    default the model's own. ``lanes`` replaces the lanes that the device calls for. ``drive`` runs the model up to its
    head; by default it calls the model's body. ``rule`` is an update other than SGD's; its state rests and travels
    beside the weights and begins as ``state`` (by :attr:`Field.key`) or zeros. ``thresholds``, by parameter name, make
    directions sparse (:class:`~zobench.engine.directions.noise.SparseNoise`); ``directions`` are those that have low
    rank. Parameters that require no gradient are never moved nor written back.
    ``start``: an earlier run's weights at rest, to be brought up to date by :meth:`retrace`.
    ``hosts``: host memory that several ranks share, where the streamed units rest. ``marks``: how the arguments of the
    model's modules follow the batch; by default that is found on a twin of the model, and with it whether the engine
    gives the model's own losses (:mod:`zobench.engine.twin`): ``ValueError`` if not.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, *, weights: Weights | None = None, lanes: Lanes | None = None,
        drive: Drive = plain, rule: UpdateRule | None = None, state: Weights | None = None,
        thresholds: Mapping[str, float] | None = None, start: Start | None = None, hosts: Hosts | None = None,
        marks: Marks | None = None, directions: LowRank | None = None,
    ) -> None:  # fmt: skip
        check(model, config, weights, rule)
        check_directions(directions, config, rule, thresholds)
        found_marks = judged(model, config, directions) if marks is None else marks
        self.packer = Packer(model, config, drive)
        self.model, self.config, self.rule, self.drive = model.eval(), config, rule, self.packer.drive
        self.directions = directions
        self.passes = 0
        self.before_change: Callable[[Unit], None] = lambda unit: None
        self.journal: list[Entry] = []
        self.failed = self._closed = False
        self._give_back_bias = adopt_bias(model)
        source = Source(weights=weights or ModelWeights(model), state=state, start=start)
        try:
            built = build(
                model, config, source, self.journal, self.touch, rule=rule, thresholds=thresholds or {}, lanes=lanes,
                hosts=hosts, marks=found_marks, directions=directions,
            )  # fmt: skip
        except BaseException:
            self._give_back_bias()
            raise
        self.store, self.noise, self.arithmetic = built.store, built.noise, built.arithmetic
        self.forwards, self.thresholds = built.forwards, built.thresholds
        self.blocks, self.residents, self.units = self.store.blocks, self.store.residents, self.store.units
        self.run, self.number = self.store.run, self.store.number
        self.kept_bytes, self.rest_bytes = self.store.kept_bytes, self.store.rest_bytes
        self.drain, self.record, self.timeline = self.store.drain, self.store.record, self.store.timeline
        self.pipeline, self.compute_only = self.store.pipeline, self.store.compute_only
        self.bytes_at_rest, self.tier_note = self.store.nbytes, self.store.note
        if config.device.startswith("cuda"):
            Accelerator(config.device).synchronize()  # the lanes' streams start with nothing of the building in flight

    # --- the public operations -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def probe(self, batch: Batch, points: Sequence[Point], wanted_indices: Sequence[int] | None = None) -> list[float]:
        """The batch's mean loss at each point, float32 values; every block is brought to the device once.

        Afterwards the weights are where they were, with torch noise up to the rounding of MeZO's +eps, -2 eps, +eps.
        ``wanted_indices``: in rising order, the indices of the points whose losses are wanted; these losses, and the
        weights afterwards, have the same bits as when all points are evaluated. (Along directions of low rank the
        points share a product, whose last bits may follow from how many there are.)
        """
        self._open()
        points = tuple(points)
        route: tuple[Point, ...] = ()
        if not points:
            raise ValueError("`points` must not be empty, but got none; give at least Point() for the loss at W")
        for point in points:
            check_part(point.part, self.parts)
        if wanted_indices is not None:
            points, route = tuple(points[number] for number in wanted_indices), points
        return averaged(self.model, batch, self.config.accumulate, lambda part: self._losses(part, points, route))

    def _losses(self, batch: Batch, points: Sequence[Point], route: tuple[Point, ...] = ()) -> list[float]:
        """The batch's mean loss at each point, in one pass over the model."""
        batch, drive = self.packer.driven(batch)
        objective = Objective(self.model, batch, self.config.device)
        return [float(objective.loss(reduced)) for reduced in self._reduced(batch, drive, objective, points, route)]

    @torch.inference_mode()
    def scores(self, batch: Batch) -> Tensor:
        """The score of each of the batch's candidates, float32 (c,) on the CPU, with every committed update applied."""
        self._open()
        batch, drive = self.packer.driven(batch)
        objective = Objective(self.model, batch, self.config.device, scored=True)
        return objective.scores(self._reduced(batch, drive, objective, (BASE,))[0])

    @torch.inference_mode()
    def next_logits(self, batch: Batch) -> Tensor:
        """The logits after each row's last token, float32 (rows, vocabulary) on the CPU, with every committed update
        applied; rows are padded on the left."""
        self._open()
        batch = batch.to(self.config.device)
        with self.passing((BASE,), len(batch.input_ids)):
            driven = drive_to_head(self.drive, self.model, batch.input_ids, batch.attention_mask)
            return self.forwards.last_logits(driven)

    def _reduced(
        self, batch: Batch, drive: Drive, objective: Objective, points: Sequence[Point], route: tuple[Point, ...] = ()
    ) -> Tensor:
        """One pass over the model: what the objective's loss is made from, at each point, float32 on the CPU."""
        device = self.config.device
        ids, mask = batch.input_ids.to(device), batch.attention_mask
        mask = None if mask is None else mask.to(device).repeat(len(points), 1)
        with self.passing(points, len(ids), route):
            driven = drive_to_head(drive, self.model, ids.repeat(len(points), 1), mask)
            result = torch.stack(self.forwards.judge(driven, objective))
        return on_cpu(result)

    @contextmanager
    def passing(self, points: Sequence[Point], rows: int, route: tuple[Point, ...] = ()) -> Iterator[None]:
        """Inside, the model is driven once, on ``rows`` rows at each of ``points``, some of those of ``route``."""
        self.forwards.begin(points, rows)
        self.forget()
        self.failed = True  # until it is through: half a pass may have applied half of an update
        self.arithmetic.points, self.arithmetic.route = tuple(points), route
        with precision(self.config):
            yield
        self.arithmetic.points = self.arithmetic.route = ()
        self.passes += 1
        self.failed = False

    @property
    def rows(self) -> RowForwards:
        """The forwards of a population. Raises ``ValueError`` where directions are not
        :class:`~zobench.engine.directions.factors.IndependentLowRank`."""
        if not isinstance(self.forwards, RowForwards):
            raise ValueError(
                f"`fitness` needs directions of which each point has its own, but got {self.directions}; give "
                "directions=IndependentLowRank(1)"
            )
        return self.forwards

    def fitness(self, reward: Reward, batches: Sequence[Batch], points: Sequence[Point]) -> list[float]:
        """Returns the number that ``reward`` gives each member of a population at ``points``; each sees a batch of its
        own, as often as ``reward`` asks for it. Raises ``ValueError`` as :attr:`rows` does."""
        self._open()
        rewards = [float(value) for value in reward(Population(self, points), batches)]
        if len(rewards) != len(points):
            raise ValueError(
                f"`reward` must give one number for each of {len(points)} members, but gave {len(rewards)}; see "
                "zobench.engine.passes.population"
            )
        return rewards

    @torch.inference_mode()
    def evaluate(self, batch: Batch) -> float:
        """The batch's mean loss with every committed update applied."""
        self._open()
        return self._losses(batch, (BASE,))[0]

    def tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        """(loss, derivative of the loss along z(seed)) at the weights with every committed update applied.

        One pass over the model in forward-mode differentiation, on one copy of the batch. Raises ``ValueError`` where
        granularity is not "block".
        """
        self._open()
        tangent.check(self.config)
        loss, slope = averaged(self.model, batch, self.config.accumulate, lambda part: self._tangent(part, seed))
        return loss, slope

    def _tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        batch, drive = self.packer.driven(batch)
        objective = Objective(self.model, batch, self.config.device)
        with self.passing((Point(seed),), len(batch.input_ids)):
            return tangent.derivative(self.forwards, drive, batch, objective, seed)

    @torch.inference_mode()
    def commit(self, entries: Sequence[Entry]) -> None:
        """Appends updates to the journal. They reach a unit's weights the next time it is used, or at once if
        ``fused_update`` is off, or if the model is resident and the noise torch's, as in MeZO."""
        self._open()
        last = self.journal[-1].step if self.journal else -math.inf
        for entry in entries:
            entry.check(self.parts)
            if entry.step < last:
                raise ValueError(f"`step` of entries must not fall, but got {entry.step} after {last}; count steps on")
            last = entry.step
            if entry.part is not None and any(unit.part < 0 for unit in self.units):
                raise ValueError("`part` of an entry needs a probe before it, which finds the parts; probe first")
        self.journal.extend(entries)
        if self.at_once:
            self._settle_all()

    @property
    def at_once(self) -> bool:
        """Whether updates reach the weights when they are committed, and not at the next pass."""
        return (self.pipeline is None and self.arithmetic.in_place) or not self.config.fused_update

    @torch.inference_mode()
    def flush(self) -> None:
        """Applies every committed update for good and writes the blocks back to their tier, in the wire's format."""
        self._open()
        if any(unit.trained and unit.applied < len(self.journal) for unit in self.units):
            self._settle_all()
        self.drain()

    def shared(self, values: Sequence[T]) -> list[T]:
        """The values that all ranks agree on; on one device ``values`` themselves."""
        return list(values)

    @torch.inference_mode()
    def visit(self, look: Callable[[Unit, list[Tensor]], None]) -> None:
        """Calls ``look(unit, tensors)`` for every unit but the word embedding and the head.

        ``tensors``: its weights as the next probe would use them, every committed update applied, in the model's dtype,
        one for each of the unit's fields, valid during the call.
        """
        self._open()

        def turn(unit: Unit) -> None:
            self.touch(unit)
            look(unit, self.arithmetic.at(unit, BASE))
            self.arithmetic.finish(unit)

        for unit in self.units:
            if not is_end(self.model, unit):
                self.run(unit, functools.partial(turn, unit))

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, CPU copy) of every parameter, all updates applied, one unit in memory at a time; tied ones once. Then
        those of the buffers that a checkpoint holds.

        With counter noise what is pending stays pending: looking rounds nothing and writes nothing.
        """
        inside = set()
        for name, tensor in self._tensors(lambda unit: ([item for item in unit.fields if item.is_kept], None)):
            inside.add(name)
            yield name, tensor
        for name, buffer in persistent_buffers(self.model):
            if name not in inside:  # those of a unit have travelled with it
                yield name, buffer.detach().cpu().clone()

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter#state, CPU copy) of every state of the rule, all updates applied, as :meth:`named_tensors`."""
        yield from self._tensors(lambda unit: (unit.states, None))
        yield from self._tensors(self.arithmetic.state)

    @functools.cached_property
    def parts(self) -> int:
        """How many parts points and entries can name: 0 is what comes before the blocks (a tied table with it), then
        each block, and the last what follows them (ZO-Bench, section 5: 26 for OPT-1.3B)."""
        return len(find_blocks(self.model)) + 2

    def _tensors(self, wanted: Callable[[Unit], tuple[Sequence[Field], Tensor | None]]) -> Iterator[tuple[str, Tensor]]:
        """The tensors that ``wanted`` gives of each unit, fields of a buffer or, where it gives none, of the unit's
        weights, by their keys."""
        self._open()
        if self.arithmetic.in_place:
            self.flush()
        self.drain()
        tiles: dict[str, list[Tensor]] = {}
        for unit in self.units:
            with torch.inference_mode():
                items, buffer = wanted(unit)
                if items and buffer is None:
                    buffer = self.current(unit)
            for item in items:
                assert buffer is not None
                pieces = tiles.setdefault(item.key, [])
                pieces.append(item.view(buffer).detach().cpu().clone())
                if item.whole is None:
                    yield item.key, tiles.pop(item.key)[0]
                elif sum(len(piece) for piece in pieces) == item.whole[0]:
                    yield item.key, torch.cat(tiles.pop(item.key))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a Hugging Face checkpoint, all updates applied: config, safetensors shards and their index."""
        save_checkpoint(self.model, self.named_tensors(), Path(folder))

    def close(self) -> None:
        """Ends the lanes, removes the disk tier's file; the model's forward is its own again, on what is resident."""
        self.forwards.close()
        if not (self._closed or self.failed):
            self._hand_back()
        if not self._closed:
            self._give_back_bias()
        self._closed = True
        self.arithmetic.close()
        self.store.close()

    @torch.inference_mode()
    def _hand_back(self) -> None:
        """Applies what is pending to the resident units, in place, and gives them to the model."""
        for unit in self.residents:
            if not unit.is_tile:
                assert unit.buffer is not None
                self.arithmetic.settle(unit)
                unit.bind(unit.views(unit.buffer))

    def __enter__(self) -> Engine:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine must be open, but was closed; build a new one")
        if self.failed:
            raise RuntimeError("the engine must not be used after an error in a step, but was; build a new one")

    # --- what other engines are asked too ---------------------------------------------------------------------------

    gradients: GradientEngine | None = None
    """Nothing is kept for a backward pass."""

    @property
    def local(self) -> Engine:
        """This engine: its weights lie in units."""
        return self

    # --- measuring one part of a step -------------------------------------------------------------------------------

    @torch.inference_mode()
    def transfer_only(self) -> None:
        """One traversal's transfers without any compute, write-backs only if every step has them; weights stay.

        Along directions of low rank W is written only when their subspace changes, which no step here is taken to do.
        """
        stays = self.directions is not None and not self.directions.is_apart
        self.store.transfer_only(written=self.config.keep_steps == 1 and not stays)

    # --- what a run's durability needs ------------------------------------------------------------------------------

    @property
    def head_units(self) -> Sequence[Unit]:
        """The units that the head uses."""
        return self.forwards.head.units

    def position(self, unit: Unit) -> Position:
        """How far the unit's weights at rest have come, between two passes."""
        return Position(passes=self.passes, applied=unit.applied, part=unit.part)

    @torch.inference_mode()
    def read(self, unit: Unit, out: Tensor, first: int = 0) -> None:
        """Copies bytes of a unit's weights at rest, from byte ``first`` on, into ``out`` (uint8, on the CPU,
        page-aligned). Another thread may do this while a step runs, as long as the step has not touched the unit
        (``before_change``)."""
        self.store.read(unit, out, first)

    @torch.inference_mode()
    def retrace(self, records: Sequence[PassRecord], start: Start | None = None) -> None:
        """Brings an engine that was just built from ``start``, or from its base, to the end of ``records``: all of its
        run, bit for bit (:mod:`zobench.engine.updates.replay`)."""
        replay.retrace(self, records, start)

    # --- moving weights ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def current(self, unit: Unit) -> Tensor:
        """A unit's weights in the model's dtype, every update applied: its own buffer if it holds that, else a copy."""
        return self.arithmetic.caught_up(unit, self.store.weights(unit))

    def touch(self, unit: Unit) -> None:
        """Is called before a unit's weights may change, in its first turn of a pass or when it is settled: a snapshot
        that reads them at rest must have finished."""
        self.before_change(unit)

    def forget(self) -> None:
        """Lets the noise keep what the pending entries and the points of this pass need, and no more."""
        pending = self.journal[min(unit.applied for unit in self.units if unit.trained) :]
        self.noise.keep(
            {entry.seed for entry in pending} | {p.seed for p in self.forwards.points if p.seed is not None}
        )

    def _settle_all(self) -> None:
        """Applies every committed update to the weights at rest."""
        self.failed = True  # until it is through: after an error some units have the update and others have not
        for unit in self.units:
            self.touch(unit)
        for unit in [*self.residents, *self.blocks]:
            self.store.run(unit, functools.partial(self.arithmetic.settle, unit), work="update")
        self.failed = False


def judged(model: nn.Module, config: EngineConfig, directions: LowRank | None = None) -> Marks:
    """See :func:`zobench.engine.twin.judge`: how the arguments of the model's modules follow the batch, once an engine
    over a twin of the model gave transformers' own losses; ``ValueError`` if it did not. Asked again, it costs
    nothing."""
    plain = None if directions is None else replace(directions, rule=None)
    return twin.judge(
        model,
        config,
        lambda twin_model, settings, marks: Engine(twin_model, settings, marks=marks, directions=plain),
        plain,
    )
