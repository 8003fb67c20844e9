"""The tests of an engine whose weights lie in units: a journal, units at rest, the way to where a run was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from zobench.data.batch import Batch
from zobench.engine.base import BASE, Entry, PassRecord, Point, Position
from zobench.engine.interface import LocalEngine, TunedEngine
from zobench.engine.weights.blocks import Unit
from zobench.engine.weights.tiers import allocate
from zobench.testing.engine import ENTRIES, PAIRS, EngineConformance
from zobench.testing.plain import full, padded, skeleton, start
from zobench.testing.suite import assert_same, refused


class Kept:
    """An engine's weights at rest, in memory: a :class:`~zobench.engine.interface.Start`."""

    def __init__(self, engine: LocalEngine) -> None:
        self.bytes: dict[str, Tensor] = {}
        self.positions: dict[str, Position] = {}
        for unit in engine.units:
            self.positions[unit.name] = engine.position(unit)
            if unit.changed and unit.trained:
                self.bytes[unit.name] = allocate(engine.kept_bytes(unit))
                engine.read(unit, self.bytes[unit.name])

    def fill(self, unit: str, out: Tensor) -> bool:
        kept = self.bytes.get(unit)
        if kept is not None:
            out[: kept.numel()].copy_(kept)
        return kept is not None

    def position(self, unit: str) -> Position:
        return self.positions[unit]


