"""What an engine must do that backpropagates: gradients as plain torch has them, and updates by them."""

from __future__ import annotations

import math

import torch

from zobench.engine.interface import GradientEngine, TunedEngine
from zobench.testing.engine import ENTRIES, EngineConformance
from zobench.testing.plain import BATCHES, PlainModel, full
from zobench.testing.suite import assert_close, assert_same


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
