"""Folding: a call of a module on a batch of k copies becomes k calls, one per point, each with its point's weights.

So the model's own ``forward`` is called once for all points, and no model needs code of its own. How the arguments of
its modules follow the batch is observed by calling it on two and on three rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Path = tuple[object, ...]
"""Where a tensor is in a module's arguments, ("args" or "kwargs", then numbers and keys), or in its "output"."""


@dataclass(frozen=True, slots=True)
class Follows:
    """How the tensors that a module takes and gives follow the batch: by :data:`Path` the dimension in which the rows
    are, or None for a tensor that is the same for every batch. Nothing is known of a path that is not here."""

    dimensions: Mapping[Path, int | None]

    @property
    def nothing(self) -> bool:
        """Whether it is known that none of them does."""
        return bool(self.dimensions) and all(dimension is None for dimension in self.dimensions.values())

    def cut(self, path: Path, tensor: Tensor, copies: int, batch: int) -> list[Tensor] | None:
        """The tensor's part of each copy, or None if all share it.

        What is not known is cut by its size: not below two dimensions, where positions may be as long as the batch.
        """
        guess = 0 if tensor.ndim >= 2 and tensor.shape[0] == copies * batch else None
        dimension = self.dimensions.get(path, guess)
        return None if dimension is None else list(tensor.tensor_split(copies, dimension))

    def whole(self, path: Path, parts: Sequence[Tensor], batch: int) -> Tensor:
        """The copies' tensors as one. One that is the same for every row, but not at every point, as the embedding of
        positions, (1, tokens, width) or (tokens, width), is repeated for each row."""
        dimension = self.dimensions.get(path, 0)
        if dimension is not None:
            return torch.cat(list(parts), dimension)
        rows = [part if part.ndim > 2 and part.shape[0] == 1 else part.unsqueeze(0) for part in parts]
        return torch.cat([row.expand(batch, *row.shape[1:]) for row in rows])


UNKNOWN = Follows({})
"""The assumption about a module whose arguments were not observed."""


def leaves(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in ``value``, and where it is."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from leaves(item, (*path, number))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))


def split(value: Any, copies: int, batch: int, follows: Follows = UNKNOWN, path: Path = ()) -> list[Any]:
    """``value`` once per copy: tensors that follow the batch are cut, all else is shared."""
    if isinstance(value, Tensor):
        return follows.cut(path, value, copies, batch) or [value] * copies
    if isinstance(value, (tuple, list)):
        cut = [split(item, copies, batch, follows, (*path, number)) for number, item in enumerate(value)]
        return [_like(value, [item[copy] for item in cut]) for copy in range(copies)]
    if isinstance(value, dict):
        by_key = {key: split(item, copies, batch, follows, (*path, key)) for key, item in value.items()}
        return [{key: item[copy] for key, item in by_key.items()} for copy in range(copies)]
    if hasattr(value, "rows"):  # a cache of keys and values, of all copies
        return [value.rows(start, start + batch) for start in range(0, copies * batch, batch)]
    return [value] * copies


def join(outputs: Sequence[Any], batch: int = 1, follows: Follows = UNKNOWN, path: Path = ("output",)) -> Any:
    """The k outputs as one: tensors are concatenated, tuples joined item by item."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return follows.whole(path, outputs, batch)
    if isinstance(first, (tuple, list)):
        groups = enumerate(zip(*outputs, strict=True))
        return _like(first, [join(items, batch, follows, (*path, number)) for number, items in groups])
    if isinstance(first, dict):
        return type(first)(
            **{key: join([output[key] for output in outputs], batch, follows, (*path, key)) for key in first}
        )
    if first is None:
        return None
    raise TypeError(f"a folded module must return tensors, tuples, dicts or None, but returned {type(first).__name__}")


def _like(value: Any, items: list[Any]) -> Any:
    """A tuple, named tuple or list of the class of ``value`` with other items."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def fold(
    name: str, forward: Callable[..., Any], copies: int, batch: int, prepare: Callable[[int], None],
    args: tuple[Any, ...], kwargs: dict[str, Any], follows: Follows = UNKNOWN, frozen: bool = False,
) -> Any:  # fmt: skip
    """Calls ``forward`` once per copy, after ``prepare(copy)`` has set that copy's weights; returns the joined output.

    ``frozen``: whether the weights are the same for all copies; then what is the same for every batch is computed once.

    Raises ``ValueError`` if no argument has the batch in its first dimension and nothing is known of the module: then
    the copies cannot be told apart.
    """
    if copies > 1 and not follows.dimensions and not _has_batch(args, kwargs, copies * batch):
        raise ValueError(
            f"{name} must be called on a batch of {copies * batch} rows, but none of its arguments has that many; "
            "pass position_ids of the batch's size to the model"
        )
    if frozen and follows.nothing:
        prepare(0)
        return forward(*args, **kwargs)
    outputs = []
    for copy, (copy_args, copy_kwargs) in enumerate(
        zip(
            split(args, copies, batch, follows, ("args",)),
            split(kwargs, copies, batch, follows, ("kwargs",)),
            strict=True,
        )
    ):
        prepare(copy)
        outputs.append(forward(*copy_args, **copy_kwargs))
    return join(outputs, batch, follows)


