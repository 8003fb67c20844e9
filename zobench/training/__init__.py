"""Fine-tuning: a run over a task that is evaluated, kept, resumed and saved, and a search over many."""

from zobench.training.callbacks import Callback as Callback
from zobench.training.callbacks import Evaluation as Evaluation
from zobench.training.callbacks import RunStart as RunStart
from zobench.training.callbacks import StepReport as StepReport
from zobench.training.run import cell as cell
from zobench.training.run import finetune as finetune
from zobench.training.run import usual_data_dir as usual_data_dir
from zobench.training.training import Interrupted as Interrupted
