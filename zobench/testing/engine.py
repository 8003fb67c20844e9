"""The tests of every engine: losses at points, updates, scores, saving, each as a plain model in torch has it; and one
that backpropagates: gradients as plain torch has them, and updates by them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from zobench.engine.base import BASE, Entry, Point
from zobench.engine.interface import GradientEngine, PartedEngine, Start, TangentEngine, TunedEngine
from zobench.methods import ZOSGD
from zobench.models.weights import Weights
from zobench.runspec.kinds import NOISES
from zobench.testing.plain import BATCHES, EPS, PlainModel, choosing, full, has_class_forwards, padded, skeleton, start
from zobench.testing.suite import assert_close, assert_same, refused

ENTRIES = (
    Entry(step=0, seed=11, g=0.7, lr=1e-2, weight_decay=0.1),
    Entry(step=1, seed=12, g=-0.4, lr=2e-2, weight_decay=0.05),
    Entry(step=1, seed=13, g=0.9, lr=2e-2),
)
"""Two steps, the second with two directions; with and without weight decay."""
PAIRS = (Point(21, EPS), Point(21, -EPS), Point(22, EPS), Point(22, -EPS))


class EngineConformance:
    """Any engine (:class:`~zobench.engine.interface.TunedEngine`). Give :meth:`make`.

    ``noise``: how its directions are made, "torch" or "counter"; what else makes them goes into :meth:`plain`.
    ``tied``: whether its model's head is the word embedding. ``moved``: what directions move. ``has_parts``,
    ``has_tangent``: whether it is a :class:`~zobench.engine.interface.PartedEngine`, and whether it gives a tangent, or
    lacks it or refuses it in one line. ``exact``: whether a probe leaves the weights bit for bit, as counter noise
    does, or up to rounding.
    """

    noise, tied = "counter", True
    has_parts = has_tangent = True
    rel, drift = 2e-5, 2e-6
    """Losses are compared up to this share, weights after float32 updates or MeZO's moves up to this difference."""

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        """An open engine over ``model``, on the meta device, which begins with ``weights``, or an earlier run's
        ``start`` over them."""
        raise NotImplementedError

    def moved(self, name: str) -> bool:
        """Whether directions move this parameter."""
        return True

    def plain(self) -> PlainModel:
        """A plain model with the weights that an engine begins with."""
        return PlainModel(self.noise, self.moved, self.tied)

    @property
    def exact(self) -> bool:
        """Whether a probe leaves every bit of the weights as it was."""
        return not NOISES[self.noise].in_place

    @contextmanager
    def engine(self) -> Iterator[TunedEngine]:
        """An engine at the start of a run, closed at the end."""
        with self.make(skeleton(self.tied), start(self.tied)) as engine:
            yield engine

    # --- losses -------------------------------------------------------------------------------------------------------

    def test_the_loss_of_every_kind_of_batch_is_the_plain_models(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            for name, make in BATCHES.items():
                loss, batch = engine.evaluate(make()), make()
                assert_close([loss], [plain.loss(batch)], self.rel)
                assert engine.probe(batch, [BASE]) == [loss], f"of the batch {name}"

    def test_losses_at_points_are_those_of_weights_moved_by_hand(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            for make in BATCHES.values():
                wanted = plain.losses(make(), [*PAIRS, BASE])
                if plain.direction(PAIRS[0].seed or 0):
                    assert abs(wanted[0] - wanted[1]) > 50 * self.rel * wanted[0], "the two signs must differ"
                assert_close(engine.probe(make(), [*PAIRS, BASE]), wanted, self.rel)

    def test_the_order_of_points_does_not_matter(self) -> None:
        """Bit for bit among pairs, where a probe is exact; within a pair what is drawn and what is flipped changes."""
        for order, rel in (((2, 3, 0, 1), 0.0 if self.exact else self.rel), ((3, 0, 2, 1), self.rel)):
            with self.engine() as engine:
                losses = engine.probe(padded(), PAIRS)
                again = engine.probe(padded(), [PAIRS[n] for n in order])
            assert_close(again, [losses[n] for n in order], rel)

    def test_a_probe_leaves_the_weights_where_they_were(self) -> None:
        with self.engine() as engine:
            before = dict(engine.named_tensors())
            for make in BATCHES.values():
                engine.probe(make(), PAIRS)
            assert_same(dict(engine.named_tensors()), before, 0.0 if self.exact else self.drift)

    def test_a_part_of_the_points_moves_that_part_alone(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            assert isinstance(engine, PartedEngine) == self.has_parts
            if not isinstance(engine, PartedEngine):
                return
            assert engine.parts == plain.parts
            points = [Point(31, 2 * EPS, part) for part in range(engine.parts)]
            assert_close(engine.probe(full(), points), plain.losses(full(), points), self.rel)

    def test_a_tangent_is_the_derivative_along_the_direction(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            if not isinstance(engine, TangentEngine):
                assert not self.has_tangent
                return
            if not self.has_tangent:
                refused(lambda: engine.tangent(full(), 41))
                return
            for make in BATCHES.values():
                loss, slope = engine.tangent(make(), 41)
                wanted = plain.slope(make(), 41)
                assert_close([loss], [plain.loss(make())], self.rel)
                assert abs(slope - wanted) < 1e-3 * max(1.0, abs(wanted)), f"{slope} must be {wanted}"

    def test_scores_are_the_mean_log_probabilities_of_candidates(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            for loss in ("choice", "lm"):
                scores = engine.scores(choosing(loss))
                assert (scores.dtype, scores.device.type, tuple(scores.shape)) == (torch.float32, "cpu", (4,))
                assert_close(scores.tolist(), plain.scores(choosing(loss)).tolist(), self.rel)
            refused(lambda: engine.scores(full()))

    def test_the_next_logits_are_those_of_the_last_position_with_updates_applied(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            for entries in ((), ENTRIES):
                self._step(engine, entries)
                plain.update(entries)
                for make in (full, padded):
                    logits, wanted = engine.next_logits(make()), plain.next_logits(make())
                    assert (logits.dtype, logits.device.type, logits.shape) == (torch.float32, "cpu", wanted.shape)
                    assert_same({"logits": logits}, {"logits": wanted}, 10 * self.drift)

    # --- updates ------------------------------------------------------------------------------------------------------

    def test_updates_are_in_every_weight_that_is_read(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            self._step(engine, ENTRIES)
            plain.update(ENTRIES)
            assert_same(dict(engine.named_tensors()), plain.tensors, self.drift)
            engine.flush()
            assert_same(dict(engine.named_tensors()), plain.tensors, self.drift)

    def test_updates_are_in_the_next_losses_and_scores(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            self._step(engine, ENTRIES)
            plain.update(ENTRIES)
            assert_close(engine.probe(padded(), PAIRS), plain.losses(padded(), PAIRS), self.rel)
            assert_close([engine.evaluate(padded())], [plain.loss(padded())], self.rel)
            assert_close(engine.scores(choosing()).tolist(), plain.scores(choosing()).tolist(), self.rel)

    def test_weight_decay_shrinks_what_it_should_and_spares_biases_and_norms(self) -> None:
        plain, entry = self.plain(), Entry(step=0, seed=5, g=0.0, lr=0.5, weight_decay=0.5)
        with self.engine() as engine:
            before = plain.tensors
            self._step(engine, [entry])
            plain.update([entry])
            after = dict(engine.named_tensors())
            assert_same(after, plain.tensors, self.drift)
            spared = [name for name in before if "bias" in name or "layer_norm" in name]
            assert_same(
                {n: after[n] for n in spared}, {n: before[n] for n in spared}, 0.0 if self.exact else self.drift
            )
            shrunk = [name for name in before if name not in spared and self.moved(name)]
            assert all(not torch.equal(after[name], before[name]) for name in shrunk)

    def test_an_update_of_a_part_moves_that_part_alone(self) -> None:
        plain = self.plain()
        with self.engine() as engine:
            if not isinstance(engine, PartedEngine):
                return
            for part in range(engine.parts):
                entry = Entry(step=part, seed=part, g=1.0, lr=1e-2, weight_decay=0.1, part=part)
                self._step(engine, [entry])
                plain.update([entry])
                assert_same(dict(engine.named_tensors()), plain.tensors, 5 * self.drift)

    def test_what_is_not_finite_is_refused_and_changes_nothing(self) -> None:
        with self.engine() as engine:
            before = dict(engine.named_tensors())
            for g in (float("nan"), float("inf")):
                entry = Entry(step=0, seed=1, g=g, lr=1.0)
                refused(lambda entry=entry: engine.commit([entry]))  # type: ignore[misc]
            assert_same(dict(engine.named_tensors()), before)

    def test_two_engines_that_take_the_same_steps_are_equal_bit_for_bit(self) -> None:
        runs = []
        for _ in range(2):
            with self.engine() as engine:
                method = ZOSGD(lr=1e-3, eps=1e-2, seed=4, weight_decay=0.1)
                steps = [method.step(engine, make()) for make in (full, padded, full)]
                runs.append((steps, dict(engine.named_tensors())))
        assert runs[0][0] == runs[1][0]
        assert_same(runs[0][1], runs[1][1])

    def test_ranks_agree_on_what_they_have_drawn(self) -> None:
        with self.engine() as engine:
            assert engine.shared([3, 1, 2]) == [3, 1, 2]

    # --- saving and closing -------------------------------------------------------------------------------------------

    def test_tensors_are_copies_of_every_parameter_once_under_its_own_name(self) -> None:
        with self.engine() as engine:
            named = list(engine.named_tensors())
            names = [name for name, _ in named]
            assert sorted(names) == sorted(name for name, _ in skeleton(self.tied).named_parameters())
            before = {name: tensor.clone() for name, tensor in named}
            for _, tensor in named:
                assert tensor.device.type == "cpu"
                tensor.fill_(7.0)
            assert_same(dict(engine.named_tensors()), before)
            assert list(engine.state_tensors()) == []

    def test_a_saved_model_holds_the_updated_tensors(self) -> None:
        with self.engine() as engine, tempfile.TemporaryDirectory() as folder:
            self._step(engine, ENTRIES)
            engine.save_pretrained(folder)
            saved: dict[str, Tensor] = {}
            for file in Path(folder).glob("*.safetensors"):
                saved |= load_file(file)
            assert_same(saved, dict(engine.named_tensors()))
            assert (Path(folder) / "config.json").is_file()

    def test_a_closed_engine_is_refused_and_the_model_has_its_own_forwards_again(self) -> None:
        model = skeleton(self.tied)
        engine = self.make(model, start(self.tied))
        with engine as entered:
            assert entered is engine
            engine.evaluate(full())
        assert has_class_forwards(model)
        calls = (
            lambda: engine.probe(full(), [BASE]),
            lambda: engine.commit(ENTRIES),
            lambda: engine.scores(choosing()),
            lambda: list(engine.named_tensors()),
            lambda: engine.__enter__(),
        )
        for call in calls:
            refused(call, RuntimeError)
        engine.close()

    def test_it_says_what_a_measurement_needs_to_know(self) -> None:
        with self.engine() as engine:
            engine.record()
            engine.probe(full(), PAIRS)
            engine.drain()
            events = engine.timeline()
            assert all(0 <= begin <= end for *_, begin, end in events)
            assert [begin for *_, begin, _ in events] == sorted(begin for *_, begin, _ in events)
            assert engine.bytes_at_rest >= 0
            assert "\n" not in engine.tier_note

    def _step(self, engine: TunedEngine, entries: list[Entry] | tuple[Entry, ...]) -> None:
        """Commits the entries of each step after a probe, as a run does; parts are known from the first pass on."""
        for step in sorted({entry.step for entry in entries}):
            engine.probe(full(), PAIRS[:2])
            engine.commit([entry for entry in entries if entry.step == step])


class GradientConformance(EngineConformance):
    """An engine whose :attr:`~zobench.engine.interface.SteppingEngine.gradients` is itself. What directions move, if
    anything, has no gradients."""

    noise = "torch"
    has_parts = has_tangent = False

    def with_gradients(self, engine: TunedEngine) -> GradientEngine:
        """The engine as one that backpropagates."""
        assert engine.gradients is not None
        assert engine.local is None, "a journal does not tell what gradients change"
        return engine.gradients

    def test_a_backward_pass_gives_the_plain_models_loss_and_norm(self) -> None:
        with self.engine() as engine:
            gradients = self.with_gradients(engine)
            for make in BATCHES.values():
                plain = self.plain()
                loss = plain.loss_of(make())
                loss.backward()
                assert_close([gradients.backward(make())], [float(loss.detach())], self.rel)
                assert_close([gradients.gradient_norm()], [self._norm(plain)], 1e-4)
                gradients.discard()
                assert gradients.gradient_norm() == 0.0

    def test_a_power_of_two_on_the_loss_changes_no_gradient(self) -> None:
        with self.engine() as engine:
            gradients = self.with_gradients(engine)
            plain_loss, plain_norm = gradients.backward(full()), gradients.gradient_norm()
            assert (gradients.backward(full(), 2.0**10), gradients.gradient_norm()) == (plain_loss, plain_norm)

    def test_an_update_is_a_step_down_the_gradient_with_decay_where_it_belongs(self) -> None:
        plain, lr, decay = self.plain(), 0.1, 0.2
        plain.loss_of(full()).backward()
        wanted = plain.tensors
        for name, tensor in plain.model.named_parameters():
            if tensor.grad is not None and not self.moved(name):
                spared = any(word in name for word in ("bias", "layer_norm", "layernorm"))
                wanted[name] = wanted[name] - lr * (tensor.grad + (0.0 if spared else decay) * wanted[name])
        with self.engine() as engine:
            gradients = self.with_gradients(engine)
            gradients.backward(full())
            gradients.update("sgd", lr=lr, weight_decay=decay)
            assert_same(dict(engine.named_tensors()), wanted, self.drift)
            assert gradients.gradient_norm() == 0.0, "an update frees the gradients"

    def test_what_directions_move_is_said(self) -> None:
        with self.engine() as engine:
            moved = [name for name in self.plain().tensors if self.moved(name)]
            assert self.with_gradients(engine).moves == bool(moved)
            before = dict(engine.named_tensors())
            engine.commit(ENTRIES)
            after = dict(engine.named_tensors())
            assert [name for name in before if not torch.equal(after[name], before[name])] == moved

    def _norm(self, plain: PlainModel) -> float:
        squares = (
            float(tensor.grad.double().square().sum())
            for name, tensor in plain.model.named_parameters()
            if tensor.grad is not None and not self.moved(name)
        )
        return math.sqrt(sum(squares))
