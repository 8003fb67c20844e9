"""ZO-SGD lifts a small pretrained OPT on SST-2.

Accuracies are of SST-2's own dev set, 872 sentences that neither pretraining nor training has seen; what a run here
calls dev, and chooses its best weights by, is the tail of the training set.
"""

from pathlib import Path

import pytest

from tests.support import pretrained as cache
from tools import tiny
from zobench.data.tasks.task_data import TaskData
from zobench.models import tokenizers
from zobench.runspec import RunSpec
from zobench.training import finetune as run
from zobench.training.assemble import tuner
from zobench.training.evaluate import evaluate


@pytest.mark.slow
def test_zo_sgd_lifts_sst2(real_data: Path, tmp_path: Path) -> None:
    spec = RunSpec(
        model=tiny.MODEL, weights="pretrained", weights_path=str(cache.pretrained(real_data)), task="sst2", seq_len=112,
        batch_size=32, steps=600, lr=2e-4, eps=1e-2, eval_every=200, length_grouping=True,
    ).resolve("cpu")  # fmt: skip
    data = TaskData.load(spec, tokenizers.load(spec)[0], positions=128, masked=False, data_dir=real_data)
    with tuner(spec) as built:
        start = evaluate(built.engine, data, "test", 0).accuracy
    end = run(spec, folder=tmp_path, data_dir=real_data).evaluation["test"]["accuracy"]
    assert end - start >= 0.15
