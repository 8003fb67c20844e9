"""`zobench finetune` and `zobench search`: progress on standard error, a table at the end, mistakes in one line."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zobench import cli
from zobench.durable import journal
from zobench.execute import process
from zobench.methods.base import Taken
from zobench.programs.cell import run as measured
from zobench.store import Store
from zobench.training.examine import up_to

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def zobench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zobench: Command) -> Command:
    """Runs the command in an empty folder, cells in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(process, "run_in_process", lambda spec, **_: measured(spec))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return zobench


@pytest.fixture
def given(data_dir: Path, weights_path: Path) -> list[str]:
    """The arguments of a short run."""
    sizes = [
        f"--set={change}" for change in ("train_size=24", "dev_size=12", "test_size=16", "batch_size=4", "lr=1e-3")
    ]
    return ["--model", "opt-tiny", "--task", "sst2", "--data-dir", str(data_dir), "--weights-path", str(weights_path),
            "--device", "cpu", *sizes]  # fmt: skip


def test_a_run_tells_its_choices_and_evaluations_and_ends_in_a_table(
    zobench: Command, given: list[str], tmp_path: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["zobench.training.run"], "_TRAININGS", itertools.count())
    code, out, err = zobench("finetune", *given, "--method", "zo-sgd", "--steps", "4", "--set", "eval_every=2")
    assert code == 0
    (result,) = Store(tmp_path / "results").load()
    folder = Path("runs") / f"opt-tiny-sst2-zo-sgd-full-{result.spec.hash}"
    lines = err.splitlines()
    assert lines[:4] == [
        "loading PyTorch",
        "device: cpu, as asked",
        "not given, so taken: eps=0.001 (ZO-Bench)",
        "seq_len: 64, the longest text that opt-tiny takes here",
    ]
    assert f"folder: {folder}" in lines
    assert f"tokenizer: {weights_path}, where the weights are" in lines
    steps = [int(line.split(":")[0].split()[1]) for line in lines if line.startswith("step ")]
    assert steps == [0, 2, 4, result.evaluation["best"]["step"]]
    table = [line.split() for line in out.splitlines()]
    assert table[0] == ["step", "accuracy", "loss", "majority"]
    test = result.evaluation["test"]
    assert table[3] == [
        "test,", "with", "the", "best", str(test["step"]), f"{test['accuracy']:.1%}", f"{test['loss']:.4f}", "50.0%"
    ]  # fmt: skip
    assert re.fullmatch(r"4 steps in .* s, .* s a step, .* MiB device memory, 0 updates skipped", out.splitlines()[-1])
    assert (tmp_path / folder / "model" / "config.json").is_file()


def test_a_run_that_diverges_says_so_and_fails(zobench: Command, given: list[str], tmp_path: Path) -> None:
    new = {"--set=lr=1e-3": "--set=lr=1e30", "--set=batch_size=4": "--set=batch_size=100"}
    words = ["finetune", *(new.get(word, word) for word in given), "--steps", "2", "--out", "mine"]
    message = (
        "diverged: the loss on dev was not finite after step 1; its weights are good for nothing; try an lr below 1e+30"
    )
    for first in (True, False):  # trained, and then as it is stored
        code, out, err = zobench(*words)
        assert ("a batch has 24 examples, not 100: train has no more" in err.splitlines()) == first
        assert (code, message in out) == (1, True)
        assert ("learnt nothing" in out, "dev, diverged" in out, "(best" in err) == (False, True, False)
    (result,) = Store(tmp_path / "results").load()
    assert message in result.warnings
    assert "diverged" in zobench("results")[1]


