"""Predicts seconds and bytes of a cell before it runs, and the least time that a step can take. No torch."""

from zobench.cost.local import Estimate as Estimate
from zobench.cost.local import estimate as estimate
from zobench.cost.local import unpriced as unpriced
from zobench.cost.seconds import Rates as Rates
from zobench.cost.seconds import fastest_narrow as fastest_narrow
from zobench.cost.seconds import operations as operations
from zobench.cost.seconds import passes as passes
from zobench.cost.seconds import transfer_seconds as transfer_seconds
