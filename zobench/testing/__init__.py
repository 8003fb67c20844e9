"""Conformance suites: what any engine, method, tier, lanes or program must do, zobench's own and a plug-in's.

Subclass a suite, say how to make the thing, and let pytest collect the class, or call :func:`failures`, which needs no
pytest. Each check compares with something computed by hand.
"""

from zobench.testing.engine import EngineConformance as EngineConformance
from zobench.testing.engine import GradientConformance as GradientConformance
from zobench.testing.lanes import LanesConformance as LanesConformance
from zobench.testing.local import LocalEngineConformance as LocalEngineConformance
from zobench.testing.method import MethodConformance as MethodConformance
from zobench.testing.program import ProgramConformance as ProgramConformance
from zobench.testing.suite import failures as failures
from zobench.testing.tier import TierConformance as TierConformance
