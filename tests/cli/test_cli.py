"""The command line: what it is made of, its lists, and single runs: the answer alone on standard output."""

import json
import re
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

import zobench as package
from tests.support.commands import run_in
from tests.support.rates import RATES, calibrate
from zobench import cost
from zobench.cli import console
from zobench.cli.common import app
from zobench.execute import plan, process
from zobench.execute.monitor import Monitor
from zobench.machine import texts
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.session import machine, single
from zobench.session.inputs import parse_seconds
from zobench.store import Store

GB = 10**9


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h30m", 9000), ("1.5h", 5400)])
def test_a_time_is_read_in_the_units_that_it_names(text: str, seconds: float) -> None:
    assert parse_seconds("--budget", text) == seconds


@pytest.mark.parametrize("text", ["", "30m2h", "2h30", "-2h", "5d", "0h0m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`--budget"):
        parse_seconds("--budget", text)


def test_without_arguments_the_help_is_shown(zobench: Any) -> None:
    bare, asked = zobench(), zobench("--help")
    assert bare == asked
    assert (bare[0], bare[2]) == (0, "")
    assert "Run a matrix of cells" in bare[1]
    assert zobench("--version") == (0, package.__version__ + "\n", "")


def test_an_option_that_is_called_as_its_value_says_its_name() -> None:
    """Some versions of Typer take such an option's metavar for its name: ``--PART PART``."""

    def commands(group: Any) -> Iterator[Any]:
        for command in group.registered_commands:
            yield command.callback
        for inner in group.registered_groups:
            yield from commands(inner.typer_instance)

    unnamed = [
        (function.__name__, name)
        for function in commands(app)
        for name, hint in typing.get_type_hints(function, include_extras=True).items()
        for option in getattr(hint, "__metadata__", ())
        if (option.metavar or "").lower() == name and option.default is ... and hasattr(option, "confirmation_prompt")
    ]
    assert not unnamed


def test_looking_around_imports_nothing_heavy(cwd: Path, machine: str) -> None:
    program = """
import sys
from zobench import cli
heavy = {"torch", "transformers", "accelerate", "trl", "pandas", "numpy", "matplotlib"}
for arguments in ([], ["--help"], ["list"], ["list", "models"], ["sweep", "main_table", "--dry-run", "--device", "cpu"],
                  ["table", "zo2/table1"], ["run", "--model", "typo", "--device", "cpu"],
                  ["finetune", "--model", "OPT-1.3", "--task", "sst2"], ["sweep", "smoke", "--set", "method=zo-sdg"],
                  ["campaign"], ["campaign", "small-cpu", "--plan"],
                  ["results"], ["results", ".", "--where", "seed=1"], ["compare", ".", "."], ["trace", "0000"]):
    try:
        cli.main(arguments)
    except SystemExit:
        assert not heavy & set(sys.modules), (arguments, heavy & set(sys.modules))
"""
    environment = {**process.child_environment(), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "OPT-175B" in done.stdout


def test_run_tells_on_standard_error_and_leaves_standard_output_alone(cwd, zobench, cells) -> None:
    code, out, err = zobench("run", "--model", "OPT-TINY", "--device", "cpu", "--json", "out.json")
    assert (code, out) == (0, "")
    assert err.splitlines()[:2] == ["device: cpu, as asked", "seq_len: 64, because opt-tiny has 64 positions"]
    assert err.splitlines()[2].startswith("ok       opt-tiny resident fp32 b1 s64  128 tokens/s, 0.5 s a step")
    assert Result.from_dict(json.loads((cwd / "out.json").read_text())).spec == cells[0]
    assert cells[0].seq_len == 64


def test_a_given_device_memory_is_planned_aloud(cwd: Path, zobench: Any, cells: list[RunSpec]) -> None:
    command = ("run", "--model", "OPT-125M", "--engine", "offload", "--set", "noise=counter", "--device", "cpu")
    code, _, err = zobench(*command, "--device-memory", "1GB")
    assert (code, [spec.device_memory for spec in cells]) == (0, [GB])
    assert "device_memory=1GB: blocks in 3 slots need " in err
    assert "and 12 of 12 blocks stay" in err
    code, out, err = zobench(*command, "--device-memory", "100MB")
    assert (code, out, len(err.splitlines()), len(cells)) == (2, "", 1, 1)
    assert "must hold for OPT-125M in 2 slots of tiles, but got device_memory=100MB; give it more" in err


@pytest.mark.parametrize("shows", [console.busy, console.waiting])
def test_without_a_terminal_lines_ever_less_often_say_what_takes_long(shows, monkeypatch, capsys) -> None:
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.01)
    with shows("making the cells"), shows("measuring") as change:
        time.sleep(0.1)
        change("packing")
        time.sleep(0.3)
    err = capsys.readouterr().err
    assert err.startswith("measuring for 0 s\n"), "of two waits the inner one"
    assert err.endswith("packing for 0 s\n")
    assert len(err.splitlines()) <= 6  # at 0.01, 0.02, 0.04, ... s


@pytest.mark.parametrize(
    "command", ["results", "verdict zo2 --results", "compare engine=resident engine=offload --results", "sweep smoke"]
)
def test_what_is_slow_before_an_answer_says_so(command, cwd: Path, zobench: Any, monkeypatch) -> None:
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.01)
    monkeypatch.setattr(Store, "load", lambda *_: time.sleep(0.1) or [])
    monkeypatch.setattr(machine, "choose_device", lambda _: time.sleep(0.1) or ("cpu", "device: cpu"))
    words = ["sweep", "smoke", "--dry-run"] if command.startswith("sweep") else [*command.split(), "results"]
    assert zobench(*words)[2].startswith(("reading results for 0 s\n", "loading PyTorch for 0 s\n"))


