"""Requests that nobody could mean end in one line: counted before anything is made, and no pipe is waited for."""

import csv
import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from tests.support.commands import bounded
from tests.support.files import written
from zobench.cli import plan_view
from zobench.cli.console import outcome_line
from zobench.execute.plan import Step
from zobench.execute.slurm import Request
from zobench.machine.texts import csv_of
from zobench.recipes import matrix
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.session.inputs import check_file
from zobench.session.machine import keeping
from zobench.store import NoLocksError, Store, query
from zobench.training.search import cells

MODEL = '[base]\nmodel = "opt-tiny"\n'
TEN = list(range(1, 11))
CONFIG = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 32, "ffn_dim": 64, "vocab_size": 64,
    "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
}  # fmt: skip
NINE = ("seed", "batch_size", "steps", "warmup", "queries", "slots", "zo_layers", "resident_blocks", "seq_len")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{MODEL}[axes]\n" + "".join(f"{name} = {TEN}\n" for name in NINE), "1,000,000,000"),
        (MODEL + "".join(f"[[variants]]\nseed = {seed}\n" for seed in range(30_000)), "30,000"),
        (f"{MODEL}[[include]]\n" + "".join(f"{name} = {TEN}\n" for name in NINE), "1,000,000,000"),
    ],
    ids=["axes", "variants", "include"],
)
def test_the_cells_of_a_matrix_are_counted_before_one_is_made(tmp_path, text, count, monkeypatch) -> None:
    monkeypatch.setattr(matrix, "_product", lambda values: pytest.fail("cells were made"))
    (path := tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ValueError, match=f"^mine.toml: a matrix must have at most 5,000 cells, but this has {count} "):
        matrix.load(path, "cpu")


def test_a_search_is_counted_before_a_run_of_it_is_made() -> None:
    axes = dict.fromkeys(("seed", "batch_size", "steps", "warmup"), TEN)
    with pytest.raises(ValueError, match=r"^a grid must have at most 1,000 runs, but this has 10,000; give fewer"):
        cells(RunSpec(model="opt-tiny").resolve("cpu"), axes)


def test_a_refusal_that_quotes_a_million_characters_is_short(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"{MODEL}[axes]\nseed = [1]\n[[exclude]]\ndtype = '{'x' * 900_000}'\n")
    done = bounded(tmp_path, "sweep", "mine.toml", "--dry-run", "--device", "cpu")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.err.startswith("zobench: mine.toml: `dtype` must be ")
    assert len(done.err) < 1_600


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_among_a_models_files_is_not_read(tmp_path: Path, name: str) -> None:
    written(tmp_path / "m" / "config.json", json.dumps(CONFIG))
    os.mkfifo(tmp_path / "m" / name)
    done = bounded(tmp_path, "run", "--model", "./m", "--set", "weights=pretrained", "--device", "cpu")
    assert (done.code, len(done.err.splitlines()[-1:])) == (2, 1)
    assert "safetensors" in done.err


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path, zobench, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    code, _, err = zobench("sweep", "smoke", "--device", "cpu", "--results", "loop")
    assert code == 2
    assert err.endswith("must be a folder, but got 'loop'; it is a link that leads nowhere; name a folder\n")


def test_a_link_to_a_file_that_is_to_be_written_stays_a_link(tmp_path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    check_file("--json", link)
    assert (link.is_symlink(), link.exists()) == (True, False)


def test_a_store_without_working_locks_is_not_said_to_keep_nothing(tmp_path, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    store, said = Store(tmp_path / "results"), list[str]()
    with keeping(store, lambda text, style: said.append(f"{style} {text}")):
        spec = RunSpec(model="opt-tiny").resolve("cpu")
        store.save(Result(spec=spec, outcome=Outcome.FAILED, reason="x", environment=Facts(machine="cpu-2c-4f2a91")))
    (text,) = said
    assert text.startswith("yellow warning: results are kept, but nothing keeps a second sweep out: ")
    assert len(store.runs()) == 1
    with pytest.raises(NoLocksError, match="must be on a disk with working locks"), store.lock():
        pass


def test_a_stored_reason_gives_the_terminal_no_orders() -> None:
    """It may come from anyone's results."""
    screen, spec = Console(record=True, width=200), RunSpec(model="opt-tiny").resolve("cpu")
    kept = Step(spec=spec, action="keep", reason="failed before: \x1b[2J\x1b]0;mine\x07 so", estimate=None)
    plan_view.show_plan(screen, "Title", [kept], None)
    row = screen.export_text().splitlines()[2]
    assert row.isprintable()
    assert "failed before: \N{REPLACEMENT CHARACTER}[2J" in row
    line = outcome_line(Result(spec=spec, outcome=Outcome.FAILED, reason="\x1b[2J"))
    assert line.plain.isprintable()


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    rows = [
        ["=1+1", "+x", "-x", "@x", "\t=x"],
        ["-0.5", "+1e-3", "-inf", -1.5, "-"],
        ["a=b", "", None, "x", "'"],
        [" =1+1", "\xa0@x", "\ufeff-x", "\n +x", "\uff1dx"],
        [" -1", " x", "\n", "= ", " ="],
    ]
    read = list(csv.reader(io.StringIO(csv_of(pd.DataFrame(rows)))))[1:]
    assert read[0] == ["'=1+1", "'+x", "'-x", "'@x", "'\t=x"]
    assert read[1:3] == [["-0.5", "+1e-3", "-inf", "-1.5", "-"], ["a=b", "", "", "x", "'"]]
    assert read[3:] == [[f"'{text}" for text in rows[3]], [" -1", " x", "\n", "'= ", "' ="]]
    spec = RunSpec(model="opt-tiny").resolve("cpu")
    facts = Facts(machine="cpu-2c-4f2a91")
    result = Result(spec=spec, outcome=Outcome.FAILED, reason="=HYPERLINK(1)", environment=facts)
    query.export([result], tmp_path / "x.csv")
    (row,) = csv.DictReader((tmp_path / "x.csv").open())
    assert (row["reason"], row["lr"]) == ("'=HYPERLINK(1)", "1e-07")
    assert csv_of(pd.DataFrame({" =1+1": ["@x"], "b": [0.1]})) == "' =1+1,b\n'@x,0.1\n"


@pytest.mark.parametrize("text", ["gpu\n#SBATCH --uid=0", "a\x1bb", "a\u2028b"])
def test_what_slurm_is_asked_has_no_control_characters(text: str) -> None:
    for option, request in (
        ("--partition", {"partition": text}), ("--gres", {"gres": text}), ("--slurm qos", {"more": {"qos": text}}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^'{option}' must have no control characters, but got ") as refused:
            Request(**request)  # type: ignore[arg-type]
        assert str(refused.value).isprintable()
