"""Methods: a training step as points to probe and entries to commit."""

from zobench.methods.base import Method as Method
from zobench.methods.base import StepResult as StepResult
from zobench.methods.schedules import learning_rate as learning_rate
from zobench.methods.table import definition as definition
from zobench.methods.table import make as make
from zobench.methods.table import rule as rule
from zobench.methods.table import thresholds as thresholds
from zobench.methods.zo_sgd import ZOSGD as ZOSGD
from zobench.methods.zo_sgd import ZOSGDBlock as ZOSGDBlock
from zobench.methods.zo_sgd import ZOSGDCons as ZOSGDCons
from zobench.methods.zo_sgd import ZOSGDSignOfG as ZOSGDSignOfG
