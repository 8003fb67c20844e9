"""Backpropagation on a resident model: what first-order methods need, beside the surface that they share with Engine.

Of the hybrid of ZO-Bench (section 5) it serves both halves: what comes before a block is moved along directions, as
MeZO does it, and gradients reach no further down than that block.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zobench.data.batch import Batch
from zobench.engine.assemble import check, precision
from zobench.engine.base import BASE, EngineConfig, Entry, Point, transitions
from zobench.engine.core import judged
from zobench.engine.directions import perturb
from zobench.engine.directions.noise import TorchNoise
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.passes.drive import Drive, Driven, adopt_bias, drive_to_head, plain
from zobench.engine.passes.head import Head, Objective
from zobench.engine.passes.loss import averaged, counted, on_cpu
from zobench.engine.passes.packing import Packer
from zobench.engine.transfers.schedule import Event
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.models import blocks as find_blocks
from zobench.models.checkpoint import persistent_buffers
from zobench.models.weights import Weights, materialise
from zobench.runspec.kinds import NOISES

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}
"""torch's optimizers by name; the decay of "adam" is decoupled."""
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
"""The names that torch gives to the state of its Adam."""

State = Mapping[str, Mapping[str, Any]]
"""A parameter's name -> torch's name -> state."""


class Backprop:
    """One resident model under first-order fine-tuning, without dropout, as MeZO's runs are.

    ``model``, ``weights`` and ``drive`` are those of :class:`~zobench.engine.Engine`; of ``config``, device, autocast
    and logits_bytes count. ``state`` holds what :meth:`state_tensors` gave, to go on with. ``checkpointing`` keeps only
    the blocks' inputs for the backward pass and computes the rest again. The first ``zo_layers`` blocks and what comes
    before them get no gradients: :meth:`probe` and :meth:`commit` move their trainable tensors, by torch's noise over
    these alone. A tied table comes before the blocks.
    """

    def __init__(
        self, model: nn.Module, config: EngineConfig, *, weights: Weights | None = None, state: Weights | None = None,
        drive: Drive = plain, checkpointing: bool = False, zo_layers: int = 0,
    ) -> None:  # fmt: skip
        _check(model, config, weights, zo_layers)
        self.model, self.config = model.eval(), config
        self._drive, self._packer = drive, Packer(model, config, drive)
        self._give_back_bias = adopt_bias(model)
        self._optimizer: torch.optim.Optimizer | None = None
        self._closed = False
        self._put_on_device(model, weights)
        self._head = Head(model.get_output_embeddings(), config.logits_bytes)  # type: ignore[operator]
        trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        below = self._below(zo_layers) if zo_layers else set()
        self._lower = {name: tensor for name, tensor in trainable.items() if tensor in below}
        self._upper = {name: tensor for name, tensor in trainable.items() if tensor not in below}
        self._state = adam_state(state, self._upper) if state is not None else {}
        for tensor in self._lower.values():
            tensor.requires_grad_(False)
        layout = [[(tensor.shape, tensor.dtype) for tensor in self._lower.values()]]
        self._noise, self._at = TorchNoise(layout, config.device), BASE
        self._checkpointed = list(find_blocks(model))[zo_layers:] if checkpointing else []
        for block in self._checkpointed:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)

    # --- gradients ----------------------------------------------------------------------------------------------------

    def backward(self, batch: Batch, scale: float = 1.0) -> float:
        """The batch's mean loss, a float32 value; leaves its gradients with the tensors that have any.

        ``scale``: a power of two that the loss is multiplied by on its way down, so that small gradients survive fp16.
        """
        return self._descend(batch, scale)

    def gradient_norm(self) -> float:
        """The Euclidean norm of all gradients, of which it is finite only if all of them are; 0 without any."""
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in self._gradients()]
        return float(on_cpu(torch.linalg.vector_norm(torch.stack(norms)))) if norms else 0.0

    def update(self, optimizer: str, *, lr: float, weight_decay: float = 0.0, foreach: bool = True) -> None:
        """One step of an optimizer by the gradients, which are freed; weight decay skips what MeZO's does.

        ``optimizer`` ("sgd" or "adam") and ``foreach`` stay what they are at the first call.
        """
        self._open()
        if self._optimizer is None and self._upper:
            self._optimizer = make_optimizer(optimizer, self._upper, foreach, self._state)
        self._state = {}
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"], group["weight_decay"] = lr, weight_decay if group["decayed"] else 0.0
            self._optimizer.step()
        self.discard()

    def discard(self) -> None:
        """Frees the gradients."""
        for tensor in self._upper.values():
            tensor.grad = None

    # --- zeroth order below -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def probe(self, batch: Batch, points: Sequence[Point]) -> list[float]:
        """The batch's mean loss at each point; of the weights, what is below ``zo_layers`` moves, and back again up to
        the rounding of MeZO's +eps, -2 eps, +eps."""
        self._open()
        losses = []
        for point in points:
            self._move(point)
            losses += averaged(self.model, batch, self.config.accumulate, self._value_of)
        self._move(BASE)
        self._noise.keep(())
        return losses

    @torch.no_grad()
    def commit(self, entries: Sequence[Entry]) -> None:
        """Updates what is below ``zo_layers``, at once."""
        self._open()
        tensors, decayed = list(self._lower.values()), [is_decayed(name) for name in self._lower]
        for entry in entries:
            entry.check(parts=0)
            perturb.update(self._noise, entry, 0, tensors, decayed)
        self._noise.keep(())

    @property
    def moves(self) -> bool:
        """Whether there is anything that :meth:`probe` and :meth:`commit` move."""
        return bool(self._lower)

    # --- looking and saving -------------------------------------------------------------------------------------------

    def shared(self, values: Sequence[int]) -> list[int]:
        """See :meth:`zobench.engine.Engine.shared`: this engine is always one device's."""
        return list(values)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """The batch's mean loss."""
        self._open()
        return self._value_of(batch)[0]

    @torch.no_grad()
    def scores(self, batch: Batch) -> Tensor:
        """The score of each of the batch's candidates, float32 (c,) on the CPU."""
        self._open()
        batch, drive = self._packer.driven(batch)
        objective = self._objective(batch, scored=True)
        with precision(self.config):
            return objective.scores(self._reduced(batch, drive, objective)).cpu()

    @torch.no_grad()
    def next_logits(self, batch: Batch) -> Tensor:
        """See :meth:`zobench.engine.Engine.next_logits`."""
        self._open()
        with precision(self.config):
            driven = self._driven(batch, self._drive)
            logits = driven.logits(self._head.module(driven.states[:, -1]))
        return logits.float().cpu()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, CPU copy) of every parameter, tied ones once, and of every buffer that a checkpoint holds."""
        self._open()
        for name, tensor in (*self.model.named_parameters(), *persistent_buffers(self.model)):
            yield name, tensor.detach().cpu().clone()

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter#state, CPU copy) of the optimizer's state, so far or as torch would begin: "#exp_avg" and
        "#exp_avg_sq" of the parameter's shape, "#step" of shape (1,)."""
        self._open()
        state = self._state
        if self._optimizer is not None and any(self._optimizer.state.values()):
            states = self._optimizer.state
            state = {name: states.get(tensor) or _first_state(tensor) for name, tensor in self._upper.items()}
        for name, values in state.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    yield f"{name}#{key}", value.detach().cpu().clone().reshape(value.shape or (1,))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a Hugging Face checkpoint: config, safetensors shards and their index."""
        save_checkpoint(self.model, self.named_tensors(), Path(folder))

    # --- what other engines are asked too -----------------------------------------------------------------------------

    bytes_at_rest = 0
    tier_note = ""
    local = None

    @property
    def gradients(self) -> Backprop:
        """This engine."""
        return self

    def flush(self) -> None:
        """Nothing is ever pending, nor transferred, and there are no lanes."""

    drain = record = flush

    def timeline(self) -> list[Event]:
        """There are no lanes."""
        return []

    def close(self) -> None:
        """Frees gradients and state; the model's forward and what it trains are its own again."""
        if not self._closed:
            self._closed = True
            self._give_back_bias()
            self.discard()
            self._optimizer, self._state = None, {}
            for block in self._checkpointed:
                del block.forward
            for tensor in self._lower.values():
                tensor.requires_grad_(True)

    def __enter__(self) -> Backprop:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _put_on_device(self, model: nn.Module, weights: Weights | None) -> None:
        """Puts the weights on the device."""
        if weights is None:
            model.to(self.config.device)
        else:
            materialise(model, weights, self.config.device)  # type: ignore[arg-type]

    def _descend(self, batch: Batch, scale: float, share: float = 1.0) -> float:
        """See :meth:`backward`; the gradients are ``share`` times those of the batch's mean loss."""
        self._open()
        self.discard()
        total = counted(self.model, batch) if self.config.accumulate > 1 else 1

        def backpropagated(part: Batch) -> list[float]:
            weight = counted(self.model, part) / max(1, total) if self.config.accumulate > 1 else 1.0
            with precision(self.config):
                loss = self._loss(part)
            if loss.requires_grad and weight:
                counting = loss if share else loss.nan_to_num(0.0)  # a mean of nothing, which ranks go through together
                (counting * (scale * weight * share)).backward()
            return [float(on_cpu(loss.detach()))]

        with torch.enable_grad():
            [loss] = averaged(self.model, batch, self.config.accumulate, backpropagated)
        if scale != 1.0:
            for gradient in self._gradients():
                gradient.mul_(1 / scale)
        return loss

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine must be open, but was closed; build a new one")

    def _driven(self, batch: Batch, drive: Drive) -> Driven:
        mask = None if batch.attention_mask is None else batch.attention_mask.to(self.config.device)
        return drive_to_head(drive, self.model, batch.input_ids.to(self.config.device), mask)

    def _objective(self, batch: Batch, scored: bool = False) -> Objective:
        return Objective(self.model, batch, self.config.device, scored=scored, judged_on=self.config.device)

    def _reduced(self, batch: Batch, drive: Drive, objective: Objective) -> Tensor:
        driven = self._driven(batch, drive)
        (states,) = objective.states([driven.states])
        return objective.reduced(replace(self._head, notes=driven.notes).picked(states, objective.targets))

    def _loss(self, batch: Batch) -> Tensor:
        batch, drive = self._packer.driven(batch)
        objective = self._objective(batch)
        return objective.loss(self._reduced(batch, drive, objective))

    def _value_of(self, batch: Batch) -> list[float]:
        with precision(self.config):
            return [float(on_cpu(self._loss(batch)))]

    def _gradients(self) -> list[Tensor]:
        return [tensor.grad for tensor in self._upper.values() if tensor.grad is not None]

    def _move(self, point: Point) -> None:
        for seed, delta in transitions(self._at, point):
            perturb.move(self._noise, seed, 0, list(self._lower.values()), delta)
        self._at = point

    def _below(self, count: int) -> set[nn.Parameter]:
        """The parameters of the first ``count`` blocks and of what a forward, here of two tokens, calls before them."""
        blocks = list(find_blocks(self.model))
        below = {tensor for block in blocks[:count] for tensor in block.parameters()}
        inside = {id(module) for block in blocks for module in block.modules()}
        entered = list[nn.Module]()
        modules = [module for module in self.model.modules() if id(module) not in inside] + blocks[:1]
        hooks = [module.register_forward_pre_hook(lambda module, _: entered.append(module)) for module in modules]
        try:
            with torch.no_grad():
                self._drive(self.model, torch.zeros(1, 2, dtype=torch.long, device=self.config.device), None)
        finally:
            for hook in hooks:
                hook.remove()
        before = entered[: entered.index(blocks[0])]
        return below | {tensor for module in before for tensor in module.parameters(recurse=False)}


