"""ZO2 loses no accuracy: ZO-SGD lifts a small pretrained OPT on SST-2, alike wherever its weights rest.

Accuracies are of SST-2's own dev set, 872 sentences that neither pretraining nor training has seen; what a run here
calls dev, and chooses its best weights by, is the tail of the training set.
"""

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support import pretrained as cache
from tools import tiny
from zobench.data.tasks.task_data import TaskData
from zobench.models import tokenizers
from zobench.runspec import RunSpec
from zobench.training import finetune as run
from zobench.training.assemble import tuner
from zobench.training.evaluate import evaluate

pytestmark = pytest.mark.slow

FEW = 30
"""Steps over which losses and scores are compared."""


@pytest.fixture(scope="module")
def checkpoint(real_data: Path) -> Path:
    return cache.pretrained(real_data)


def _spec(checkpoint: Path, **changes: object) -> RunSpec:
    values = {
        "model": tiny.MODEL, "weights": "pretrained", "weights_path": str(checkpoint), "task": "sst2",
        "seq_len": 112, "batch_size": 32, "steps": 600, "lr": 2e-4, "eps": 1e-2, "eval_every": 200,
        "length_grouping": True,
    }  # fmt: skip
    return RunSpec(**{**values, **changes}).resolve("cpu")


@functools.cache
def _data(spec: RunSpec, folder: Path) -> TaskData:
    return TaskData.load(spec, tokenizers.load(spec)[0], positions=128, masked=False, data_dir=folder)


def _few(spec: RunSpec, folder: Path) -> tuple[list[float], Tensor]:
    """(loss of every step, all scores on SST-2's dev set after them)."""
    data = _data(spec, folder)
    with tuner(spec) as built:
        losses = [built.method.step(built.engine, data.train_batch(step)).loss for step in range(FEW)]
        scores = torch.cat([built.engine.scores(batch) for batch in map(data.batch, data.groups("test"))])
        return losses, scores


def test_zo_sgd_lifts_sst2(checkpoint, real_data, tmp_path):
    spec = _spec(checkpoint)
    with tuner(spec) as built:
        start = evaluate(built.engine, _data(spec, real_data), "test", 0).accuracy
    end = run(spec, folder=tmp_path, data_dir=real_data).evaluation["test"]["accuracy"]
    assert end - start >= 0.15


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_offloading_changes_no_loss_and_no_score(noise, checkpoint, real_data):
    resident = _few(_spec(checkpoint, noise=noise), real_data)
    offloaded = _few(_spec(checkpoint, noise=noise, engine="offload", tier="disk"), real_data)
    assert resident[0] == offloaded[0]
    assert torch.equal(resident[1], offloaded[1])