def test_a_search_shows_the_grid_and_tests_the_winner(zobench: Command, given: list[str], tmp_path: Path) -> None:
    words = [word for word in given if "lr=" not in word]
    code, out, err = zobench("search", *words, "--set", "lr=1e-3,1e-2", "--steps", "2", "--out", "found")
    assert code == 0
    assert "grid: lr 0.001, 0.01; eps 0.001 (ZO-Bench, but lr given)" in err.splitlines()
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["lr", "eps", "step", "dev", "loss", "dev", "accuracy", "skipped", "test", "accuracy"]
    assert [row[:2] for row in rows[1:3]] == [["0.001", "0.001"], ["0.01", "0.001"]]
    assert sorted(len(row) for row in rows[1:3]) == [6, 7]  # one was tested
    kept = json.loads((tmp_path / "found" / "search.json").read_text())
    (stored,) = Store(tmp_path / "results").load()
    assert stored.spec.hash == kept["winner"]["run"]
    assert stored.evaluation["search"]["cells"] == kept["cells"]


RUN, SEARCH = "finetune --model opt-tiny --task sst2", "search --model opt-tiny --task sst2"
AT_ONCE = r"zobench: `(--task|task|method|--split|--resume|--out|evaluate)`"
"""How mistakes begin that are seen before anything is loaded."""
HUGE = "finetune --model OPT-175B --set weights=random --task sst2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("finetune --model opt-tiny", "`--task` must be given, but is not; use one of sst2, rte, cb, boolq, wsc, "),
        ("finetune --model opt-tiny --task reviews.csv", "`task` must be one of none, sst2, rte, cb, boolq, wsc, wic, "
                                                         "multirc, copa, winogrande, squad, drop, record, but got "
                                                         "'reviews.csv'; that is data: `zobench task new revi"),
        (f"{RUN} --method zo-sdg", "`method` must be one of zo-sgd, zo-sgd-sign, "),
        (HUGE, "the run must fit this machine, but needs 699 GB of host memory, "),
        (HUGE.replace("finetune", "search"), "the run must fit this machine, but needs 699 GB of host memory, "),
        (f"{RUN} --weights-path empty --out file", "`--out` must be a folder, but got 'file'; it is a file; name a"),
        (RUN, "`weights=pretrained` needs a checkpoint, but none of opt-tiny is on the hub; give weights_path=FOLDER"),
        (f"{RUN} --weights-path nosuch", "`weights_path` must be a folder or a name on the hub, but there is no nos"),
        (f"{RUN} --weights-path empty", "`task=sst2` needs the tokenizer of opt-tiny, but empty has none of tokenizer."
                                        "json, tokenizer.model, vocab.json, vocab.txt, spiece.model, sentencepiec"),
        ("evaluate empty --split devv", "`--split` must be test or dev, but got 'devv'; did you mean dev?"),
        ("finetune --resume --out nowhere", "`--resume` needs a run to go on with, but nowhere holds none; leave "),
        ("evaluate empty --model opt-tiny", "`evaluate` needs RUN or --model, but got both or neither; name one of"),
        ("evaluate empty", "`RUN` must be the folder of a fine-tuning run that has ended, but empty has no result.jso"),
        (f"{SEARCH} --grid none", "`--grid` must be a file, but none cannot be read (No such file or directory); "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(zobench: Command, tmp_path: Path, arguments: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    code, out, err = zobench(*arguments.split(), "--device", "cpu")
    mistakes = [line for line in err.splitlines() if line.startswith("zobench: ")]
    assert (code, out, len(mistakes)) == (2, "", 1), err
    assert err.splitlines()[-1] == mistakes[0]
    assert mistakes[0].startswith(f"zobench: {message}")
    assert not (tmp_path / "runs").exists()
    assert ("loading" in err) == (re.match(AT_ONCE, mistakes[0]) is None)


def test_a_package_that_is_missing_is_named_before_anything_is_loaded(zobench, given, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ZOBENCH_DATA_DIR", raising=False)
    from_hub = ["--model", "opt-tiny", "--task", "sst2"]
    for package, words in (("datasets", from_hub), ("peft", [*given, "--scheme", "lora"])):
        monkeypatch.setitem(sys.modules, package, None)
        code, _, err = zobench("finetune", *words, "--out", "mine")
        assert (code, f"needs {package}, but it is not installed; pip install 'zobench[tasks]'" in err) == (1, True)
        assert ("loading" in err, (tmp_path / "mine").exists()) == (False, False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_an_interrupt_says_how_to_go_on_and_exits_130(tmp_path: Path, given: list[str]) -> None:
    words = [sys.executable, "-m", "zobench", "finetune", *given, "--steps", "100000", "--set", "eval_every=10",
             "--out", "mine"]  # fmt: skip
    source = str(Path(cli.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        curve, end = tmp_path / "mine" / "curve.jsonl", time.monotonic() + 60
        while not (curve.exists() and curve.read_text().count("dev_loss") >= 2) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    stopped = re.search(r"^stopped after (\d+) steps; the same command goes on from there \(mine\)$", err, re.MULTILINE)
    assert stopped, err
    steps = [item for item in journal.read(tmp_path / "mine" / "journal.bin")[1] if isinstance(item, Taken)]
    assert len(steps) == int(stopped[1]) >= 10


def test_resume_takes_all_from_the_folder_and_what_is_given_must_agree(zobench, given, tmp_path, data_dir) -> None:
    wanted = ["finetune", *given, "--method", "zo-sgd", "--steps", "2", "--out", "mine"]
    message = "zobench: `--resume` needs a run to go on with, but mine holds none; leave --resume out to begin one"
    assert zobench(*wanted, "--resume")[2].splitlines()[-1] == message
    assert zobench(*wanted)[0] == 0
    [first] = Store(tmp_path / "results").load()
    resumed = ["finetune", "--resume", "--out", "mine", "--data-dir", str(data_dir)]
    (tmp_path / "mine" / "result.json").unlink()
    code, _, err = zobench(*resumed, "--steps", "2", "--model", "opt-tiny")
    assert code == 0
    assert "resume: sst2 and all else as the journal in mine says" in err
    [again] = Store(tmp_path / "results").load()
    assert (again.spec, again.evaluation["test"]) == (first.spec, first.evaluation["test"])
    for wrong in (["--steps", "3"], ["--task", "rte"]):
        code, _, err = zobench(*resumed, *wrong)
        assert code == 2
        assert f"but got {wrong[0][2:]}={wrong[1]}, which it does not have; leave that out" in err.splitlines()[-1]


def test_a_disk_without_room_for_snapshots_is_one_line(zobench, given, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("zobench.machine.memory.free_disk_bytes", lambda folder: 1000)
    monkeypatch.setattr("zobench.cost.sizes.snapshot_bytes", lambda spec: 10_000_000)
    code, _, err = zobench("finetune", *given, "--steps", "2", "--out", "mine/deep")
    assert code == 2
    message = "zobench: `--out` must have room for snapshots of 30 MB, but 1 kB are free for mine/deep"
    assert err.splitlines()[-1].startswith(message)
    assert not (tmp_path / "mine").exists()


def test_ranks_are_started_with_the_same_command(zobench, given, tmp_path, monkeypatch) -> None:
    started: list[tuple[list[str], int, int]] = []

    def again(arguments: list[str], spec: Any, restarts: int) -> int:
        started.append((arguments, spec.gpus, restarts))
        return 7

    monkeypatch.setattr("zobench.parallel.launch.again", again)
    monkeypatch.setenv("ZOBENCH_RESTARTS", "2")
    more = ["--set", "gpus=2", "--set", "parallel=ddp", "--out", "mine", "--resume"]
    (tmp_path / "mine").mkdir()
    assert zobench("finetune", *given, "--steps", "2", *more)[0] == 7
    ((arguments, gpus, restarts),) = started
    assert (gpus, restarts, arguments[0]) == (2, 2, "finetune")
    assert {"--set=steps=2", "--set=gpus=2", "--set=lr=1e-3", "--resume"} <= set(arguments)
    pairs = list(itertools.pairwise(arguments))
    assert {("--out", "mine"), ("--results", "results"), ("--device", "cpu")} <= set(pairs)
    assert ("--data-dir", given[given.index("--data-dir") + 1]) in pairs


@pytest.mark.parametrize("more", [[], ["--scheme", "lora", "--method", "zo-sgd", "--set", "lr=1e-1"]])
def test_a_model_and_a_runs_best_weights_are_evaluated_without_training(zobench, given, tmp_path, more) -> None:
    words = [word for word in given if "lr=" not in word] if more else given
    assert zobench("finetune", *words, "--steps", "8", "--set", "eval_every=4", "--out", "mine", *more)[0] == 0
    (result,) = Store(tmp_path / "results").load()
    data = ["--data-dir", given[given.index("--data-dir") + 1], "--device", "cpu"]
    for split, key in (("test", "test"), ("dev", "best")):
        code, out, _ = zobench("evaluate", "mine", "--split", split, *data, "--json", "-")
        seen, stored = json.loads(out), result.evaluation[key]
        assert seen["step"] == stored["step"]
        assert (code, seen["accuracy"], seen["count"]) == (0, stored["accuracy"], stored["count"])
        assert seen["loss"] == pytest.approx(stored["loss"], rel=1e-6)
    code, out, _ = zobench("evaluate", *given[:-1], "--split", "dev", "--seq-len", "64", "--json", "kept.json")
    start = result.evaluation["start"]
    low, high = json.loads((tmp_path / "kept.json").read_text())["interval"]
    row = ["dev", f"{start['accuracy']:.1%}", f"{low:.1%}", "to", f"{high:.1%}", f"{start['loss']:.4f}"]
    assert (code, out.splitlines()[1].split()[:6]) == (0, row)
    if more:
        code, _, err = zobench("evaluate", "mine", *data, "--dtype", "bf16")
        said = "`dtype` must be the run's, because its journal gives an adapter's weights as they were trained, but got"
        assert (code, err.splitlines()[-1]) == (2, f"zobench: {said} 'bf16'; leave it out")
        path, stored_result = tmp_path / "mine" / "journal.bin", tmp_path / "mine" / "result.json"
        with pytest.raises(ValueError, match="must hold the evaluation after 99 steps, but is cut off"):
            up_to(path, journal.read(path)[1], 99)
        for size, why in ((0, "its head is damaged"), (None, "has no journal.bin")):
            path.unlink() if size is None else path.write_bytes(b"")
            code, _, err = zobench("evaluate", "mine", *data)
            assert code == 2
            assert why in err.splitlines()[-1]
        stored_result.write_text("{")
        assert "mine/result.json must be a result" in zobench("evaluate", "mine", *data)[2].splitlines()[-1]


def test_several_seeds_are_runs_of_their_own_and_have_a_mean_with_an_interval(
    zobench, given, tmp_path, monkeypatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("zobench.session.tuning.check_fits", lambda runs: asked.append([path.name for path in runs]))
    words = [*given, "--steps", "2", "--set", "seed=3", "--seeds", "3", "--out", "mine"]
    code, out, _ = zobench("finetune", *words)
    runs = Store(tmp_path / "results").load()
    scores = [run.evaluation["test"]["accuracy"] for run in sorted(runs, key=lambda run: run.spec.seed)]
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["seed-3", "seed-4", "seed-5"]
    assert asked == [["seed-3", "seed-4", "seed-5"]]  # all before the first of them takes memory
    assert f"test accuracy: {sum(scores) / 3:.1%}, mean of 3 seeds, 95 % interval " in out.splitlines()[-1]
    rows = [line.split() for line in out.splitlines()[-4:-1]]
    assert [(row[0], row[2]) for row in rows] == [(str(n + 3), f"{score:.1%}") for n, score in enumerate(scores)]
    summary = json.loads(zobench("finetune", *words, "--json", "-")[1])
    assert (summary["seeds"], summary["accuracy"]["mean"]) == ([3, 4, 5], pytest.approx(sum(scores) / 3))
    low, high = summary["accuracy"]["interval"]
    assert low <= summary["accuracy"]["mean"] <= high
