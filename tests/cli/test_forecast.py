"""`zobench plan` and `zobench predict`: for GPUs that are not here, quickly, and always called predictions."""

import json
import re
import resource
import subprocess
import sys
from typing import Any

import pytest

from zobench.cost import gpu, hardware
from zobench.machine import texts
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store


@pytest.mark.parametrize(
    ("limit", "arguments"),
    [(10, ["plan", "--model", "OPT-175B", "--gpu", "rtx-4090"]), (60, ["predict", "main_table", "--gpu", "h200"])],
)
def test_neither_needs_a_gpu_torch_or_nvml_and_both_are_quick(limit: float, arguments: list[str], cwd: Any) -> None:
    program = f"""
import sys
from zobench import cli
try:
    cli.main({arguments!r})
except SystemExit as end:
    assert not end.code, end.code
print(sorted({{"torch", "pynvml", "transformers"}} & set(sys.modules)), file=sys.stderr)
"""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin < limit
    assert done.stderr.splitlines()[-1] == "[]"
    assert ("host memory: 64 GB, because --host was not given" in done.stderr) == (arguments[0] == "plan")


def test_a_plan_says_how_fast_with_its_range_what_bounds_it_and_the_settings(zobench: Any) -> None:
    code, out, err = zobench("plan", "--model", "OPT-175B", "--gpu", "rtx-4090", "--host", "512GB")
    assert (code, err) == (0, "")
    assert re.search(r"fits: ~\d+ \(\d+ to \d+\) tokens/s", out)
    assert "bound by: link (upload)" in out
    assert "RTX 4090 (25.2 GB, of which plans use 90%, PCIe 4 x16)" in " ".join(out.split())
    assert "settings: --set engine=offload --set noise=counter" in out
    assert "zobench's own engine has never run on such a GPU" in " ".join(out.split())
    plan = ("plan", "--model", "OPT-13B", "--gpu", "rtx-3090", "--host", "64GB")
    assert re.search(r"x1\.01 .* resident_blocks=29\s", zobench(*plan)[1]), "the fastest, which is not the simplest"
    assert "OPT-13B fp16, batch 1, 32 tokens on " in zobench(*plan, "--set", "task=sst2")[1]


def test_a_plan_as_json_holds_the_best_and_what_others_cost(zobench: Any) -> None:
    _, out, _ = zobench("plan", "--model", "OPT-175B", "--gpu", "rtx-4090", "--host", "512GB", "--json", "-")
    plan = json.loads(out)
    best = plan["best"]
    assert (plan["fits"], plan["source"], best["source"], best["bound"]) == (
        True,
        "predicted",
        "predicted",
        "link (upload)",
    )
    assert best["tokens_per_second_low"] < best["tokens_per_second"] < best["tokens_per_second_high"]
    assert best["device_bytes"] < 25e9 < 300e9 < best["host_bytes"] < 512e9
    assert {cost["spec"]["wire"] for cost in plan["alternatives"] if "wire" in cost["spec"]} == {"fp8"}


def test_all_gpus_are_compared_those_that_lack_something_last(zobench: Any, cwd: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.001)
    _, table, err = zobench("plan", "--model", "OPT-66B", "--host", "64GB", "--json", str(cwd / "all.json"))
    assert err.startswith("reading the model for 0 s\n")
    assert re.search(r"^predicting for .+ for \d+ s$", err, re.MULTILINE)
    plan = json.loads((cwd / "all.json").read_text())
    assert len(plan) == len(hardware.names())
    fitting = {row["gpu"] for row in plan if row["fits"]}
    assert {"B200", "H200", "MI300X", "H100 SXM"} <= fitting  # whole, or with a part of the blocks in host memory
    assert not {"RTX 4090", "L40S", "A100 40GB SXM", "T4"} & fitting
    lines = [line for line in table.splitlines() if line.startswith(tuple(row["gpu"] for row in plan))]
    assert ["lacks" in line for line in lines] == [False] * len(fitting) + [True] * (len(plan) - len(fitting))


