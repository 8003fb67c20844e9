"""The derivative of the loss along a direction, by forward-mode differentiation in one pass over the model.

Every tensor of the pass carries its tangent with it (ZO-Bench section 3: Forward-Grad; Baydin et al., 2022). Nothing is
kept for a backward pass, so that a unit's weights and their direction are needed no longer than its turn lasts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.dlpack import from_dlpack

from zobench.data.batch import Batch, Choices
from zobench.engine.arithmetic import Pristine
from zobench.engine.assemble import precision
from zobench.engine.base import BASE, Point
from zobench.engine.blocks import Unit
from zobench.engine.general import General
from zobench.engine.loss import (
    choice_loss,
    head_states,
    log_probabilities,
    mean_loss,
    only_right,
    rows_per_chunk,
    targets_of,
)
from zobench.kernels import Span

if TYPE_CHECKING:
    from zobench.engine.core import Engine


def derivative(engine: Engine, batch: Batch, seed: int) -> tuple[float, float]:
    """See :meth:`zobench.engine.Engine.tangent`, whose pass this is."""
    if engine.config.granularity != "block":
        raise ValueError(
            "a forward derivative needs granularity=block, because whole modules are differentiated, but got "
            f"granularity={engine.config.granularity}; use granularity=block"
        )
    device, choices = engine.config.device, batch.choices
    if choices is not None:
        choices = only_right(choices.to("cpu")) if choices.loss == "lm" else choices.to("cpu")
    ids, mask = batch.input_ids.to(device), batch.attention_mask
    engine.forwards.begin((Point(seed),), len(ids))
    engine.forget()
    engine.failed = True  # until it is through: half a pass may have applied half of an update
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # which would drop tangents without a word
        stack.enter_context(torch.no_grad())
        stack.enter_context(forward_ad.dual_level())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fused kernels have no forward derivative
        stack.enter_context(_WideNorms())
        stack.enter_context(precision(engine.config))
        stack.enter_context(_replaced(engine, seed))
        hidden = engine.drive(engine.model, ids, None if mask is None else mask.to(device))
        loss, slope = forward_ad.unpack_dual(_loss(engine, seed, hidden, batch, choices))
        result = _value(loss), 0.0 if slope is None else _value(slope)
    engine.passes += 1
    engine.failed = False
    return result


class _WideNorms(TorchFunctionMode):
    """Inside, layer norms of fp16 run in fp32: their derivative holds 1/std cubed, which soon is more than fp16 can."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.layer_norm or args[0].dtype != torch.float16:
            return func(*args, **kwargs)
        wide: dict[str, Any] = {key: item.float() if isinstance(item, Tensor) else item for key, item in kwargs.items()}
        return func(args[0].float(), *args[1:], **wide).half()


@contextmanager
def _replaced(engine: Engine, seed: int) -> Iterator[None]:
    """Inside, the modules that use units run once, on weights with tangents."""
    folded = [(module, module.forward) for module, _ in engine.forwards.uses]
    for module, units in engine.forwards.uses:
        own = functools.partial(type(module).forward, module)
        module.forward = functools.partial(_turn, engine, seed, units, own)
    try:
        yield
    finally:
        for module, forward in folded:
            module.forward = forward


def _turn(engine: Engine, seed: int, units: Sequence[Unit], forward: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """A module's own forward while its units are on the device with their tangents."""
    output: list[Any] = []

    def run() -> None:
        for unit in units:
            _bind(engine, seed, unit)
        output.append(forward(*args, **kw))
        for unit in units:
            _release(engine, unit)

    engine.run(units[0], run)
    return output[0]


def _loss(engine: Engine, seed: int, hidden: Tensor, batch: Batch, choices: Choices | None) -> Tensor:
    """The batch's mean loss from its hidden states; the head is the last use of its units."""
    device, head = hidden.device, engine.forwards.head
    rows = rows_per_chunk(cast("int", head.out_features), engine.config.logits_bytes)
    if choices is None:
        states, targets = hidden.reshape(-1, hidden.shape[-1]), targets_of(engine.model, batch.labels.to(device))
    else:
        places = choices.places.to(device)
        states, targets = hidden[places[:, 0], places[:, 1]], choices.tokens.to(device)
    states = head_states(engine.model, states)
    for unit in engine.forwards.head_units:
        _bind(engine, seed, unit)
    picked = log_probabilities(head, states, targets, rows)
    for unit in engine.forwards.head_units:
        _release(engine, unit)
    return mean_loss(picked, targets) if choices is None else choice_loss(picked.cpu(), choices)


def _bind(engine: Engine, seed: int, unit: Unit) -> None:
    """Makes the model use the unit's weights, every update applied, and z(seed) as the tangents of what is trained."""
    engine.touch(unit)
    directions = [torch.empty(item.shape, dtype=item.dtype, device=engine.config.device) for item in unit.trainable]
    with torch.inference_mode():  # as all weights are made and moved
        tensors = _weights(engine, unit)
        unit.bind(tensors)
        _draw(engine, seed, unit, directions)
    tangents = iter(directions)
    for item, tensor in zip(unit.fields, tensors, strict=True):
        if item.trainable:
            dual = forward_ad.make_dual(_alias(tensor), next(tangents))
            for module, attribute in item.homes:
                module._parameters[attribute] = cast("nn.Parameter", dual)  # a real one would drop the tangent


@torch.inference_mode()
def _release(engine: Engine, unit: Unit) -> None:
    """Ends the unit's turn; what stays on the device is bound as it was, without tangents."""
    engine.arithmetic.rest(unit)
    if unit.streamed:
        unit.release()
    else:
        assert unit.buffer is not None
        unit.bind(unit.views(unit.buffer))


def _weights(engine: Engine, unit: Unit) -> list[Tensor]:
    arithmetic = engine.arithmetic
    if unit.streamed or not isinstance(arithmetic, Pristine):
        return arithmetic.at(unit, BASE)
    if arithmetic.is_due(unit):
        arithmetic.settle(unit)
    return unit.views(engine.current(unit))  # a table is larger than that arithmetic's own buffers


def _draw(engine: Engine, seed: int, unit: Unit, directions: Sequence[Tensor]) -> None:
    """Fills the directions of the unit's trainable tensors, the very numbers that a probe and an update use."""
    if not isinstance(engine.arithmetic, Pristine):
        for _, _, piece, z in engine.noise.draw(seed, unit.index, directions):
            piece.copy_(z)
        return
    general = General(None, engine.thresholds)
    for item, direction in zip(unit.trainable, directions, strict=True):
        z = direction if direction.dtype == torch.float32 else torch.empty_like(direction, dtype=torch.float32)
        general.direction(seed, Span(item.tensor_id, item.start), z)
        direction.copy_(z)


def _alias(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor: one that was made in inference mode cannot have a tangent.

    With a storage of its own: a tangent is copied into one as large as its tensor's, which here is the whole unit's.
    """
    if not tensor.is_meta:
        return from_dlpack(tensor)
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _value(scalar: Tensor) -> float:
    return math.nan if scalar.is_meta else float(scalar)
