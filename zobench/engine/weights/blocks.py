"""Units of weights: what is perturbed, updated and moved as one, as views into one flat buffer.

A unit is a transformer block, a linear layer of one, or a tile of its rows; and each other module that owns parameters.
Tied parameters belong to the unit that comes first in ``named_parameters()`` and appear in it once.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zobench.engine.base import BASE, TILE_BYTES, Entry, Point
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.updates.rules import UpdateRule
from zobench.machine.directio import round_up
from zobench.models.weights import Weights

ALIGNMENT = 64
PAGE = 4096


class Memory(Protocol):
    """A unit's bytes on the device: ``memory[first:last]`` is a uint8 tensor of those of one of its tensors."""

    def __getitem__(self, span: slice, /) -> Tensor: ...


class Pieces:
    """Memory of a unit whose tensors have an allocation each: ``parts`` are (first byte, uint8 tensor), in order."""

    def __init__(self, parts: Sequence[tuple[int, Tensor]]) -> None:
        self.parts = parts
        self._firsts = [first for first, _ in parts]

    def __getitem__(self, span: slice, /) -> Tensor:
        first, piece = self.parts[bisect.bisect_right(self._firsts, span.start) - 1]
        return piece[span.start - first : span.stop - first]

    def clone(self) -> Pieces:
        """A copy of all of them."""
        return Pieces([(first, piece.clone()) for first, piece in self.parts])


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a unit, or some of its rows. ``homes``: every (module, attribute) where the model uses it.

    ``tensor_id``: the tensor's place in ``named_parameters()``; ``whole``: its shape, where only the rows from
    ``first`` on are here. The ``state`` of a rule, named so, belongs to the parameter of the same ``tensor_id``, has
    its shape, and no home; it begins as ``initial``.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    offset: int
    is_parameter: bool
    trainable: bool
    homes: tuple[tuple[nn.Module, str], ...]
    tensor_id: int = -1
    first: int = 0
    whole: torch.Size | None = None
    state: str = ""
    initial: float = 0.0

    @property
    def key(self) -> str:
        """The tensor's name among all tensors of a run: the parameter's, or ``parameter#state``."""
        return f"{self.name}#{self.state}" if self.state else self.name

    @property
    def is_kept(self) -> bool:
        """Whether a checkpoint holds the tensor: a parameter, or a buffer that is persistent."""
        return self.is_parameter or all(key not in module._non_persistent_buffers_set for module, key in self.homes)

    @property
    def is_part(self) -> bool:
        """Whether only some of the tensor's rows are here."""
        return self.whole is not None

    @property
    def start(self) -> int:
        """The flat index of the first element here within the whole tensor."""
        return self.first * self.shape[1:].numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor here."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def is_factor(self) -> bool:
        """Whether the model uses it as the matrix of linear layers alone, so that autocast casts it at each use."""
        is_used = all(type(module) is nn.Linear and attribute == "weight" for module, attribute in self.homes)
        return self.is_parameter and self.dtype == torch.float32 and is_used

    def halves(self, buffer: Memory, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Two tensors of its shape in a ``dtype`` of 16 bits, in the place of this one of 32, as the model takes
        them."""
        first, second = buffer[self.offset : self.offset + self.nbytes].view(dtype).view(2, *self.shape)
        return self.typed(first), self.typed(second)

    def view(self, buffer: Memory) -> Tensor:
        """This tensor inside the memory of its unit."""
        return buffer[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)

    def bound(self, buffer: Memory) -> Tensor:
        """This tensor inside the memory of its unit, as the model takes it: a parameter where it is one."""
        return self.typed(self.view(buffer))

    def typed(self, tensor: Tensor) -> Tensor:
        """A tensor of this one's values, as the model takes it."""
        if not self.is_parameter or isinstance(tensor, nn.Parameter):
            return tensor
        return nn.Parameter(tensor, requires_grad=False)


@dataclass(eq=False, slots=True)
class Unit:
    """Weights that move together, with what has been done to them: ``at`` which point, ``applied`` how many entries.

    ``buffer``: where its weights are on the device now; None while they are in their tier. A ``streamed`` unit's buffer
    is a slot, in the format of the wire, and ``dirty`` says that the slot must be written back. What is trained comes
    first in a buffer: it ends at byte ``trained``, and with its state at byte ``kept``, the part that a step changes.
    ``part``: of the model's parts that a point can name; -1 until the first probe has found out. ``changed``: whether
    its weights at rest may differ from those that the run began with. ``nothing``: what its parameters are while they
    are away; ``bound``: what the model uses now, and ``homes`` where: the modules' own tables of tensors, for each
    field the places in them.
    """

    name: str
    module: nn.Module
    fields: tuple[Field, ...]
    states: tuple[Field, ...]
    nbytes: int
    index: int = -1
    buffer: Tensor | Pieces | None = None
    streamed: bool = False
    at: Point = BASE
    applied: int = 0
    dirty: bool = False
    changed: bool = False
    decayed: list[bool] = field(default_factory=list)
    trained: int = 0
    kept: int = 0
    part: int = -1
    nothing: list[Tensor] = field(default_factory=list)
    bound: Sequence[Tensor] | None = None
    homes: list[tuple[int, dict[str, Any], str]] = field(default_factory=list)

    @property
    def trainable(self) -> list[Field]:
        """The fields that are perturbed and updated, in stream order."""
        return [item for item in self.fields if item.trainable]

    @property
    def is_tile(self) -> bool:
        """Whether it holds only some rows of its tensors."""
        return any(item.is_part for item in self.fields)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The bytes of each tensor and state, with what pads them to the next: (first, the one after the last)."""
        firsts = sorted({item.offset for item in (*self.fields, *self.states) if item.nbytes} | {0})
        return list(itertools.pairwise([*firsts, self.nbytes]))

    def states_of(self, item: Field, buffer: Memory) -> list[Tensor]:
        """The states of one of its trainable fields inside a buffer, in the rule's order."""
        return [state.view(buffer) for state in self.states if state.tensor_id == item.tensor_id]

    def target(self, point: Point) -> Point:
        """Where this unit goes when the model goes to ``point``: nowhere, if that moves another part."""
        return point if point.part is None or point.part == self.part else BASE

    def moves(self, entry: Entry) -> bool:
        """Whether an update is one of this unit."""
        return entry.part is None or entry.part == self.part

    def views(self, buffer: Memory) -> list[Tensor]:
        """The unit's tensors inside its memory, in the order of ``fields``."""
        return [item.view(buffer) for item in self.fields]

    def bind(self, tensors: Sequence[Tensor]) -> None:
        """Makes the model use these tensors, one for each of ``fields``; those that it uses already cost nothing."""
        if tensors is self.bound:
            return
        typed = [item.typed(tensor) for item, tensor in zip(self.fields, tensors, strict=True)]
        for number, table, key in self._homes():
            table[key] = typed[number]
        self.bound = tensors

    def release(self) -> None:
        """Takes the weights away again: the model keeps tensors without storage, of the right shape."""
        if not self.nothing:
            self.nothing = [item.typed(_nothing(item.shape, item.dtype)) for item in self.fields]
        for number, table, key in self._homes():
            if self.fields[number].is_parameter:
                table[key] = self.nothing[number]
        self.bound = None

    def _homes(self) -> list[tuple[int, dict[str, Any], str]]:
        if not self.homes:
            self.homes = [
                (number, module._parameters if item.is_parameter else module._buffers, key)
                for number, item in enumerate(self.fields)
                for module, key in item.homes
            ]
        return self.homes

    def filler(self, weights: Weights, state: Weights | None = None) -> Callable[[Tensor], None]:
        """Writes the initial values into a buffer: parameters from ``weights``, a rule's state from ``state`` or new,
        buffers from the model as it is."""

        def write(buffer: Tensor) -> None:
            for item in self.fields:
                if item.is_parameter:
                    weights.fill(item.name, item.view(buffer), item.first)
                else:
                    module, attribute = item.homes[0]
                    item.view(buffer).copy_(module.get_buffer(attribute))
            for item in self.states:
                if state is None:
                    item.view(buffer).fill_(item.initial)
                else:
                    state.fill(item.key, item.view(buffer), item.first)

        return write


def is_tuned(parameter: nn.Parameter) -> bool:
    """Whether steps change it: it requires gradients, or, as integers cannot, is marked as moving by whole steps."""
    return parameter.requires_grad or getattr(parameter, "is_stepped", False)


def strip(modules: Iterable[nn.Module]) -> None:
    """Takes the modules' own parameters away, as :meth:`Unit.release` does: their tiles hold them."""
    for module in modules:
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = nn.Parameter(_nothing(parameter.shape, parameter.dtype), requires_grad=False)


def _nothing(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor of one element on the meta device: nobody who counts bytes, on that device too, takes it for more."""
    return torch.empty((), dtype=dtype, device="meta").expand(shape)


def find_units(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    owners: Sequence[nn.Module] | None = None,
    rule: UpdateRule | None = None,
    alignment: int = ALIGNMENT,
) -> tuple[list[Unit], list[Unit]]:
    """(units of ``owners`` in their order, units of all other modules), with ``index`` their place in the noise stream.

    ``owners``: the modules whose parameters, and those of all modules inside them, make one unit each; by default the
    blocks. Trainable parameters get the states of ``rule``. Tensors begin at multiples of ``alignment`` bytes. Raises
    ``ValueError`` if two blocks share a parameter.
    """
    owners = blocks if owners is None else owners
    homes: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                homes.setdefault(id(parameter), []).append((module, attribute))
    block_of, owner_of = _inside(blocks), _inside(owners)
    members: dict[int, list[Field]] = {}
    modules: dict[int, nn.Module] = {}
    for tensor_id, (name, parameter) in enumerate(model.named_parameters()):
        uses = tuple(homes[id(parameter)])
        users = {id(block_of.get(id(module))) for module, _ in uses}
        if len(users) > 1:
            raise ValueError(f"a block must not share parameters, but {name} has {len(uses)} homes; untie it")
        owner = owner_of.get(id(uses[0][0]), uses[0][0])
        modules[id(owner)] = owner
        item = Field(name, parameter.shape, parameter.dtype, 0, True, is_tuned(parameter), uses, tensor_id)
        members.setdefault(id(owner), []).append(item)
    names = {id(module): name for name, module in model.named_modules()}
    for owner in owners:
        for name, buffer in owner.named_buffers(names[id(owner)]):
            parent, _, attribute = name.rpartition(".")
            uses = ((model.get_submodule(parent), attribute),)
            members[id(owner)].append(Field(name, buffer.shape, buffer.dtype, 0, False, False, uses))
    units = [
        make_unit(names[key], modules[key], items, _states(items, rule), alignment) for key, items in members.items()
    ]
    for index, unit in enumerate(units):
        unit.index = index
    by_owner = {id(unit.module): unit for unit in units}
    number = {id(block): n for n, block in enumerate(blocks, start=1)}
    for unit in units:
        unit.part = number.get(id(block_of.get(id(unit.module))), -1)
    chosen = [by_owner[id(owner)] for owner in owners]
    return chosen, [unit for unit in units if id(unit) not in set(map(id, chosen))]


def _states(items: Sequence[Field], rule: UpdateRule | None) -> list[Field]:
    return [
        replace(
            item,
            state=name,
            dtype=rule.state_dtype(item.dtype),
            is_parameter=False,
            trainable=False,
            homes=(),
            initial=getattr(rule, "begins", {}).get(name, 0.0),  # a plug-in's rule need have none
        )
        for item in items
        if item.trainable and rule is not None
        for name in rule.states
    ]


def _inside(owners: Iterable[nn.Module]) -> dict[int, nn.Module]:
    return {id(module): owner for owner in owners for module in owner.modules()}


def make_unit(
    name: str, owner: nn.Module, items: Sequence[Field], states: Sequence[Field] = (), alignment: int = ALIGNMENT
) -> Unit:
    """A unit of these tensors, each placed at a multiple of ``alignment`` bytes: what is trained, its state, and from a
    new page on what stays as it is. Its length is a whole number of pages."""
    trained, offset = _placed([item for item in items if item.trainable], 0, alignment)
    unit = Unit(name or "model", owner, (), (), 0, trained=offset)
    unit.states, offset = _placed(states, offset, alignment)
    unit.kept = round_up(offset)
    frozen, offset = _placed([item for item in items if not item.trainable], unit.kept, alignment)
    unit.nbytes = round_up(offset)
    rest = {False: iter(frozen), True: iter(trained)}
    unit.fields = tuple(next(rest[item.trainable]) for item in items)
    unit.decayed = [is_decayed(item.name) for item in trained]
    return unit


def _placed(items: Iterable[Field], offset: int, alignment: int) -> tuple[tuple[Field, ...], int]:
    """The fields one after another from ``offset`` on, and where they end."""
    placed = []
    for item in items:
        placed.append(replace(item, offset=offset))
        offset += -(-item.nbytes // alignment) * alignment
    return tuple(placed), offset


def tiles(unit: Unit, nbytes: int = TILE_BYTES, *, alignment: int = ALIGNMENT) -> list[Unit]:
    """The unit of a linear layer, cut into units of whole rows of its weight, at most ``nbytes`` each, nearly alike."""
    rows = unit.fields[0].shape[0]
    count = min(rows, -(-unit.fields[0].nbytes // nbytes))
    edges = [rows * number // count for number in range(count + 1)]
    cut = []
    for first, last in itertools.pairwise(edges):
        fields, states = (
            [replace(f, shape=torch.Size([last - first, *f.shape[1:]]), first=first, whole=f.shape) for f in group]
            for group in (unit.fields, unit.states)
        )
        cut.append(make_unit(f"{unit.name}[{first}:{last}]", unit.module, fields, states, alignment))
        cut[-1].part = unit.part
    return cut


def stream_layout(units: Sequence[Unit]) -> list[list[tuple[torch.Size, torch.dtype]]]:
    """Returns the shapes and dtypes of each unit's trainable tensors, by its index, as
    :class:`~zobench.engine.directions.noise.TorchNoise` needs them."""
    ordered = sorted(units, key=lambda unit: unit.index)
    return [[(item.shape, item.dtype) for item in unit.trainable] for unit in ordered]


def move_buffers(model: nn.Module, owners: Sequence[nn.Module], device: str) -> None:
    """Buffers outside ``owners`` (rotary frequencies) go to the device; those inside travel with their unit."""
    inside = _inside(owners)
    for module in model.modules():
        if id(module) not in inside:
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
