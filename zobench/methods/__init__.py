"""Methods: a training step as points to probe and entries to commit."""

from zobench.methods.base import Method as Method
from zobench.methods.base import StepResult as StepResult
from zobench.methods.zo_sgd import ZOSGD as ZOSGD
