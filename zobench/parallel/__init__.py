"""DistZO2: one step shared out over several devices, by perturbation, by data, or both; slices of the transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.parallel.engine import ParallelEngine as ParallelEngine
    from zobench.parallel.mesh import Mesh as Mesh
    from zobench.parallel.world import PeerGoneError as PeerGoneError
    from zobench.parallel.world import World as World
    from zobench.parallel.world import join as join

_HOMES = {
    "ParallelEngine": "zobench.parallel.engine",
    "Mesh": "zobench.parallel.mesh",
    "PeerGoneError": "zobench.parallel.world",
    "World": "zobench.parallel.world",
    "join": "zobench.parallel.world",
}


def __getattr__(name: str) -> Any:
    """Public names are imported at first use: plans read the mesh and the cost model, and load no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zobench.parallel' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
