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
from zobench.execute.plan import Shortage
from zobench.methods.base import Taken
from zobench.programs.cell import run as measured
from zobench.runspec import RunSpec
from zobench.store import Store
from zobench.training import assemble

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


def test_virtual_tokens_leave_their_positions_and_a_scheme_has_its_own_grid(zobench: Command, given: list[str]) -> None:
    words = [word for word in given if "lr=" not in word]
    code, _, err = zobench("search", *words, "--set", "scheme=prompt", "--set", "steps=1")
    assert code == 0
    assert "seq_len: 54, the longest text that opt-tiny takes here" in err.splitlines()
    assert "grid: lr 0.01, 0.001; eps 0.1 (choice)" in err.splitlines()


def test_a_finished_run_is_shown_again(zobench: Command, given: list[str], tmp_path: Path) -> None:
    words = ["finetune", *given, "--steps", "2", "--out", "mine"]
    first, again = zobench(*words), zobench(*words)
    assert first[:2] == again[:2]
    assert "step 2: dev accuracy" in first[2]
    assert "step 2: dev accuracy" not in again[2]
    told = "finished before: this is its result; to train anew, name another folder than mine"
    assert (told in first[2].splitlines(), told in again[2].splitlines()) == (False, True)


def test_a_run_that_diverges_says_so_and_fails(zobench: Command, given: list[str], tmp_path: Path) -> None:
    new = {"--set=lr=1e-3": "--set=lr=1e30", "--set=batch_size=4": "--set=batch_size=100"}
    words = ["finetune", *(new.get(word, word) for word in given), "--steps", "2", "--out", "mine"]
    told = (
        "diverged: the loss on dev was not finite after step 1; its weights are good for nothing; try an lr below 1e+30"
    )
    for first in (True, False):  # trained, and then as it is stored
        code, out, err = zobench(*words)
        assert ("a batch has 24 examples, not 100: train has no more" in err.splitlines()) == first
        assert (code, told in out) == (1, True)
        assert "learnt nothing" not in out
    (result,) = Store(tmp_path / "results").load()
    assert told in result.warnings


def test_json_alone_is_on_standard_output(zobench: Command, given: list[str]) -> None:
    code, out, err = zobench("finetune", *given, "--steps", "2", "--json", "-")
    assert (code, err) == (0, "") or not err.startswith("zobench")
    values = json.loads(out)
    assert values["outcome"] == "ok"
    assert [row[0] for row in values["evaluation"]["curve"]] == [0, 1, 2]


