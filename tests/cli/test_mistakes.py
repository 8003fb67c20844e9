"""The command line: every mistake ends in one line and exit code 2, a refusal of the system in one line and 1."""

from typing import Any

import pytest

from zobench.execute import rates


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --model OPT-1.3", "unknown model 'OPT-1.3'; did you mean OPT-1.3B or "),
        ("run --model opt-tiny --engine offload --set resident_blocks=4", "`resident_blocks <= 3` must hold for opt-"),
        ("run --model opt-tiny --set step=5", "unknown key 'step'; did you mean steps or eps? see `zobench list fi"),
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
