"""The small pretrained OPT, made once and kept: in $ZOBENCH_TEST_CACHE, or in .cache of the repository."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tokenizers
import torch
import transformers

from tools import tiny
from zobench import models
from zobench.machine.files import locked

ROOT = Path(__file__).parents[2]


def pretrained(data: Path) -> Path:
    """The checkpoint's folder, kept by what made it; other processes that want it wait for the one that makes it.

    ``data`` holds SST-2/train.tsv.
    """
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
    versions = (torch.__version__, transformers.__version__, tokenizers.__version__)
    key = repr((hashlib.sha256(code).digest(), hashlib.sha256(sentences).digest(), versions, models.get(tiny.MODEL)))
    return hashlib.sha256(key.encode()).hexdigest()[:12]
