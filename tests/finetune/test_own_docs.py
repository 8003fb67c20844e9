"""Every file, command and program of docs/data.md does what the page says."""

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from zobench.runspec import RunSpec
from zobench.store import Store
from zobench.training import finetune as run

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
TASKS = {
    "reviews.toml": {"train": 3, "dev": 1, "test": 2},
    "choices.toml": {"train": 2, "dev": 1, "test": 3},
    "questions.toml": {"train": 2, "dev": 1, "test": 1},
    "poems.toml": {"train": 1, "dev": 1, "test": 1},
}


@pytest.fixture
def folder(tmp_path: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, and a model beside them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "my-model").symlink_to(weights_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".toml")])
def test_a_run_on_a_task_of_the_page(name: str, folder: Path) -> None:
    spec = RunSpec(
        model="opt-tiny", weights="pretrained", weights_path="my-model", task=name, steps=2, batch_size=2, seq_len=64
    ).resolve("cpu")
    result = run(spec, folder=folder / "run")
    assert result.evaluation["task"]["counts"] == TASKS[name]
    called = "my-choices" if name == "choices.toml" else name.removesuffix(".toml")
    assert result.evaluation["task"]["task"] == spec.task_name == called


def test_the_command_of_the_page(folder: Path, zobench: Any) -> None:
    (line,) = re.findall(r"^\$ zobench (finetune .*)$", PAGE, re.MULTILINE)
    code, _, err = zobench(*line.split(), "--device", "cpu", "--set", "batch_size=2")
    assert code == 0, err
    (result,) = Store(folder / "results").load()
    run_folder = folder / "runs" / f"opt-tiny-reviews-zo-sgd-full-{result.spec.hash}"
    lines = (run_folder / "curve.jsonl").read_text().splitlines()
    with (run_folder / "curve.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(lines)
    assert [json.loads(line)["step"] for line in lines if '"loss"' in line] == [1, 2, 3, 4]
    assert list((run_folder / "tensorboard").iterdir())
    shown = zobench("results")[1]
    assert "reviews" in shown
    assert "@" not in shown


def test_a_first_task_file_of_each_of_the_pages_files_of_rows_trains(folder, zobench) -> None:
    (answer,) = re.findall(r"^\$ zobench task new reviews.jsonl\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name in ("reviews.toml", "poems.toml"):
        (folder / name).unlink()
    for data in ("reviews.jsonl", "poems.txt"):
        code, shown, _ = zobench("task", "new", data)
        assert code == 0
        assert data != "reviews.jsonl" or shown == answer
        values = {"weights_path": "my-model", "task": shlex.split(shown)[-1], "steps": 1, "batch_size": 2}
        run(
            RunSpec(model="opt-tiny", weights="pretrained", seq_len=64, **values).resolve("cpu"),
            folder=folder / data[:5],
        )
    text = "zobench: the task file must be new, but there is a reviews.toml; use --task reviews.toml, or remove it\n"
    assert zobench("task", "new", "reviews.jsonl")[2] == text


def test_the_mistake_of_the_page(folder: Path, zobench: Any) -> None:
    (line,) = re.findall(r"^zobench: reviews.toml: .*$", PAGE, re.MULTILINE)
    (folder / "reviews.toml").write_text(FILES["reviews.toml"].replace("{text}", "{txt}"))
    for words in (["finetune"], ["run", "--set", "weights_path=my-model", "--set", "weights=pretrained"]):
        code, _, err = zobench(*words, "--model", "opt-tiny", "--task", "reviews.toml", "--device", "cpu")
        assert (code, err.splitlines()[-1]) == (2, line)


def test_the_program_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/data.md", "exec"), {})
    *best, accuracy = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d \{'accuracy': [01]\.\d+\}", best[0])
    assert 0 <= float(accuracy) <= 1