def test_a_search_shows_the_grid_and_tests_the_winner(zobench: Command, given: list[str], tmp_path: Path) -> None:
    words = [word for word in given if "lr=" not in word]
    code, out, err = zobench("search", *words, "--set", "lr=1e-3,1e-2", "--set", "steps=2", "--out", "found")
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
HUGE = "finetune --model OPT-175B --set weights=random --task sst2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("finetune --model opt-tiny", "`--task` must be given, but is not; use one of sst2, rte, cb, boolq, wsc, "),
        ("finetune --model opt-tiny --task no.toml", "`task` must be a TOML file, but no.toml cannot be read (No such"),
        ("finetune --model opt-tiny --task reviews.csv", "`task` must be one of none, sst2, rte, cb, boolq, wsc, wic, "
                                                         "multirc, copa, winogrande, squad, drop, record, but got "
                                                         "'reviews.csv'; that is data: `zobench task new revi"),
        (f"{RUN} --log tensorbord", "`--log` must be one of tensorboard, wandb, mlflow, but got 'tensorbord'; did "),
        (f"{RUN} --method zo-sdg", "`method` must be one of zo-sgd, zo-sgd-sign, "),
        (f"{RUN} --weights-path empty --data-dir no", "`--data-dir` must be a folder with the tasks' files, but there "
                                                      "is no no; check it"),
        (f"{RUN} --weights-path empty --data-dir file", "`--data-dir` must be a folder, but got 'file'; it is a file"),
        (f"{RUN} --weights-path ./absent", "`weights_path` must be a folder or a name on the hub, but there is no ./"),
        (f"{RUN} --scheme lorra", "`scheme` must be one of full, lora, prefix, prompt, but got 'lorra'; did you mean "),
        (HUGE, "the run must fit this machine, but needs 699 GB of host memory, "),
        (f"{HUGE} --method fo-sgd", "the run must fit this machine, but needs "),
        (HUGE.replace("finetune", "search"), "the run must fit this machine, but needs 699 GB of host memory, "),
        (f"{RUN} --weights-path empty --out file", "`--out` must be a folder, but got 'file'; it is a file; name a"),
        (RUN, "`weights=pretrained` needs a checkpoint, but none of opt-tiny is on the hub; give weights_path=FOLDER"),
        (f"{RUN} --set weights=random", "`task=sst2` needs the tokenizer of opt-tiny, but it is on no hub; give "
                                        "weights_path=FOLDER with its tokenizer.json"),
        (f"{RUN} --weights-path nosuch", "`weights_path` must be a folder or a name on the hub, but there is no nos"),
        (f"{RUN} --weights-path empty", "`task=sst2` needs the tokenizer of opt-tiny, but empty has none of tokenizer."
                                        "json, tokenizer.model, vocab.json; give weights_path=FOLDER with its to"),
        (f"{SEARCH} --grid none", "`--grid` must be a file, but none cannot be read (No such file or directory); "),
        (f"{SEARCH} --set seed=1,2", "`seed` must be the same in a whole search, but is varied; vary lr, eps, "),
        (f"{SEARCH} --set lr=1e-3,x", "`lr` must be a number, but got 'x'; for example "),
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