def _has_batch(args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> bool:
    tensors = (*leaves(args, ("args",)), *leaves(kwargs, ("kwargs",)))
    return any(tensor.ndim >= 2 and tensor.shape[0] == rows for _, tensor in tensors)


FEWER, MORE = 2, 3
"""Rows of the two batches."""
Shapes = dict[Path, tuple[int, ...]]
Marks = Mapping[str, Follows]
"""How the arguments of a model's modules follow the batch, by the names that :func:`keys` gives the modules."""


def keys(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[int, str]:
    """The name of each module that is called as a whole, by its id: a block's class, so that it holds for a model of
    more blocks too, and the name of a module outside the blocks that owns parameters."""
    inside = {id(module) for block in blocks for module in block.modules()}
    outside = {
        id(module): name
        for name, module in model.named_modules()
        if id(module) not in inside and any(True for _ in module.parameters(recurse=False))
    }
    return outside | {id(block): type(block).__qualname__ for block in blocks}


def observe(model: nn.Module, blocks: Sequence[nn.Module], calls: Iterable[Callable[[int], object]]) -> Marks:
    """Returns how the arguments of the modules of :func:`keys` follow the batch, seen in ``calls``, each of which calls
    the model on so many rows.

    Raises ``ValueError``, one line, where blocks do not run once each in their order, or arguments follow the batch in
    a way that copies of it cannot, or modules outside the blocks lie in each other.
    """
    marks: dict[str, dict[Path, int | None]] = {}
    for run in calls:
        few, many = (_watched(model, blocks, partial(run, rows)) for rows in (FEWER, MORE))
        _check_order(model, blocks, [module for module, _ in few])
        _check_apart(model, blocks, [module for module, _ in few])
        if [module for module, _ in few] != [module for module, _ in many]:
            raise ValueError(
                f"a model must call the same modules for every batch, but {type(model).__name__} calls others for "
                f"{MORE} rows than for {FEWER}; use another model"
            )
        names = keys(model, blocks)
        for (module, small), (_, large) in zip(few, many, strict=True):
            dimensions = marks.setdefault(names[id(module)], {})
            for path in small.keys() & large.keys():
                dimension = _dimension(names[id(module)], small[path], large[path])
                if dimensions.setdefault(path, dimension) != dimension:
                    raise ValueError(
                        f"what a module takes must follow the batch in the same way at each call, but {path} of "
                        f"{names[id(module)]} does not; use another model"
                    )
    return {name: Follows(dimensions) for name, dimensions in marks.items()}


def _check_apart(model: nn.Module, blocks: Sequence[nn.Module], called: Sequence[nn.Module]) -> None:
    """Refuses a module that runs once per point and holds another such module; one that holds the head may."""
    names, of_blocks = keys(model, blocks), set(map(id, blocks))
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    for module in called:
        within = [inner for inner in module.modules() if inner is not module and id(module) not in of_blocks]
        others = [inner for inner in called if any(inner is part for part in within)]
        if others and head not in others:
            owned = next(key for key, _ in module.named_parameters(recurse=False))
            raise ValueError(
                f"a module with weights of its own must not hold others with theirs, but {type(model).__name__}'s "
                f"{names[id(module)] or 'own module'} has {owned} and holds {names[id(others[0])]}; use another model"
            )


def _dimension(name: str, small: Sequence[int], large: Sequence[int]) -> int | None:
    differing = [n for n, (few, many) in enumerate(zip(small, large, strict=False)) if few != many]
    if len(small) == len(large) and not differing:
        return None
    if len(small) == len(large) and len(differing) == 1 and small[differing[0]] * MORE == large[differing[0]] * FEWER:
        return differing[0]
    raise ValueError(
        f"what a module takes must follow the batch in one dimension, but {name} gets {tuple(small)} for {FEWER} rows "
        f"and {tuple(large)} for {MORE}; use another model"
    )


def _check_order(model: nn.Module, blocks: Sequence[nn.Module], called: Sequence[nn.Module]) -> None:
    of_blocks = set(map(id, blocks))
    turns = [id(module) for module in called if id(module) in of_blocks]
    if turns != [id(block) for block in blocks]:
        raise ValueError(
            f"a model must run each of its blocks once, in their order, but {type(model).__name__} makes "
            f"{len(turns)} calls of {len(set(turns))} of its {len(blocks)} blocks; use another model"
        )


def _watched(
    model: nn.Module, blocks: Sequence[nn.Module], run: Callable[[], object]
) -> list[tuple[nn.Module, Shapes]]:
    """Each call of one of the modules, and the shapes that it took and gave."""
    calls: list[tuple[nn.Module, Shapes]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensors = (*leaves(args, ("args",)), *leaves(kwargs, ("kwargs",)), *leaves(output, ("output",)))
        calls.append((module, {path: tuple(tensor.shape) for path, tensor in tensors}))

    chosen = keys(model, blocks)
    watched = (module for module in model.modules() if id(module) in chosen)
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in watched]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return calls
