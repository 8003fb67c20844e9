"""Units of weights: each transformer block, and each other module that owns parameters, as views into one flat buffer.

A unit is what is perturbed, updated and moved as one. Tied parameters belong to the unit that comes first in
``named_parameters()`` and appear in it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from zobench.engine.base import BASE, Point
from zobench.engine.perturb import is_decayed
from zobench.weights import Weights

ALIGNMENT = 64
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a unit. ``homes``: every (module, attribute) where the model uses it; more than one if tied."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    offset: int
    is_parameter: bool
    trainable: bool
    homes: tuple[tuple[nn.Module, str], ...]

    def view(self, buffer: Tensor) -> Tensor:
        """This tensor inside a flat uint8 buffer of its unit."""
        nbytes = self.shape.numel() * self.dtype.itemsize
        return buffer[self.offset : self.offset + nbytes].view(self.dtype).view(self.shape)


@dataclass(eq=False, slots=True)
class Unit:
    """Weights that move together, with what has been done to them: ``at`` which point, ``applied`` how many entries."""

    name: str
    module: nn.Module
    fields: tuple[Field, ...]
    nbytes: int
    index: int = -1
    buffer: Tensor | None = None
    at: Point = BASE
    applied: int = 0
    dirty: bool = False
    decayed: list[bool] = field(default_factory=list)

    def bind(self, buffer: Tensor) -> None:
        """Makes the model use the weights in ``buffer`` (uint8, at least ``nbytes`` long)."""
        self.buffer = buffer
        for item in self.fields:
            _assign(item, item.view(buffer))

    def release(self) -> None:
        """Takes the weights away again: the model keeps tensors without storage, of the right shape."""
        self.buffer = None
        for item in self.fields:
            if item.is_parameter:
                _assign(item, torch.empty(item.shape, dtype=item.dtype, device="meta"))

    def filler(self, weights: Weights) -> Callable[[Tensor], None]:
        """Writes the initial values into a buffer: parameters from ``weights``, buffers from the model as it is."""

        def write(buffer: Tensor) -> None:
            for item in self.fields:
                if item.is_parameter:
                    weights.fill(item.name, item.view(buffer))
                else:
                    module, attribute = item.homes[0]
                    item.view(buffer).copy_(module.get_buffer(attribute))

        return write

    def tensors(self) -> list[Tensor]:
        """The trainable tensors, in stream order."""
        assert self.buffer is not None, f"{self.name} is not bound"
        return [item.view(self.buffer) for item in self.fields if item.trainable]

    def named(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(name, view) of all parameters inside ``buffer``."""
        return ((item.name, item.view(buffer)) for item in self.fields if item.is_parameter)


def _assign(item: Field, tensor: Tensor) -> None:
    if item.is_parameter:
        parameter = nn.Parameter(tensor, requires_grad=False)
        for module, attribute in item.homes:
            module._parameters[attribute] = parameter
    else:
        for module, attribute in item.homes:
            module._buffers[attribute] = tensor


def find_units(model: nn.Module, blocks: Sequence[nn.Module]) -> tuple[list[Unit], list[Unit]]:
    """(units of the blocks in call order, units outside the blocks), with ``index`` their place in the noise stream.

    Raises ``ValueError`` if two blocks share a parameter.
    """
    homes: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                homes.setdefault(id(parameter), []).append((module, attribute))
    of_block = {id(module): block for block in blocks for module in block.modules()}
    members: dict[int, list[Field]] = {}
    owners: dict[int, nn.Module] = {}
    for name, parameter in model.named_parameters():
        places = tuple(homes[id(parameter)])
        users = {id(of_block.get(id(module))) for module, _ in places}
        if len(users) > 1:
            raise ValueError(f"a block must not share parameters, but {name} has {len(places)} homes; untie it")
        owner = of_block.get(id(places[0][0]), places[0][0])
        owners[id(owner)] = owner
        item = Field(name, parameter.shape, parameter.dtype, 0, True, parameter.requires_grad, places)
        members.setdefault(id(owner), []).append(item)
    for block in blocks:
        for name, buffer in block.named_buffers():
            parent, _, attribute = name.rpartition(".")
            places = ((block.get_submodule(parent), attribute),)
            members[id(block)].append(Field(name, buffer.shape, buffer.dtype, 0, False, False, places))
    names = {id(module): name for name, module in model.named_modules()}
    units = [_unit(names[key], owners[key], items) for key, items in members.items()]
    for index, unit in enumerate(units):
        unit.index = index
    by_owner = {id(unit.module): unit for unit in units}
    of_blocks = [by_owner[id(block)] for block in blocks]
    chosen = set(map(id, of_blocks))
    return of_blocks, [unit for unit in units if id(unit) not in chosen]


def _unit(name: str, owner: nn.Module, items: Sequence[Field]) -> Unit:
    placed, offset = [], 0
    for item in items:
        placed.append(Field(item.name, item.shape, item.dtype, offset, item.is_parameter, item.trainable, item.homes))
        offset += -(-item.shape.numel() * item.dtype.itemsize // ALIGNMENT) * ALIGNMENT
    unit = Unit(name or "model", owner, tuple(placed), -(-offset // PAGE) * PAGE)
    unit.decayed = [is_decayed(item.name) for item in placed if item.trainable]
    return unit


def stream_layout(units: Sequence[Unit]) -> list[list[tuple[torch.Size, torch.dtype]]]:
    """What :class:`~zobench.engine.noise.TorchNoise` needs to know of all units, by their index."""
    ordered = sorted(units, key=lambda unit: unit.index)
    return [[(item.shape, item.dtype) for item in unit.fields if item.trainable] for unit in ordered]


def move_buffers(model: nn.Module, blocks: Sequence[nn.Module], device: str) -> None:
    """Buffers outside the blocks (rotary frequencies) go to the device; those inside travel with their block."""
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
