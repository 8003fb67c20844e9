"""A task from a package outside the repository: a model is fine-tuned on it, and it is predicted and listed."""

from pathlib import Path

import pytest

from tests.support.files import written
from tests.support.plugin import commands, package, results
from tests.support.small_task import write_weights

SIZES = ("train_size=24", "dev_size=12", "test_size=16", "batch_size=4", "lr=1e-3")
RUN = " ".join(
    ("finetune --model opt-tiny --task colours --data-dir data --weights-path weights --device cpu --steps 2",
     *(f"--set {change}" for change in SIZES))
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The package, its task's files, and weights of opt-tiny with a tokenizer of a few words."""
    package(tmp_path)
    (tmp_path / "weights").mkdir()
    for part, count in (("train", 20), ("validation", 8)):
        written(tmp_path / "data" / f"{part}.txt", "very blue\nvery red\n" * count)
    write_weights(tmp_path / "weights")
    return tmp_path


def test_a_model_is_fine_tuned_on_a_task_of_a_package(folder: Path) -> None:
    (code, _, err), (_, listed, _), (refused, _, message) = commands(
        folder, RUN, "results --where task=colours", f"{RUN} --set aligned=false"
    )
    assert code == 0, err
    assert "colours: 24 train, 12 dev, 16 test examples, from colours train and colours validation" in err
    (result,) = results(folder)
    assert (result["spec"]["task"], result["outcome"]) == ("colours", "ok")
    facts = result["evaluation"]
    assert facts["test"]["count"] == 16
    assert facts["majority"]["test"] == 0.5
    assert "colours" in listed
    assert refused == 2
    assert "`aligned=false` needs task=sst2 or rte, but got task=colours" in message.splitlines()[-1]
