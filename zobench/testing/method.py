"""The tests of every method: steps that follow from its seed and its state alone, and that can be made again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from zobench.data.batch import Batch
from zobench.durable import snapshot
from zobench.durable.snapshot import SnapshotWeights
from zobench.engine.base import EngineConfig, PassRecord
from zobench.engine.core import Engine
from zobench.engine.interface import TunedEngine
from zobench.methods.base import Method, StepResult, Taken
from zobench.models.weights import Weights
from zobench.testing.plain import full, padded, skeleton, start
from zobench.testing.suite import assert_same, refused


@dataclass(frozen=True, eq=False, slots=True)
class Poisoned(Weights):
    """Weights of which one, a last norm's, is not a number: then no loss is."""

    whole: Weights

    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        self.whole.fill(name, out, first)
        if "final_layer_norm.weight" in name:
            out[0] = math.nan


class MethodConformance:
    """Any method (:class:`~zobench.methods.Method`). Give :meth:`method`, and :meth:`engine` where it needs a rule,
    thresholds, or gradients. ``retraceable``: whether its steps are all in their updates."""

    retraceable = True

    def method(self) -> Method:
        """The method at its first step, always with the same seed."""
        raise NotImplementedError

    def engine(self, model: nn.Module, weights: Weights, state: Weights | None = None) -> TunedEngine:
        """An engine that the method can step; ``state``: its ``state_tensors`` after an earlier run."""
        return Engine(model, EngineConfig(placement="resident", noise="counter"), weights=weights, state=state)

    def test_a_step_looks_at_the_batch_and_changes_the_weights(self) -> None:
        with self.engine(skeleton(), start()) as engine:
            before, method = dict(engine.named_tensors()), self.method()
            for make in (full, padded, full):
                loss, result = engine.evaluate(make()), method.step(engine, make())
                assert math.isfinite(result.loss)
                assert abs(result.loss - loss) < 0.1 * loss, "a step's loss is one near the weights"
                assert result.applied
                assert result.gradients
                assert all(map(math.isfinite, result.gradients))
                assert len(result.parts) in (0, len(result.seeds))
            assert any(not torch.equal(tensor, before[name]) for name, tensor in engine.named_tensors())
            assert method.skipped == 0

    def test_the_same_seed_takes_the_same_steps(self) -> None:
        first, second = self._run(4), self._run(4)
        assert first[0] == second[0]
        assert_same(first[1], second[1])

    def test_a_learning_rate_of_zero_leaves_the_weights(self) -> None:
        with self.engine(skeleton(), start()) as engine:
            method = self.method()
            method.lr = 0.0
            before = dict(engine.named_tensors())
            for _ in range(2):
                method.step(engine, full())
            assert_same(dict(engine.named_tensors()), before, 2e-6)

    def test_its_state_is_json_and_goes_through_it_unchanged(self) -> None:
        with self.engine(skeleton(), start()) as engine:
            method = self.method()
            for _ in range(3):
                method.step(engine, full())
            state = json.loads(json.dumps(method.state(), allow_nan=False))
            other = self.method()
            other.restore(state)
            assert other.state() == method.state()
            assert (other.skipped, json.dumps(other.state())) == (method.skipped, json.dumps(method.state()))

    def test_a_run_that_goes_on_is_one_without_a_break_bit_for_bit(self) -> None:
        whole = self._run(5)
        with TemporaryDirectory() as name:
            folder = Path(name)
            with self.engine(skeleton(), start()) as engine:
                method = self.method()
                steps = [method.step(engine, batch) for batch in _batches(0, 2)]
                method_state = json.dumps(method.state())
                kept = [*engine.named_tensors(), *engine.state_tensors()]
                snapshot.write_tensors(folder, 2, kept, {"run": "", "base": ""})
            saved = SnapshotWeights(folder / "snapshot-2")
            state = saved if any("#" in name for name in saved.names) else None
            with self.engine(skeleton(), saved, state) as engine:
                method = self.method()
                method.restore(json.loads(method_state))
                steps += [method.step(engine, batch) for batch in _batches(2, 5)]
                assert steps == whole[0], "steps differ after the break"
                assert_same(dict(engine.named_tensors()), whole[1])

    def test_a_step_whose_numbers_are_not_finite_is_skipped_and_counted(self) -> None:
        with self.engine(skeleton(), Poisoned(start())) as engine:
            before, method = dict(engine.named_tensors()), self.method()
            for count in (1, 2):
                result = method.step(engine, full())
                assert not result.applied
                assert method.skipped == count
            for name, tensor in engine.named_tensors():
                assert torch.allclose(tensor, before[name], 0.0, 2e-6, equal_nan=True), f"{name} was changed"

    def test_its_steps_are_made_again_from_what_a_journal_tells(self) -> None:
        with self.engine(skeleton(), start()) as ran, self.engine(skeleton(), start()) as again:
            method, other = self.method(), self.method()
            taken = [self._taken(ran, method, step) for step in range(3)]
            if not self.retraceable:
                refused(lambda: other.retrace(again, taken[0]))
                return
            records: list[PassRecord] = []
            for step in taken:
                made = other.retrace(again, step)
                assert len(made) == step.passes, "as many pass records as the step took passes"
                records += made
            assert (other.state(), other.skipped) == (method.state(), method.skipped)
            assert again.local is not None
            again.local.retrace(records)
            assert_same(dict(again.named_tensors()), dict(ran.named_tensors()))
            assert other.step(again, padded()) == method.step(ran, padded())

    def test_a_journal_of_another_run_is_refused(self) -> None:
        with self.engine(skeleton(), start()) as engine:
            taken = self._taken(engine, self.method(), 0)
            other = replace(taken, directions=tuple((seed + 1, part) for seed, part in taken.directions))
            refused(lambda: self.method().retrace(engine, other))

    def _run(self, count: int) -> tuple[list[StepResult], dict[str, Tensor]]:
        with self.engine(skeleton(), start()) as engine:
            method = self.method()
            steps = [method.step(engine, batch) for batch in _batches(0, count)]
            return steps, dict(engine.named_tensors())

    def _taken(self, engine: TunedEngine, method: Method, step: int) -> Taken:
        local = engine.local
        before, passes = (0, 0) if local is None else (len(local.journal), local.passes)
        result = method.step(engine, full())
        parts = result.parts or (None,) * len(result.seeds)
        return Taken(
            step=step, loss=result.loss, lr=method.lr, seconds=0.1, applied=result.applied,
            passes=0 if local is None else local.passes - passes,
            directions=tuple(zip(result.seeds, parts, strict=True)), gradients=result.gradients,
            entries=() if local is None else tuple(local.journal[before:]),
        )  # fmt: skip


def _batches(first: int, last: int) -> list[Batch]:
    kinds: Sequence[Callable[[], Batch]] = (full, padded)
    return [kinds[step % 2]() for step in range(first, last)]