def _check(model: nn.Module, config: EngineConfig, weights: Weights | None, zo_layers: int) -> None:
    """Refuses what would fail later, or be wrong."""
    check(model, config, weights)
    judged(model, config)
    if config.streams or not NOISES[config.noise].in_place or NOISES[config.noise].is_stored:
        raise ValueError(
            f"backpropagation needs placement=resident and noise=torch, but got placement={config.placement}, "
            f"noise={config.noise}; its layers are needed all at once; use both"
        )
    layers = len(find_blocks(model))
    if not 0 <= zo_layers <= layers:
        raise ValueError(
            f"`0 <= zo_layers <= {layers}` must hold for this model, but got zo_layers={zo_layers}; "
            f"use at most its {layers} blocks"
        )


def make_optimizer(
    name: str, parameters: Mapping[str, nn.Parameter], foreach: bool, state: State
) -> torch.optim.Optimizer:
    """The optimizer of that name; that of "adam" goes on with ``state`` where there is any.

    ``foreach``: many tensors per kernel, at the price of temporary memory of their size.
    """
    groups: list[dict[str, Any]] = [
        {"params": [tensor for key, tensor in parameters.items() if is_decayed(key) is decayed], "decayed": decayed}
        for decayed in (True, False)
    ]
    optimizer: torch.optim.Optimizer = OPTIMIZERS[name](
        [group for group in groups if group["params"]], lr=0.0, foreach=foreach
    )
    if name == "adam" and state:
        for key, tensor in parameters.items():
            optimizer.state[tensor] = dict(state[key])
    return optimizer


def _first_state(tensor: Tensor) -> dict[str, Tensor]:
    """The state of Adam before a parameter's first gradient."""
    return dict(zip(ADAM_STATE, (torch.zeros(()), torch.zeros_like(tensor), torch.zeros_like(tensor)), strict=True))


def adam_state(source: Weights, parameters: Mapping[str, nn.Parameter]) -> State:
    """The state that :meth:`Backprop.state_tensors` gave, beside its parameters."""
    state = {name: _first_state(tensor) for name, tensor in parameters.items()}
    for name, values in state.items():
        for key, value in values.items():
            source.fill(f"{name}#{key}", value.view(value.shape or (1,)))
    return state
