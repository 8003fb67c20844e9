"""Predicts seconds and bytes of a cell before it runs, and the least time that a step can take. No torch."""

from zobench.cost.local import Estimate as Estimate
from zobench.cost.local import estimate as estimate
from zobench.cost.local import unpriced as unpriced
from zobench.cost.seconds import Rates as Rates
from zobench.cost.seconds import compute_seconds as compute_seconds
from zobench.cost.seconds import fastest_narrow as fastest_narrow
from zobench.cost.seconds import floor_seconds as floor_seconds
from zobench.cost.seconds import floor_share as floor_share
from zobench.cost.seconds import is_sliced as is_sliced
from zobench.cost.seconds import link_rate as link_rate
from zobench.cost.seconds import operations as operations
from zobench.cost.seconds import passes as passes
from zobench.cost.seconds import predicted_step as predicted_step
from zobench.cost.seconds import step_seconds as step_seconds
from zobench.cost.seconds import transfer_seconds as transfer_seconds
