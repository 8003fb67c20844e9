"""The derivative of the loss along a direction, by forward-mode differentiation in one pass over the model.

Every tensor of the pass carries its tangent with it (ZO-Bench section 3: Forward-Grad; Baydin et al., 2022). Nothing is
kept for a backward pass, so that a unit's weights and their direction are needed no longer than its turn lasts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.dlpack import from_dlpack

from zobench.data.batch import Batch
from zobench.engine.base import EngineConfig
from zobench.engine.passes.drive import Drive, Driven, drive_to_head
from zobench.engine.passes.forwards import Forwards
from zobench.engine.passes.head import Objective
from zobench.engine.passes.loss import on_cpu
from zobench.engine.weights.blocks import Unit
from zobench.runspec.kinds import GRANULARITIES


def check(config: EngineConfig) -> None:
    """Raises ``ValueError`` where modules do not run whole."""
    if not GRANULARITIES[config.granularity].is_block:
        raise ValueError(
            "a forward derivative needs granularity=block, because whole modules are differentiated, but got "
            f"granularity={config.granularity}; use granularity=block"
        )


def derivative(forwards: Forwards, drive: Drive, batch: Batch, objective: Objective, seed: int) -> tuple[float, float]:
    """See :meth:`zobench.engine.Engine.tangent`: what happens within its pass, which has begun."""
    device = forwards.config.device
    ids, mask = batch.input_ids.to(device), batch.attention_mask
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # which would drop tangents without a word
        stack.enter_context(torch.no_grad())
        stack.enter_context(forward_ad.dual_level())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fused kernels have no forward derivative
        stack.enter_context(_WideNorms())
        stack.enter_context(_replaced(forwards, seed))
        driven = drive_to_head(drive, forwards.model, ids, None if mask is None else mask.to(device))
        loss, slope = forward_ad.unpack_dual(_loss(forwards, seed, driven, objective))
        return float(on_cpu(loss)), 0.0 if slope is None else float(on_cpu(slope))


class _WideNorms(TorchFunctionMode):
    """Inside, layer norms of fp16 run in fp32: their derivative holds 1/std cubed, which soon is more than fp16 can."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.layer_norm or args[0].dtype != torch.float16:
            return func(*args, **kwargs)
        wide: dict[str, Any] = {key: item.float() if isinstance(item, Tensor) else item for key, item in kwargs.items()}
        return func(args[0].float(), *args[1:], **wide).half()


@contextmanager
def _replaced(forwards: Forwards, seed: int) -> Iterator[None]:
    """Inside, the modules that use units run once, on weights with tangents."""
    folded = [(module, module.forward) for module, _ in forwards.uses]
    for module, units in forwards.uses:
        plain_forward = functools.partial(type(module).forward, module)
        module.forward = functools.partial(_turn, forwards, seed, units, plain_forward)
    try:
        yield
    finally:
        for module, forward in folded:
            module.forward = forward


def _turn(
    forwards: Forwards, seed: int, units: Sequence[Unit], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A module's own forward while its units are on the device with their tangents."""

    def turn() -> Any:
        for unit in units:
            _bind(forwards, seed, unit)
        output = forward(*args, **kwargs)
        for unit in units:
            _release(forwards, unit)
        return output

    return forwards.while_on_device(units[0], turn)


def _loss(forwards: Forwards, seed: int, driven: Driven, objective: Objective) -> Tensor:
    """The batch's mean loss from what its head multiplies; the head is the last use of its units."""
    (states,) = objective.states([driven.states])
    head = replace(forwards.head, notes=driven.notes)
    for unit in forwards.head.units:
        _bind(forwards, seed, unit)
    reduced = objective.reduced(head.picked(states, objective.targets))
    for unit in forwards.head.units:
        _release(forwards, unit)
    return objective.loss(reduced if objective.choices is None else reduced.cpu())


def _bind(forwards: Forwards, seed: int, unit: Unit) -> None:
    """Makes the model use the unit's weights, every update applied, and z(seed) as the tangents of what is trained."""
    forwards.touch(unit)
    device = forwards.config.device
    directions = [torch.empty(item.shape, dtype=item.dtype, device=device) for item in unit.trainable]
    with torch.inference_mode():  # as all weights are made and moved
        tensors = forwards.arithmetic.whole(unit)
        unit.bind(tensors)
        forwards.arithmetic.direction(seed, unit, directions)
    tangents = iter(directions)
    for item, tensor in zip(unit.fields, tensors, strict=True):
        if item.trainable:
            dual = forward_ad.make_dual(_alias(tensor), next(tangents))
            for module, attribute in item.homes:
                module._parameters[attribute] = cast("nn.Parameter", dual)  # a real one would drop the tangent


@torch.inference_mode()
def _release(forwards: Forwards, unit: Unit) -> None:
    """Ends the unit's turn; what stays on the device is bound as it was, without tangents."""
    forwards.arithmetic.finish(unit)
    if unit.streamed:
        unit.release()
    else:
        assert unit.buffer is not None
        unit.bind(unit.views(unit.buffer))


def _alias(tensor: Tensor) -> Tensor:
    """A tensor's memory as an ordinary tensor: one that was made in inference mode cannot have a tangent.

    With a storage of its own: a tangent is copied into one as large as its tensor's, which here is the whole unit's.
    """
    if not tensor.is_meta:
        return from_dlpack(tensor)
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
