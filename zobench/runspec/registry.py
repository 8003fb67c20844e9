"""The names that a spec can use: methods, tasks, metrics, models, programs; zobench's own first, then those of
plug-ins.

A plug-in is an installed package with an entry point in the registry's group, whose name is the word that a spec uses.
It is imported only when that word is used; zobench's own too, because they live in rooms above this one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from zobench.runspec.words import suggestion

PATIENCE = 4.0  # seconds of a plug-in's import after which a line says that it is waited for


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str:
        """The word that a spec uses for it."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """A registry of everything that can be named as a ``noun``. ``home``: where zobench's own are, as
    ``module:attribute`` of a sequence; ``of``: the class of each, named likewise."""

    noun: str
    home: str
    of: str

    @property
    def group(self) -> str:
        """The group of the plug-ins' entry points."""
        return f"zobench.{self.noun}s"

    def names(self) -> tuple[str, ...]:
        """zobench's own in their order, then those of plug-ins by the alphabet; no plug-in is imported."""
        return (*self._builtin(), *sorted(set(plug_ins(self.group)) - set(self._builtin())))

    def builtin(self) -> tuple[T, ...]:
        """zobench's own, in their order."""
        return tuple(self._builtin().values())

    def get(self, name: str) -> T:
        """The one called ``name``. Raises ``ValueError`` for an unknown name, for one that two packages give, and for a
        plug-in that cannot be imported or is not what its entry point says."""
        builtin, points = self._builtin(), plug_ins(self.group).get(name, ())
        if len(points) + (name in builtin) > 1:
            owners = ["zobench"] * (name in builtin) + [_package(point) for point in points]
            raise ValueError(
                f"one package must give the {self.noun} {name!r}, but {' and '.join(owners)} do; remove one"
            )
        if name in builtin:
            return builtin[name]
        if not points:
            raise ValueError(f"unknown {self.noun} {name!r}; {suggestion(name, self.names())}")
        loaded: T = _loaded(self.noun, self.of, points[0])
        return loaded

    def provider(self, name: str) -> str:
        """The package that gives ``name`` as a plug-in, and its version; "" for zobench's own. It is not imported."""
        points = () if name in self._builtin() else plug_ins(self.group).get(name, ())
        versions = [point.dist.metadata["Version"] or "" if point.dist else "" for point in points]
        return " and ".join(f"{_package(p)} {version}".strip() for p, version in zip(points, versions, strict=True))

    def origin(self, name: str) -> str:
        """:meth:`provider` and a fingerprint of the plug-in's module, which is not imported. Of zobench's own what
        their ``origin`` (the dotted name of a function of the name) gives, else ""."""
        if name in (builtin := self._builtin()):
            text: str = resolve(dotted)(name) if (dotted := getattr(builtin[name], "origin", "")) else ""
            return text
        points = plug_ins(self.group).get(name, ())
        return f"{self.provider(name)} {_fingerprint(points[0])}" if points else ""

    def __iter__(self) -> Iterator[T]:
        """zobench's own and all plug-ins', which are imported."""
        return map(self.get, self.names())

    def _builtin(self) -> Mapping[str, T]:
        return _by_name(self.home)


@functools.cache
def _by_name(home: str) -> dict[str, Any]:
    return {entry.name: entry for entry in resolve(home)}


@functools.cache
def plug_ins(group: str) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    """The entry points of ``group`` by their names, each package's once."""
    by_name: dict[str, dict[str, metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=group):
        by_name.setdefault(point.name, {}).setdefault(_package(point), point)
    return {name: tuple(points.values()) for name, points in by_name.items()}


@functools.cache
def _loaded(noun: str, of: str, point: metadata.EntryPoint) -> Any:
    source = f"the {noun} {point.name!r} of the package {_package(point)}"
    late = f"zobench: {source} is still being imported after {PATIENCE:g} s; Ctrl-C ends it\n"
    slow = threading.Timer(PATIENCE, sys.stderr.write, [late])
    slow.daemon = True
    slow.start()
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when it is imported
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{source} must be importable, but {cause}; mend or remove the package") from error
    finally:
        slow.cancel()
    wanted = resolve(of)
    if not isinstance(loaded, wanted):
        raise ValueError(
            f"{source} must be a {wanted.__name__}, but {point.value} is of type {type(loaded).__name__}; name one"
        )
    if loaded.name != point.name:
        raise ValueError(f"{source} must have that name, but {point.value} is called {loaded.name!r}; make them equal")
    return loaded


def _fingerprint(point: metadata.EntryPoint) -> str:
    """Eight hexadecimal digits of the sources of a plug-in's module, or of all its package's: others after any edit."""
    spec = importlib.util.find_spec(point.module.partition(".")[0])
    if spec is None:
        return "unknown"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(spec.origin or "")]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:8]


def _package(point: metadata.EntryPoint) -> str:
    """Returns the name of the entry point's package; that of its module where no METADATA says it."""
    return (point.dist.metadata["Name"] if point.dist is not None else None) or point.module


def resolve(dotted: str) -> Any:
    """Returns the object that ``module:attribute`` names, as torch-free descriptions name what imports torch."""
    module, _, attribute = dotted.partition(":")
    return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
