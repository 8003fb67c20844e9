"""Tasks: labelled examples as prompts and candidates, split, encoded and batched (docs/design/METHODS.md, "Tasks")."""

from zobench.data.tasks.judge import Score as Score
from zobench.data.tasks.judge import judge as judge
from zobench.data.tasks.prompts import Example as Example
from zobench.data.tasks.task_data import TaskData as TaskData
