"""DistZO2: one step shared out over several devices, by perturbation, by data, or both; slices of the transfers."""

from zobench.parallel.engine import ParallelEngine as ParallelEngine
from zobench.parallel.mesh import Mesh as Mesh
from zobench.parallel.world import PeerGoneError as PeerGoneError
from zobench.parallel.world import World as World
from zobench.parallel.world import join as join