def test_data_that_are_not_there_are_one_line(zobench: Command, given: list[str], tmp_path: Path) -> None:
    given[given.index("--data-dir") + 1] = str(tmp_path)
    code, out, err = zobench("finetune", *given, "--steps", "2")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("zobench: ")
    assert str(tmp_path) in err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on_and_exits_130(tmp_path: Path, given: list[str], number: signal.Signals) -> None:
    words = [sys.executable, "-m", "zobench", "finetune", *given, "--steps", "100000", "--set", "eval_every=10",
             "--out", "mine"]  # fmt: skip
    source = str(Path(cli.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        early, end = tmp_path / "mine" / "progress.jsonl", time.monotonic() + 60
        while not (early.exists() and len(early.read_text().splitlines()) >= 2) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = re.search(r"^stopped after (\d+) steps; the same command goes on from there \(mine\)$", err, re.MULTILINE)
    assert told, err
    steps = [item for item in journal.read(tmp_path / "mine" / "journal.bin")[1] if isinstance(item, Taken)]
    assert len(steps) == int(told[1]) >= 10


def test_resume_needs_a_run_to_go_on_with(zobench: Command, given: list[str]) -> None:
    wanted = [*given, "--method", "zo-sgd", "--steps", "2", "--out", "mine"]
    code, _, err = zobench("finetune", *wanted, "--resume")
    assert code == 2
    told = "zobench: `--resume` needs a run to go on with, but mine holds none; leave --resume out to begin one"
    assert err.splitlines()[-1] == told
    assert zobench("finetune", *wanted)[0] == 0
    assert zobench("finetune", *wanted, "--resume")[0] == 0


def test_resume_takes_all_from_the_folder_and_what_is_given_must_agree(zobench, given, tmp_path, data_dir) -> None:
    assert zobench("finetune", *given, "--method", "zo-sgd", "--steps", "2", "--out", "mine")[0] == 0
    [first] = Store(tmp_path / "results").load()
    resumed = ["finetune", "--resume", "--out", "mine", "--data-dir", str(data_dir)]
    (tmp_path / "mine" / "result.json").unlink()
    for some in ([], ["--steps", "2", "--model", "opt-tiny"], ["--task", "sst2", "--device", "cpu"]):
        code, _, err = zobench(*resumed, *some)
        assert code == 0
        assert "resume: sst2 and all else as the journal in mine says" in err
    [again] = Store(tmp_path / "results").load()
    assert (again.spec, again.evaluation["test"]) == (first.spec, first.evaluation["test"])
    for wrong in (["--steps", "3"], ["--task", "rte"], ["--model", "OPT-125M"]):
        code, _, err = zobench(*resumed, *wrong)
        assert code == 2
        assert f"but got {wrong[0][2:]}={wrong[1]}, which it does not have; leave that out" in err.splitlines()[-1]


def test_wrong_values_are_refused_before_torch_is_imported(tmp_path: Path, given: list[str]) -> None:
    wrong = {
        "`steps >= 1` must hold, but got steps=0": ["--set", "steps=0"],
        "`--data-dir` must be a folder with the tasks' files, but there is no nowhere": ["--data-dir", "nowhere"],
        "`task` must be a TOML file, but nofile.toml cannot be read": ["--task", "nofile.toml"],
    }
    tries = [[command, *given, *words] for command in ("finetune", "search") for words in wrong.values()]
    code = f"""
import sys
sys.modules["torch"] = None
from zobench import cli
for words in {tries!r}:
    try:
        cli.main(words)
    except SystemExit as end:
        assert end.code == 2, words
"""
    tried = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    told = [line for line in tried.stderr.splitlines() if line.startswith("zobench: ")]
    assert tried.returncode == 0, tried.stderr
    assert [text in line for line, text in zip(told, [*wrong, *wrong], strict=True)] == [True] * 6, told


def test_a_disk_without_room_for_snapshots_is_one_line(zobench, given, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("zobench.machine.memory.free_disk_bytes", lambda folder: 1000)
    monkeypatch.setattr("zobench.cost.sizes.snapshot_bytes", lambda spec: 10_000_000)
    for words, room in ((["finetune", *given, "--steps", "2"], 30), (["search", *given, "--set", "steps=2,3"], 40)):
        code, _, err = zobench(*words, "--out", "mine/deep")
        told = f"`--out` must have room for snapshots of {room} MB, but 1 kB are free for mine/deep"
        assert code == 2
        assert err.splitlines()[-1].startswith(f"zobench: {told}")
        assert not (tmp_path / "mine").exists()


def test_what_fits_no_more_is_shown_when_it_is_finished(zobench, given, monkeypatch) -> None:
    words = ["finetune", *given, "--steps", "2", "--out", "mine"]
    first = zobench(*words)
    monkeypatch.setattr("zobench.execute.plan.shortage", lambda need, room: Shortage("needs too much", ""))
    assert zobench(*words)[:2] == first[:2]
    code, _, err = zobench(*words[:-1], "other")
    assert (code, err.splitlines()[-1]) == (
        2, "zobench: the run must fit this machine, but needs too much; use engine=offload, or a smaller batch_size or "
        "model",
    )  # fmt: skip


def test_memory_that_runs_out_is_one_line(zobench: Command, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise MemoryError("no 9 GB")

    monkeypatch.setattr("zobench.training.finetune", exhausted)
    code, _, err = zobench("finetune", *given, "--steps", "2")
    assert code == 1
    assert err.splitlines()[-1] == "oom: host memory ran out: no 9 GB"


def test_ranks_are_started_with_the_same_command(zobench, given, tmp_path, monkeypatch) -> None:
    started: list[tuple[list[str], int, int]] = []

    def again(arguments: list[str], spec: Any, restarts: int) -> int:
        started.append((arguments, spec.gpus, restarts))
        return 7

    monkeypatch.setattr("zobench.parallel.launch.again", again)
    monkeypatch.setenv("ZOBENCH_RESTARTS", "2")
    more = ["--set", "gpus=2", "--set", "parallel=ddp", "--out", "mine", "--resume"]
    assert zobench("finetune", *given, "--steps", "2", *more)[0] == 7
    ((arguments, gpus, restarts),) = started
    assert (gpus, restarts, arguments[0]) == (2, 2, "finetune")
    assert {"--set=steps=2", "--set=gpus=2", "--set=lr=1e-3", "--resume"} <= set(arguments)
    pairs = list(itertools.pairwise(arguments))
    assert {("--out", "mine"), ("--results", "results"), ("--device", "cpu")} <= set(pairs)
    assert ("--data-dir", given[given.index("--data-dir") + 1]) in pairs
    monkeypatch.setenv("ZOBENCH_RESTARTS", "some")
    code, _, err = zobench("finetune", *given, "--steps", "2", *more)
    told = "zobench: `ZOBENCH_RESTARTS` must be a whole number, but got 'some'; for example 2"
    assert (code, err.splitlines()[-1]) == (2, told)


@pytest.mark.parametrize("option", ["--out", "--results"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_run_begins(zobench, given, option, monkeypatch) -> None:
    monkeypatch.setattr("zobench.cli.finetune._trained", lambda *_: pytest.fail("the run has begun"))
    code, _, err = zobench("finetune", *given, option, "/proc/mine")
    assert code == 2
    assert f"zobench: `{option}` must be a folder that you may write to, but got '/proc/mine' (" in err


def test_a_message_names_what_was_given_and_not_weights_path(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(model="opt-tiny", weights="pretrained", seq_len=64)
    monkeypatch.setattr(assemble.models, "weights_place", lambda _: "/no/such")
    model, told = assemble.empty_model(spec), "must be a folder or a hub id"
    for one, name in ((spec, "`weights=pretrained`"), (spec.replace(weights_path="/no/such"), "`weights_path`")):
        with pytest.raises(ValueError, match=f"^{name} {told}"):
            assemble.initial_weights(one, model)


@pytest.mark.parametrize("more", [[], ["--scheme", "lora", "--method", "zo-sgd", "--set", "lr=1e-1"]])
def test_a_model_and_a_runs_best_weights_are_evaluated_without_training(zobench, given, tmp_path, more) -> None:
    words = [word for word in given if "lr=" not in word] if more else given
    assert zobench("finetune", *words, "--steps", "8", "--set", "eval_every=4", "--out", "mine", *more)[0] == 0
    (result,) = Store(tmp_path / "results").load()
    data = ["--data-dir", given[given.index("--data-dir") + 1], "--device", "cpu"]
    for split, key in (("test", "test"), ("dev", "best")):
        code, out, _ = zobench("evaluate", "mine", "--split", split, *data, "--json", "-")
        seen, stored = json.loads(out), result.evaluation[key]
        assert (code, seen["accuracy"], seen["count"]) == (0, stored["accuracy"], stored["count"])
        assert seen["loss"] == pytest.approx(stored["loss"], rel=1e-6)
    code, out, _ = zobench("evaluate", *given[:-1], "--split", "dev", "--seq-len", "64", "--json", "kept.json")
    start = result.evaluation["start"]
    low, high = json.loads((tmp_path / "kept.json").read_text())["interval"]
    row = ["dev", f"{start['accuracy']:.1%}", f"{low:.1%}", "to", f"{high:.1%}", f"{start['loss']:.4f}"]
    assert (code, out.splitlines()[1].split()[:6], out.split()[-1]) == (0, row, "12")
    assert low < start["accuracy"] < high
    assert len(Store(tmp_path / "results").load()) == 1
    if more:
        (tmp_path / "mine" / "journal.bin").write_bytes(b"")
        assert zobench("evaluate", "mine", *data)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "`evaluate` needs RUN or --model, but got both or neither; name one of them"),
        ("empty --model opt-tiny", "`evaluate` needs RUN or --model, but got both or neither; name one of them"),
        ("empty", "`RUN` must be the folder of a fine-tuning run that has ended, but empty has no result.json or no "),
        ("--model opt-tiny", "`--task` must be given, but is not; see `zobench list tasks`"),
        ("--model opt-tiny --task sst2 --split all", "`--split` must be test or dev, but got 'all'; "),
        ("--model OPT-175B --task sst2", "`weights=pretrained` needs a checkpoint, but none of OPT-175B is on the hub"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(zobench: Command, tmp_path: Path, arguments: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = zobench("evaluate", *arguments.split(), "--device", "cpu")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"zobench: {message}")


def test_an_adapter_without_a_journal_of_updates_is_refused(zobench: Command, given: list[str], tmp_path: Path) -> None:
    words = ["--scheme", "lora", "--method", "fo-sgd", "--steps", "2", "--out", "mine"]
    assert zobench("finetune", *given, *words)[0] == 0
    code, _, err = zobench("evaluate", "mine", "--device", "cpu")
    assert code == 2
    assert "but mine holds an adapter that fo-sgd trained; merge it into a model with peft" in err.splitlines()[-1]


def test_the_length_the_type_and_the_batch_are_options_of_every_command_that_makes_cells(
    zobench: Command, given: list[str], tmp_path: Path
) -> None:
    sizes = ["--seq-len", "24", "--dtype", "bf16", "--batch-size", "3"]
    words = [word for word in given if "batch_size" not in word]
    assert zobench("finetune", *words, *sizes, "--steps", "1")[0] == 0
    assert (
        zobench("run", "--model", "opt-tiny", "--device", "cpu", *sizes, "--json", "cell.json", "--set", "steps=1")[0]
        == 0
    )
    stored = [
        Store(tmp_path / "results").load()[0].spec.to_dict(),
        json.loads((tmp_path / "cell.json").read_text())["spec"],
    ]
    assert [(one["seq_len"], one["dtype"], one["batch_size"]) for one in stored] == [(24, "bf16", 3)] * 2
    for words in (
        ["plan", "--model", "OPT-125M", "--gpu", "h100-sxm"],
        ["sweep", "smoke", "--device", "cpu", "--dry-run", "-v"],
    ):
        code, out, _ = zobench(*words, *sizes)
        assert (code, "bf16" in out, "fp32" in out) == (0, True, False), out


def test_several_seeds_are_runs_of_their_own_and_have_a_mean_with_an_interval(zobench, given, tmp_path) -> None:
    words = [*given, "--steps", "2", "--set", "seed=3", "--seeds", "3", "--out", "mine"]
    code, out, _ = zobench("finetune", *words)
    runs = Store(tmp_path / "results").load()
    scores = [run.evaluation["test"]["accuracy"] for run in sorted(runs, key=lambda run: run.spec.seed)]
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["seed-3", "seed-4", "seed-5"]
    assert f"test accuracy: {sum(scores) / 3:.1%}, mean of 3 seeds, 95 % interval " in out.splitlines()[-1]
    rows = [line.split() for line in out.splitlines()[-4:-1]]
    assert [(row[0], row[2]) for row in rows] == [(str(n + 3), f"{score:.1%}") for n, score in enumerate(scores)]
    told = json.loads(zobench("finetune", *words, "--json", "-")[1])
    assert (told["seeds"], told["accuracy"]["mean"]) == ([3, 4, 5], pytest.approx(sum(scores) / 3))
    low, high = told["accuracy"]["interval"]
    assert low <= told["accuracy"]["mean"] <= high
    code, _, err = zobench("finetune", *given, "--seeds", "1")
    assert (code, err.splitlines()[-1]) == (
        2, "zobench: `--seeds >= 2` must hold, but got 1; leave it out for one run",
    )  # fmt: skip


def test_a_measured_cell_is_kept_where_that_is_asked_for(zobench: Command, tmp_path: Path) -> None:
    words = ["run", "--model", "opt-tiny", "--device", "cpu", "--seq-len", "16", "--set", "steps=1"]
    assert zobench(*words)[0] == 0
    assert not (tmp_path / "results").exists()
    assert zobench(*words, "--results", "results")[0] == 0
    (kept,) = Store(tmp_path / "results").load()
    assert (kept.spec.seq_len, kept.is_ok) == (16, True)
