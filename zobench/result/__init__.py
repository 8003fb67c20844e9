"""Results: what a cell came to, its JSON form, and the history of that form."""

from zobench.result.facts import Facts as Facts
from zobench.result.record import HOST_OOM as HOST_OOM
from zobench.result.record import Outcome as Outcome
from zobench.result.record import Result as Result
from zobench.result.record import Round as Round
from zobench.result.record import finite as finite
