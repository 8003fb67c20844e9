"""What 0.1.0 stored: results of each format that it had, a run that was killed, a list of programs.

Read whole, shown, merged, compared, gone on with, or refused in one line. The files are as its commits wrote them:
results of format 1 and 3 by the command beside each commit, of format 2 by a whole sweep.
"""

import itertools
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zobench as package
from tests.support.small_task import write_data, write_weights
from zobench.durable import journal
from zobench.methods.base import Taken
from zobench.programs import clones
from zobench.result.record import SCHEMA_VERSION
from zobench.store import Store
from zobench.training.origin import begun_by_another

OLD = Path(__file__).parent / "results_of_0_1_0"
FILES = sorted(OLD.glob("*/*.json"))
LATER = {1: {"trace": {}, "evaluation": {}}, 2: {"evaluation": {}}, 3: {}}
"""Format -> what later ones added, as a run without it has it."""
Command = Callable[..., tuple[int, str, str]]


def raw(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_each_format_of_0_1_0_is_here_as_it_wrote_it() -> None:
    assert {raw(path)["schema_version"] for path in FILES} == set(LATER)
    assert {raw(path)["environment"]["software"]["zobench"] for path in FILES} == {"0.1.0"} != {package.__version__}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_of_a_run_is_lost_or_renamed(path: Path) -> None:
    store, old = Store(OLD), raw(path)
    result = store.read(path)
    assert store.problems == []
    now = result.to_dict()
    upgraded = {**LATER[old["schema_version"]], **old, "schema_version": SCHEMA_VERSION}
    assert {**now, "spec": None} == {**upgraded, "spec": None}
    assert old["spec"].items() <= now["spec"].items()  # later fields stand at what the run had
    assert store.path(result.spec, old["environment"]["machine"]) == path


def test_they_are_listed_and_fill_the_papers_table(zobench: Command, cwd: Path) -> None:
    code, out, err = zobench("results", str(OLD))
    assert (code, err) == (0, "")
    for path in FILES:
        assert path.stem.rpartition("-")[2][:7] in out
    resident = raw(OLD / "epyc-2c-fcab62" / "OPT-125M-resident-fp32-287be0cf8827.json")
    step = statistics.median(resident["samples"]["step_seconds"])
    stored = ("--results", str(OLD), "--machine", "epyc-2c-fcab62")
    code, out, _ = zobench("table", "zo2/table1", *stored, "--format", "csv")
    assert code == 0
    (line,) = [line for line in out.splitlines() if ",measured," in line and "MeZO (FP32),throughput" in line]
    assert f",{2048 / step}," in line


KILLED = Path(__file__).parent / "run_of_0_1_0"
"""A run of 40 steps on the small task that 0.1.0 began and ``kill -9`` ended, with a snapshot after 20 steps."""
SAME_COMMAND = (
    *("finetune", "--model", "opt-tiny", "--weights-path", "weights", "--task", "sst2", "--data-dir", "data"),
    *("--method", "zo-sgd", "--steps", "40", "--device", "cpu", "--out", "mine", "--resume"),
    *itertools.chain.from_iterable(
        ("--set", setting)
        for setting in (
            "engine=offload", "seq_len=16", "batch_size=4", "train_size=24", "dev_size=12", "test_size=16",
            "eval_every=20", "checkpoint=journal", "checkpoint_every=10", "lr=1e-3",
        )
    ),
)  # fmt: skip


@pytest.fixture
def begun(cwd: Path) -> Path:
    """The killed run in ``mine``, beside its weights and data."""
    (cwd / "data").mkdir()
    (cwd / "weights").mkdir()
    write_data(cwd / "data")
    write_weights(cwd / "weights")
    return Path(shutil.copytree(KILLED, cwd / "mine"))


def test_a_run_that_0_1_0_began_goes_on_from_its_own_steps_and_says_who_took_which(zobench, begun) -> None:
    _, items = journal.read(begun / "journal.bin")
    old = [item for item in items if isinstance(item, Taken)]
    assert 20 < len(old) < 40
    alone = shutil.copytree(begun, begun.parent / "alone")
    shutil.rmtree(alone / "snapshot-20")
    code, out, err = zobench(*SAME_COMMAND)
    assert code == 0, err
    said = f"zobench 0.1.0 began this run and {package.__version__} goes on: all steps stay as they were taken"
    assert f"warning: {said}" in err + out
    assert f"goes on after step {len(old)}, from mine/snapshot-20" in err + out
    result = raw(begun / "result.json")
    assert [warning for warning in result["warnings"] if warning.startswith(said)]
    assert result["samples"]["loss"][: len(old)] == [item.loss for item in old]
    assert len(result["samples"]["loss"]) == 40
    # The bytes that 0.1.0 saved are what this version makes of its journal: without them it ends in the same weights.
    code, _, err = zobench(*(word.replace("mine", "alone") for word in SAME_COMMAND))
    assert code == 0, err
    [model] = begun.glob("model/*.safetensors")
    assert model.read_bytes() == (alone / "model" / model.name).read_bytes()


def test_a_run_from_random_weights_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    header = {"run": "a", "base": "random, seed 0"}
    spec = package.RunSpec(model="opt-tiny", task="sst2")
    with journal.JournalFile(tmp_path / "journal.bin", header):
        pass
    wanted = (
        r"`.*journal\.bin` must be of zobench .*, because its run began from random weights, but is of 0\.1\.0; name a"
    )
    with pytest.raises(ValueError, match=wanted) as caught:
        begun_by_another(spec, tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "journal.bin").unlink()
    with journal.JournalFile(tmp_path / "journal.bin", {**header, "zobench": package.__version__}):
        pass
    assert begun_by_another(spec, tmp_path) == ""


def test_the_list_of_programs_of_0_1_0_is_read(zobench: Command, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clones.FOLDER, str(KILLED))
    assert clones.load()["mezo"] == clones.Clone(
        name="mezo", path="/src/MeZO", python="/src/env/bin/python", commit="552cb1b",
        versions={"torch": "2.1.0", "transformers": "4.28.1", "python": "3.10.13"},
    )  # fmt: skip