def test_run_ends_with_1_where_the_cell_did_not_work(cwd: Path, zobench: Any, cells: list[RunSpec]) -> None:
    code, out, err = zobench("run", "--model", "opt-tiny", "--set", "seed=1", "--set", "device=cpu", "--json", "-")
    assert (code, json.loads(out)["outcome"]) == (1, "failed")
    assert err == "failed   opt-tiny resident fp32 b1 s64 seed=1  a reason\n"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_run_starts_no_process_for_what_cannot_fit(device, cwd, cells, monkeypatch) -> None:
    """On a GPU, which is not here, as on a CPU; with the numbers and with what helps."""
    room = plan.Limits(device_bytes=None if device == "cpu" else 10**9, host_bytes=2 * 10**9, disk_bytes=10**9)
    monkeypatch.setattr(plan, "limits", lambda *_: room)
    spec = RunSpec(model="OPT-13B", dtype="fp16", device=device).resolve(device)
    result = single.measured(spec, Monitor(), silent=True)
    assert (result.outcome, cells) == (Outcome.SKIPPED, [])
    kind = "host memory, 0.9 GB" if device == "cpu" else "device memory, 1.0 GB"
    remedy = "use engine=offload, or a smaller batch_size or model"
    assert re.fullmatch(rf"needs 2\d\.\d GB of {kind} are free \(need predicted\); {remedy}", result.reason)
    small = RunSpec(model="opt-tiny", seq_len=16, device=device).resolve(device)
    assert single.measured(small, Monitor(), silent=True).outcome is Outcome.OK
    assert cells == [small]


