"""How the arguments of a model's modules follow the batch: seen by calling the model on two and on three rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from zobench.engine.passes.fold import Follows, Path, leaves

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
    """What the modules of :func:`keys` are called with in ``calls``, each of which calls the model on so many rows.

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
                where = _dimension(names[id(module)], small[path], large[path])
                if dimensions.setdefault(path, where) != where:
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
