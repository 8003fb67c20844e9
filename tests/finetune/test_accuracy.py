"""ZO-SGD lifts a small pretrained OPT on SST-2.

Accuracies are of SST-2's own dev set, 872 sentences that neither pretraining nor training has seen; what a run here
calls dev, and chooses its best weights by, is the tail of the training set.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import transformers

from tools import tiny
from zobench import models
from zobench.data.tasks.task_data import TaskData
from zobench.machine.files import locked
from zobench.models import tokenizers
from zobench.runspec import RunSpec
from zobench.training import finetune as run
from zobench.training.assemble import tuner
from zobench.training.evaluate import evaluate

ROOT = Path(__file__).parents[2]


def pretrained(data: Path) -> Path:
    """The folder of the small pretrained OPT, made once of SST-2/train.tsv in ``data`` and kept by what made it, in
    $ZOBENCH_TEST_CACHE or in .cache here; other processes that want it wait for the one that makes it."""
    cache = Path(os.environ.get("ZOBENCH_TEST_CACHE") or ROOT / ".cache")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{tiny.MODEL}-{_key(data)}"
    with locked(cache / f"{folder.name}.lock"):
        if not folder.exists():
            partial = cache / f"{folder.name}.partial"  # of a run that was killed
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "tools.tiny", "--data-dir", str(data), "--out", str(partial)]
            # one thread: on such small products a second gains little, and where cores are busy it waits for its turn
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
            partial.rename(folder)
    return folder


def _key(data: Path) -> str:
    code, sentences = Path(tiny.__file__).read_bytes(), (data / "SST-2" / "train.tsv").read_bytes()
    versions = (torch.__version__, transformers.__version__, version("tokenizers"))
    key = repr((hashlib.sha256(code).digest(), hashlib.sha256(sentences).digest(), versions, models.get(tiny.MODEL)))
    return hashlib.sha256(key.encode()).hexdigest()[:12]


@pytest.mark.slow
def test_zo_sgd_lifts_sst2(real_data: Path, tmp_path: Path) -> None:
    spec = RunSpec(
        model=tiny.MODEL, weights="pretrained", weights_path=str(pretrained(real_data)), task="sst2", seq_len=112,
        batch_size=32, steps=600, lr=2e-4, eps=1e-2, eval_every=200, length_grouping=True,
    ).resolve("cpu")  # fmt: skip
    data = TaskData.load(spec, tokenizers.load(spec)[0], positions=128, masked=False, data_dir=real_data)
    with tuner(spec) as built:
        start = evaluate(built.engine, data, "test", 0).accuracy
    end = run(spec, folder=tmp_path, data_dir=real_data).evaluation["test"]["accuracy"]
    assert end - start >= 0.15