def test_a_gpu_that_zobench_may_not_run_on_says_so_in_plans_predictions_and_lists(zobench, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    volta, rocm = "no kernels for its sm_70", "with which zobench has never run"
    for arguments, notes in [
        (("plan", "--model", "OPT-125M", "--gpu", "v100"), {volta}),
        (("plan", "--model", "OPT-125M", "--gpu", "t4"), set()),
        (("predict", "main_table", "--gpu", "mi300x"), {rocm}),
        (("list", "gpus"), {volta, rocm}),
    ]:
        _, out, _ = zobench(*arguments)
        assert {gpu for gpu in (volta, rocm) if gpu in " ".join(out.split())} == notes


def test_a_model_that_does_not_fit_says_what_comes_nearest(zobench: Any) -> None:
    _, out, _ = zobench("plan", "--model", "OPT-66B", "--gpu", "rtx-4090", "--host", "64GB")
    assert "does not fit (host memory): nearest is" in out
    assert "with --disk SPEED blocks can rest on a disk" in out
    (needed,) = re.findall(r"it needs --host (\d+GB), 4\.3 GB of it for the system", " ".join(out.split()))
    assert "fits: ~" in zobench("plan", "--model", "OPT-66B", "--gpu", "rtx-4090", "--host", needed)[1]
    assert "fits: ~" in zobench("plan", "--model", "OPT-66B", "--gpu", "rtx-4090", "--host", "64GB", "--disk", "5GB")[1]


def test_a_predicted_table_has_no_empty_cell_and_marks_every_number(zobench: Any) -> None:
    code, out, _ = zobench("predict", "main_table", "--gpu", "a100-80gb-sxm", "--format", "markdown")
    assert code == 0
    predicted, _, paper = out.partition("paper (zo2 table1)")
    rows = [line for line in predicted.splitlines() if line.startswith("| OPT-")]
    assert len(rows) >= 9
    cells = [cell.strip().removeprefix("*").removeprefix("\\") for row in rows for cell in row.split("|")[2:-1]]
    assert all(cell.startswith(("~", "-")) for cell in cells), cells
    assert "predicted for A100 80GB SXM, not measured" in predicted
    for card, is_of_paper in (("a100-80gb-sxm", True), ("rtx-5090", False)):
        text = " ".join(zobench("predict", "main_table", "--gpu", card)[1].split())
        assert ("of the papers'." in text, "no test of the prediction" in text) == (is_of_paper, not is_of_paper)
    assert paper.count("~") == 1  # the footnote's: no number of the paper's has one


def test_a_run_of_ones_own_narrows_a_plan(zobench: Any, cwd: Any) -> None:
    spec = RunSpec(model="OPT-1.3B", dtype="fp16").resolve("cuda:0")
    seconds = 1.3 * gpu.predict(spec, hardware.load("rtx-4090")).step_seconds
    run = Result(spec=spec, outcome=Outcome.OK, environment=Facts(machine="m"), samples={"step_seconds": [seconds]})
    path = str(Store(cwd / "own").save(run))
    plain = ("plan", "--model", "OPT-2.7B", "--gpu", "rtx-4090", "--json", "-")
    before, (_, out, err) = json.loads(zobench(*plain)[1])["best"], zobench(*plain, "--anchor", path)
    after = json.loads(out)["best"]
    assert re.match(r"RTX 4090 fitted to OPT-1.3B .* [+-]\d\.\d % \(predicted against measured\)", err)
    assert after["tokens_per_second"] < before["tokens_per_second"] * 0.9
    spreads = [plan["tokens_per_second_high"] / plan["tokens_per_second_low"] for plan in (before, after)]
    assert spreads[1] < 1.2 < spreads[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--model", "OPT-13B", "--gpu", "rtx-409"], "unknown GPU 'rtx-409'; did you mean rtx-4090"),
        (["plan", "--model", "OPT-13B", "--gpu", "t4", "--link", "9x16"],
         "`--link` must be a generation and a number of lanes, but got '9x16'; write 4x16"),
        (["plan", "--model", "OPT-13B", "--gpu", "t4", "--anchor", "disk.toml"],
         "`--anchor` must be a stored result, but disk.toml is none"),
        (["predict", "zo_bench_accuracy", "--gpu", "h200"],
         "zo_bench_accuracy must have a cell without a task and without checkpoints, but has none to predict"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[str], message: str, refused: Any, cwd: Any) -> None:
    (cwd / "disk.toml").touch()
    assert message in refused(*arguments)


def test_a_planned_step_is_written_as_a_trace_and_what_streams_nothing_has_none(cwd: Any, zobench: Any) -> None:
    words = ["plan", "--model", "opt-tiny", "--gpu", "t4", "--host", "16GB", "--set", "seq_len=64"]
    offloaded = ["--set", "engine=offload", "--set", "resident_blocks=0"]
    code, out, err = zobench(*words, *offloaded, "--trace", "step.json", "--json", "-")
    assert (code, err) == (0, "")
    plan = json.loads((cwd / "step.json").read_text())
    assert plan["otherData"]["step_seconds"] == json.loads(out)["best"]["step_seconds"]
    assert plan["otherData"]["source"] == "predicted"
    spans = [event for event in plan["traceEvents"] if event["ph"] == "X"]
    assert {event["name"].split()[0] for event in spans} >= {"upload", "compute", "offload"}
    assert max(event["ts"] + event["dur"] for event in spans) <= 1e6 * plan["otherData"]["step_seconds"] * 1.001
    code, _, err = zobench(*words, "--set", "engine=resident", "--trace", "none.json")
    assert code == 2
    assert "`--trace` needs streamed blocks, but the best is opt-tiny resident" in err
    assert not (cwd / "none.json").exists()
