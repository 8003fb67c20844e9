"""Fine-tuning: a run over a task that is evaluated, kept, resumed and saved, and a search over many."""

from zobench.finetune.callbacks import Callback as Callback
from zobench.finetune.callbacks import RunStart as RunStart
from zobench.finetune.progress import Evaluation as Evaluation
from zobench.finetune.progress import Hooks as Hooks
from zobench.finetune.progress import StepReport as StepReport
from zobench.finetune.run import cell as cell
from zobench.finetune.run import run as run
from zobench.finetune.run import usual_data_dir as usual_data_dir
from zobench.finetune.training import Interrupted as Interrupted