def test_an_interrupt_of_a_run_ends_with_130(cwd: Path, zobench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run_in_process", interrupt)
    assert zobench("run", "--model", "opt-tiny", "--device", "cpu")[0] == 130


@pytest.mark.parametrize(("first", "then"), [(Outcome.OK, Outcome.TIMEOUT), (Outcome.OOM, Outcome.SKIPPED)])
def test_a_run_that_says_less_replaces_no_stored_run(
    first: Outcome, then: Outcome, cwd: Path, zobench: Any, monkeypatch: Any
) -> None:
    ended = iter((first, then))

    def measured(spec: RunSpec, *_: Any, **__: Any) -> Result:
        return Result(spec=spec, outcome=next(ended), environment=Facts(machine="m"))

    monkeypatch.setattr(single, "measured", measured)
    words = ("run", "--model", "opt-tiny", "--device", "cpu", "--results", "kept")
    assert zobench(*words)[0] == int(first is not Outcome.OK)
    code, _, err = zobench(*words)
    assert (code, f"kept keeps the earlier run of this cell, which ended {first}" in err) == (1, True)
    assert [run.outcome for run in Store(cwd / "kept").load()] == [first]


def test_json_on_standard_output_is_exactly_the_result_of_the_real_thing(tmp_path: Path) -> None:
    done = run_in(
        tmp_path, "run", "--model", "opt-tiny", "--engine", "offload", "--set", "tier=disk", "--set", "steps=5",
        "--set", "device=cpu", "--json", "-",
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert done.stdout == json.dumps(answer, indent=1, allow_nan=False) + "\n"
    assert {"schema_version", "spec", "outcome", "reason", "environment", "samples", "memory"} <= answer.keys()
    assert (answer["schema_version"], answer["tokens_per_step"]) == (3, 64)
    if answer["outcome"] == "contaminated":  # a busy machine; the rest is complete all the same
        assert answer["reason"]
    else:
        assert (done.returncode, answer["outcome"], answer["reason"], done.stderr) == (0, "ok", "", "")
    assert answer["spec"]["tier"] == "disk"
    assert {name: len(values) for name, values in answer["samples"].items()} == {
        "step_seconds": 5, "loss": 5, "projected_grad": 5
    }  # fmt: skip
    assert all(type(value) is float for values in answer["samples"].values() for value in values)
    assert answer["memory"]["host_rss_peak_bytes"] > answer["memory"]["device_peak_bytes"] > 0
    assert Result.from_dict(answer).to_dict() == answer


def test_the_time_that_a_run_may_take_reaches_its_process(cwd, zobench, monkeypatch) -> None:
    def late(spec: RunSpec, *, timeout: float, **_: Any) -> Result:
        return Result(spec=spec, outcome=Outcome.TIMEOUT, reason=f"it took longer than {timeout:g} s")

    monkeypatch.setattr(process, "run_in_process", late)
    code, out, _ = zobench("run", "--model", "opt-tiny", "--device", "cpu", "--timeout", "90s", "--json", "-")
    assert (code, json.loads(out)["reason"]) == (1, "it took longer than 90 s")


def test_json_names_no_folder_of_this_machine(cwd: Path, zobench: Any, cells: list[RunSpec]) -> None:
    folder = cwd / "mine"
    AutoConfig.for_model("opt", hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=2).save_pretrained(
        folder
    )
    code, out, _ = zobench("run", "--model", str(folder), "--device", "cpu", "--set", "seq_len=32", "--json", "-")
    assert (code, cells[0].model_path) == (0, str(folder))
    assert json.loads(out)["spec"]["model"] == "mine"
    assert str(cwd) not in out


def test_a_run_that_takes_long_says_how_long_before_it_starts(
    zobench: Any, cwd: Path, machine: str, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(cwd / "cache" / "results"))
    calibrate(cwd / "cache", machine)
    long = ("run", "--device", "cpu", "--model", "OPT-125M", "--set")
    _, _, err = zobench(*long, "batch_size=64")
    guess = cost.estimate(cells[0], RATES)
    each = texts.duration(guess.step_seconds)
    assert f"\ntime: about {texts.duration(guess.seconds)} (predicted): 6 steps of {each}\n" in err
    _, _, err = zobench("run", "--device", "cpu", "--model", "opt-tiny")
    assert (len(cells), "time: " in err) == (2, False)
