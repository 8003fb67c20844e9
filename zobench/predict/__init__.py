"""Predicts seconds and bytes of a cell before it runs, and the least time that a step can take. No torch."""

from zobench.predict.equation4 import compute_seconds as compute_seconds
from zobench.predict.equation4 import predicted_step as predicted_step
from zobench.predict.equation4 import step_seconds as step_seconds
from zobench.predict.local import Estimate as Estimate
from zobench.predict.local import estimate as estimate
from zobench.predict.local import unpriced as unpriced
from zobench.predict.seconds import Rates as Rates
from zobench.predict.seconds import fastest_narrow as fastest_narrow
from zobench.predict.seconds import floor_seconds as floor_seconds
from zobench.predict.seconds import floor_share as floor_share
from zobench.predict.seconds import is_sliced as is_sliced
from zobench.predict.seconds import link_rate as link_rate
from zobench.predict.seconds import operations as operations
from zobench.predict.seconds import passes as passes
from zobench.predict.seconds import transfer_seconds as transfer_seconds