class LocalEngineConformance(EngineConformance):
    """An engine whose :attr:`~zobench.engine.interface.TunedEngine.local` is one with units. ``streams``: whether there
    are units in a tier, each of which goes up once per pass; ``packed``: whether they lie there in a wire's format."""

    streams = True
    packed = False

    def local(self, engine: TunedEngine) -> LocalEngine:
        """The engine's own units."""
        assert engine.local is not None
        return engine.local

    # --- the journal --------------------------------------------------------------------------------------------------

    def test_the_journal_holds_what_was_committed_in_order(self) -> None:
        with self.engine() as engine:
            self._step(engine, ENTRIES)
            assert self.local(engine).journal == list(ENTRIES)
            engine.flush()
            assert self.local(engine).journal == list(ENTRIES)

    def test_steps_that_fall_are_refused(self) -> None:
        with self.engine() as engine:
            engine.commit([Entry(step=3, seed=1, g=1.0, lr=1e-3)])
            refused(lambda: engine.commit([Entry(step=2, seed=1, g=1.0, lr=1e-3)]))
            assert [entry.step for entry in self.local(engine).journal] == [3]

    def test_each_look_is_one_pass_however_many_points_there_are(self) -> None:
        with self.engine() as engine:
            engine.probe(full(), PAIRS)
            engine.evaluate(full())
            assert self.local(engine).passes == 2
            refused(lambda: engine.probe(full(), []))
            assert self.local(engine).passes == 2

    def test_after_an_error_in_a_pass_the_engine_is_refused(self) -> None:
        model = skeleton(self.tied)
        with self.make(model, start(self.tied)) as engine:
            broken = Batch(full().input_ids + 10**6, full().labels)  # no such tokens
            try:
                engine.evaluate(broken)
            except IndexError:
                pass
            else:
                raise AssertionError("tokens that there are not must be an error")
            assert self.local(engine).failed
            for call in (lambda: engine.evaluate(full()), lambda: engine.commit(ENTRIES), lambda: engine.flush()):
                refused(call, RuntimeError)

    # --- units at rest ------------------------------------------------------------------------------------------------

    def test_after_a_flush_every_unit_stands_at_the_end_of_the_journal(self) -> None:
        with self.engine() as engine:
            local = self.local(engine)
            self._step(engine, ENTRIES)
            engine.flush()
            for unit in local.units:
                if unit.trained:
                    wanted = Position(passes=local.passes, applied=len(ENTRIES), part=local.position(unit).part)
                    assert local.position(unit) == wanted, unit.name
                    assert 0 <= wanted.part < local.parts

    def test_bytes_at_rest_are_the_weights(self) -> None:
        with self.engine() as engine:
            local, by_name = self.local(engine), dict[str, list[Tensor]]()
            self._step(engine, ENTRIES)
            engine.flush()
            for unit in local.units:
                assert unit.kept <= unit.nbytes
                assert local.kept_bytes(unit) <= local.rest_bytes(unit)
                if self.packed and unit.streamed:
                    continue
                out = allocate(local.rest_bytes(unit))
                local.read(unit, out)
                half = allocate(4096)
                local.read(unit, half, local.rest_bytes(unit) - 4096)
                assert torch.equal(half, out[-4096:]), "a read from a later byte on"
                for item in unit.fields:
                    if item.is_parameter:
                        by_name.setdefault(item.name, []).append(item.view(out).clone())
            wanted = dict(engine.named_tensors())
            whole = {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in by_name.items()}
            assert whole, "some unit must lie as it is"
            assert_same(whole, {name: wanted[name] for name in whole})

    def test_units_are_told_before_a_pass_changes_them(self) -> None:
        with self.engine() as engine:
            local, announced, changed = self.local(engine), list[str](), list[str]()
            self._step(engine, ENTRIES)
            engine.drain()
            before = Kept(local).bytes

            def check(unit: Unit) -> None:
                if unit.name in before and unit.name not in announced:
                    now = allocate(local.kept_bytes(unit))
                    local.read(unit, now)
                    if not torch.equal(now, before[unit.name]):
                        changed.append(unit.name)
                announced.append(unit.name)

            local.before_change = check
            engine.probe(full(), PAIRS)
            engine.flush()
            local.before_change = lambda unit: None
            assert not changed, f"changed before it was told: {changed}"
            assert {unit.name for unit in local.units if unit.trained} <= set(announced)

    def test_a_run_is_made_again_from_its_pass_records_bit_for_bit(self) -> None:
        with self.engine() as ran, self.engine() as again:
            records = self._run(ran)
            self.local(again).retrace(records)
            self._assert_equal_from_here(ran, again)

    def test_a_run_goes_on_from_weights_at_rest_bit_for_bit(self) -> None:
        with self.engine() as ran:
            records = self._run(ran)
            ran.drain()
            kept = Kept(self.local(ran))
            more = self._run(ran, first=len(records))
            with self.make(skeleton(self.tied), start(self.tied), kept) as again:
                self.local(again).retrace([*records, *more], kept)
                self._assert_equal_from_here(ran, again)

    def test_a_visit_sees_the_weights_with_every_update(self) -> None:
        with self.engine() as engine:
            self._step(engine, ENTRIES)
            seen: dict[str, list[Tensor]] = {}

            def look(unit: Unit, tensors: list[Tensor]) -> None:
                for item, tensor in zip(unit.fields, tensors, strict=True):
                    if item.is_parameter:
                        seen.setdefault(item.name, []).append(tensor.clone())

            self.local(engine).visit(look)
            wanted = dict(engine.named_tensors())
            whole = {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in seen.items()}
            assert any("fc1" in name for name in whole)
            assert_same(whole, {name: wanted[name] for name in whole})

    # --- transfers ----------------------------------------------------------------------------------------------------

    def test_a_streamed_unit_goes_up_once_per_pass_and_is_computed_once(self) -> None:
        with self.engine() as engine:
            local = self.local(engine)
            assert bool(local.blocks) == self.streams == (local.pipeline is not None) == (engine.bytes_at_rest > 0)
            engine.probe(full(), PAIRS)
            engine.drain()
            engine.record()
            engine.probe(full(), PAIRS)
            engine.evaluate(full())
            engine.drain()
            counts = Counter((kind, block) for _, kind, block, *_ in engine.timeline())
            assert {counts["upload", local.number(unit)] for unit in local.blocks} <= {2}
            assert {counts["compute", local.number(unit)] for unit in local.blocks} <= {2}
            assert engine.timeline() == []

    def test_transfers_alone_leave_the_weights(self) -> None:
        with self.engine() as engine:
            local = self.local(engine)
            if not self.streams:
                refused(local.transfer_only, AssertionError)
                return
            self._step(engine, ENTRIES)
            before, passes = dict(engine.named_tensors()), local.passes
            engine.drain()
            engine.record()
            local.transfer_only()
            kinds = Counter(kind for _, kind, *_ in engine.timeline())
            assert kinds["upload"] == len(local.blocks)
            assert local.passes == passes
            assert_same(dict(engine.named_tensors()), before)

    def _run(self, engine: TunedEngine, first: int = 0) -> list[PassRecord]:
        """Three steps along two directions each, with an evaluation between; what they did, in order."""
        records = []
        for step in range(first, first + 3):
            points = tuple(Point(100 * step + n, scale) for n in range(2) for scale in (1e-2, -1e-2))
            losses = engine.probe((full, padded)[step % 2](), points)
            entries = self._entries(step, points, losses)
            engine.commit(entries)
            records.append(PassRecord(points=points, entries=tuple(entries)))
        engine.probe(full(), [BASE])
        return [*records, PassRecord()]

    def _entries(self, step: int, points: Sequence[Point], losses: Sequence[float]) -> list[Entry]:
        pairs = zip(points[::2], losses[::2], losses[1::2], strict=True)
        return [
            Entry(step=step, seed=point.seed or 0, g=(plus - minus) / 2e-2, lr=1e-3, weight_decay=0.1)
            for point, plus, minus in pairs
        ]

    def _assert_equal_from_here(self, ran: TunedEngine, again: TunedEngine) -> None:
        """Journals, passes, weights, and all that comes of another step are equal."""
        first, second = self.local(ran), self.local(again)
        assert (second.journal, second.passes) == (first.journal, first.passes)
        entry = Entry(step=first.journal[-1].step + 1, seed=77, g=0.5, lr=1e-3)
        for engine in (ran, again):
            engine.commit([entry])
        assert again.probe(padded(), PAIRS) == ran.probe(padded(), PAIRS)
        assert_same(dict(again.named_tensors()), dict(ran.named_tensors()))
