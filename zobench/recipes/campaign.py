"""Campaigns: a TOML file under campaigns/ lists parts in order, each a matrix as this size of machine can carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from zobench import recipes
from zobench.machine.reader import checked, positive
from zobench.machine.texts import toml_in
from zobench.recipes import matrix
from zobench.recipes.matrix import PART_KEYS, SHAPES, Matrix, unpriced
from zobench.recipes.protocol import Contest, Price
from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One sweep: the cells of the matrix ``matrix`` with ``changes``, as ``[on.cpu]`` would have them, in ``repeats``
    rounds of all cells, which take ``turns`` (:mod:`zobench.execute.together`) if it says so. ``reason``: what it is
    for, in a few words. ``more``: it goes beyond what the campaign is for, and is run only where that is asked for."""

    name: str
    matrix: str
    reason: str
    repeats: int
    turns: bool = False
    more: bool = False
    changes: Mapping[str, Any]

    def load(self, device: str, price: Price = unpriced) -> Matrix:
        """Its cells on ``device``, the same on each machine. Raises ``ValueError`` for what no matrix can be."""
        path = recipes.find("runners", self.matrix)
        return matrix.load(path, device, narrow=_no_matrix, price=price, part=self.changes)


def _no_matrix() -> str | None:
    """Raises ``ValueError``, because :data:`zobench.recipes.matrix.NARROW` stands for no dtype in a campaign."""
    raise ValueError(
        f'`dtype` of a part must be a type, but got "{matrix.NARROW}", which another machine takes for another; '
        'write axes = { dtype = ["fp32", "bf16"] }'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartOn:
    """A part on a device: its ``cells``, and the number of its ``first`` round. A cell that another part had before has
    rounds of its own in this one, with the numbers after those, so that it is paired with the cells of both.
    ``contest``: of a part that is a protocol, whose later stages follow its ``cells``. ``obstacle``: why it has no
    cells, as where the weights of its model are not here, and the remedy; "" of a part that has."""

    part: Part
    cells: tuple[RunSpec, ...]
    first: int
    contest: Contest | None = None
    obstacle: str = ""

    @property
    def rounds(self) -> range:
        return range(self.first, self.first + self.part.repeats)

    @property
    def purpose(self) -> str:
        """The purpose of the part, and the obstacle that keeps it from being run, if there is one."""
        return f"{self.part.reason}; cannot run: {self.obstacle}" if self.obstacle else self.part.reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """Parts in order, the most valuable first. ``timeout``: when a cell is ended that hangs, as ``2h``. ``selftest``:
    how long the selftest may take with which it begins, or None."""

    name: str
    title: str
    device: str
    timeout: str
    selftest: str | None = None
    parts: tuple[Part, ...]

    def on(self, device: str, price: Price = unpriced) -> list[PartOn]:
        """All parts on ``device``, with the obstacle of each that no matrix can be; ``price``: what a step of a
        protocol costs. Raises ``ValueError`` for a protocol that repeats, or of which two parts have the same run."""
        result: list[PartOn] = []
        free: dict[str, int] = {}
        for part in self.parts:
            try:
                loaded = part.load(device, price)
            except ValueError as error:  # the others may run all the same
                result.append(PartOn(part=part, cells=(), first=0, obstacle=str(error)))
                continue
            cells = loaded.cells
            first = max(free.get(cell.hash, 0) for cell in cells)
            if loaded.contest and (first or part.repeats > 1):
                raise ValueError(
                    f"part {part.name}: a protocol runs once, as its seeds repeat it, but another part has its runs, "
                    "or `repeats` is above 1; write repeats = 1"
                )
            free |= dict.fromkeys((cell.hash for cell in cells), first + part.repeats)
            result.append(PartOn(part=part, cells=cells, first=first, contest=loaded.contest))
        return result


_KEYS = {
    **dict.fromkeys(("title", "timeout", "selftest"), str), "device": Literal["cpu", "cuda"],
    "repeats": Annotated[int, positive], "parts": list[dict[str, Any]],
}  # fmt: skip
_PART_KEYS = {
    **dict.fromkeys(("name", "matrix", "reason"), str), "repeats": Annotated[int, positive], "turns": bool,
    "more": bool, **{key: SHAPES[key] for key in PART_KEYS}, "methods": list[str],
}  # fmt: skip


def load(path: Path) -> Campaign:
    """The campaign in ``path``. Raises a one-line ``ValueError`` that names the file and the mistake."""
    with toml_in(path) as data:
        body = checked(data, _KEYS, "the file", _KEYS.keys() - {"selftest"})
        repeats = body.pop("repeats")
        parts = tuple(_part(part, repeats) for part in body.pop("parts"))
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ValueError(f"[[parts]] must have names that differ, but got {', '.join(names)}; rename one")
    return Campaign(name=path.stem, parts=parts, **body)


def _part(data: Mapping[str, Any], repeats: int) -> Part:
    try:
        stated = {"repeats": repeats, **checked(data, _PART_KEYS, "[[parts]]", ("name", "matrix", "reason"))}
    except ValueError as error:
        raise ValueError(f"part {data.get('name', 'without a name')}: {error}") from None
    changes = {key: stated.pop(key) for key in (*PART_KEYS, "methods") if key in stated}
    return Part(changes=changes, **stated)
