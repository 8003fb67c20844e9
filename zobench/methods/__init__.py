"""Methods: a training step as points to probe and entries to commit."""

from zobench.methods.zo_sgd import ZOSGD as ZOSGD
from zobench.methods.zo_sgd import StepResult as StepResult
