"""The one shared offload engine."""

from zobench.data.batch import Batch as Batch
from zobench.engine.base import BASE as BASE
from zobench.engine.base import EngineConfig as EngineConfig
from zobench.engine.base import Entry as Entry
from zobench.engine.base import Point as Point
from zobench.engine.core import Engine as Engine
