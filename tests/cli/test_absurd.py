"""Every mistake ends in one line, and requests that nobody could mean: counted before anything is made, and no pipe is
waited for."""

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
from zobench.execute import rates
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --model OPT-1.3", "unknown model 'OPT-1.3'; did you mean OPT-1.3B or "),
        ("run --model opt-tiny --engine offload --set resident_blocks=4", "`resident_blocks <= 3` must hold for opt-"),
        ("run --model opt-tiny --set step=5", "unknown key 'step'; did you mean steps or eps? see `zobench list fi"),
        ("run --model opt-tiny --set learning_rate=1", "unknown key 'learning_rate'; did you mean lr? see `zob"),
        ("run --set lr = 1", "Got unexpected extra argument(s) (= 1) (see `zobench run --help`); write KEY=VALUE with"),
        ("table --set", "No such option: --set (Possible options: --out) (see `zobench table --help`)"),
        ("run --model opt-tiny --set steps", "`--set` needs KEY=VALUE, but got 'steps'; for example --set steps=5, see "
                                             "`zobench list fields`"),
        ("finetune --model opt-tiny --task sst2 --set weights=random --set slots=9", "`slots=9` needs engine=off"),
        ("run --model opt-tiny --json no/x.json", "`--json` must be a file in a folder that exists, but got 'no/"),
        ("run", "`model` must be given, but got no model; see `zobench list models`"),
        ("runn", "No such command 'runn'."),
        ("sweep", "Missing argument 'NAME|FILE'"),
        ("sweep main_tabel", "no such recipe in runners: 'main_tabel'; did you mean main_table? see "),
        ("sweep smoke --budget 5d", "`budget` must be a time, but got '5d'; write 90s, 10m or 2h30m"),
        ("sweep smoke --budget 0", "`budget > 0` must hold, but got '0'; write 90s, 10m or 2h30m"),
        ("sweep smoke --until 2% --repeats 5", "`until` needs at least 6 repeats, as fewer cannot tell how narrow"),
        ("sweep smoke --retry oomm", "`retry` takes oom, timeout, failed, skipped, contaminated or none, but got "
                                     "'oomm'; did you mean oom?"),
        ("sweep smoke --results file", "`results` must be a folder, but got 'file'; it is a file; name a folder"),
        ("sweep bad_key.toml", "bad_key.toml: unknown key 'axis' in the file; did you mean axes?"),
        ("sweep picture.toml", "picture.toml: `tables` must be tables, but zo2/figure3 is a figure; leave it out"),
        ("table zo2/table1 --results file/x", "`results` must be a folder, but got "),
        ("verdict zo3", "the paper must be one of zo-offloading-neurips24, zo-offloading-iclr25, zo2, distzo2, "
                        "zo-bench, but got 'zo3'; for example zo2"),
        ("list model", "unknown list 'model'; did you mean models?"),
    ],
)  # fmt: skip
def test_a_mistake_ends_in_one_line_and_exit_code_2(cwd, refused, cells, arguments, message) -> None:
    (cwd / "file").write_text("")
    (cwd / "bad_key.toml").write_text("[axis]\n")
    (cwd / "picture.toml").write_text('tables = ["zo2/figure3"]\n[base]\nmodel = "opt-tiny"\nseq_len = 16\n')
    words = arguments.split()
    wants_device = words[0] in ("run", "sweep") and len(words) > 1 and words[-1] not in ("--model", "--set")
    line = refused(*words, *(["--device", "cpu"] if wants_device else []))
    assert line.startswith(f"zobench: {message}")
    assert cells == []


@pytest.mark.parametrize(
    "arguments",
    ["run --model opt-tiny", "sweep smoke", "finetune --model opt-tiny --task sst2", "doctor", "selftest"],
)
def test_a_disk_folder_that_is_not_there_is_refused_before_anything_runs(refused, cells, monkeypatch, arguments):
    monkeypatch.setenv("ZOBENCH_DISK_DIR", "nosuch")
    line = refused(*arguments.split(), "--device", "cpu")
    assert line == "zobench: `ZOBENCH_DISK_DIR` must be a folder, but got 'nosuch'; it is not there; check it"
    assert cells == []


def test_what_the_system_refuses_is_one_line_and_exit_code_1(cwd, zobench, monkeypatch) -> None:
    monkeypatch.setattr(rates, "ask", _refuse)
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(cwd / "cache"))
    code, _, err = zobench("sweep", "smoke", "--device", "cpu", "--results", "elsewhere")
    assert code == 1
    assert err.splitlines()[-1] == "zobench: measuring this machine failed: no"


def _refuse(*_: Any) -> str:
    raise OSError("measuring this machine failed: no")
