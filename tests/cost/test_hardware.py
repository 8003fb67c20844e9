"""GPUs as data: every file is read, each number has a source, and a mistake is one line; and one fitted to a user's own
runs: from steps that a GPU with other constants would take."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import written
from zobench.cost import hardware
from zobench.cost.gpu import predict
from zobench.cost.hardware import Gpu
from zobench.cost.hardware.measured import anchor
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

GOOD = (Path(hardware.__file__).parent / "rtx-4090.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", hardware.names())
def test_every_number_of_a_gpu_has_a_source_and_is_plausible(name):
    gpu = hardware.load(name)
    assert set(gpu.origins) == {*hardware.PEAKS, *hardware.SHARES}
    assert all(origin.source in hardware.SOURCES and origin.date and origin.document for origin in gpu.origins.values())
    for key in ("sms", "fp32_tflops", "fp16_tflops", "hbm_gbs", "pcie_generation"):
        assert gpu.origins[key].source == "data sheet", key
    assert gpu.products("fp32") <= gpu.fp32
    assert gpu.fp32 <= gpu.fp16 <= 1.5e15 * 1.51
    assert 14 << 30 < gpu.memory < 192 << 30
    # float32's peak is two operations of each lane and clock; a multiprocessor has 64 or 128 lanes. The H20's sheet
    # names no clock that gives its peak
    assert min(abs(gpu.fp32 / (2 * gpu.sms * gpu.clock) / lanes - 1) for lanes in (64, 128)) < 0.12


def test_a_gpu_is_found_by_other_names_and_in_any_case():
    assert hardware.load("RTX 4090") == hardware.load("rtx-4090") == hardware.load("4090")
    assert hardware.load("A100-80GB").name == "A100 80GB SXM"
    assert len(hardware.names()) == 17


def test_the_slower_of_card_and_host_is_the_link():
    card = hardware.load("rtx-5090")
    assert card.behind(4, 16).pcie == hardware.load("rtx-4090").pcie < card.pcie
    assert card.behind(6, 16).pcie == card.pcie


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sms = 128", "sm = 128"), "unknown key 'sm' in [[facts]]; did you mean sms?"),
        (("sms = 128\n", ""), "`sms` must be given, but is not; add it to [[facts]]"),
        (("sms = 128", "sms = 0"), "`sms > 0` must hold in [[facts]], but got 0; raise it"),
        (("sms = 128", f"sms = {'9' * 400}"), "`sms` in [[facts]] must be of type number, but got 9"),
        (('source = "data sheet"', 'source = "rumour"'),
         "`source` in [[facts]] must be one of data sheet, measured, fitted, guessed, but got 'rumour'"),
        (("pcie_generation = 4", "pcie_generation = 7"), "`pcie_generation` must be one of 3, 4, 5, 6, but got 7"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line_with_its_name(tmp_path, change, message):
    path = written(tmp_path / "mine.toml", GOOD.replace(change[0], change[1], 1))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is compared
        hardware.load(str(path))
    assert str(caught.value).startswith(f"mine.toml: {message.partition('; did')[0]}")
    assert "\n" not in str(caught.value)


def test_the_file_that_the_page_shows_is_a_gpu_of_the_folder_that_it_is_in(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "predictions.md").read_text(encoding="utf-8")
    example = page.partition("## A GPU of your own\n")[2].partition("\n`zobench calibrate")[0]
    (tmp_path / "mine.toml").write_text(textwrap.dedent(example), encoding="utf-8")
    written(tmp_path / "other" / "mine.toml", GOOD)
    monkeypatch.chdir(tmp_path / "other")
    assert hardware.load("mine.toml").name == "RTX 4090"
    monkeypatch.chdir(tmp_path)
    mine, same = hardware.load("mine.toml"), hardware.load("rtx-4090")
    assert (mine.name, mine.fp16, mine.memory, mine.errors) == ("My card", same.fp16, same.memory, "other")


SHEET = hardware.load("rtx-4090")
TRUTH = dataclasses.replace(SHEET, fp16_products=0.55, kernel=22e-6)
SEEN = ({"model": "OPT-1.3B", "engine": "resident"}, {"model": "OPT-6.7B", "engine": "offload", "noise": "counter"})
UNSEEN = ({"model": "OPT-2.7B", "engine": "resident"}, {"model": "OPT-6.7B", "engine": "resident", "noise": "counter"})


def spec(**fields: Any) -> RunSpec:
    return RunSpec(**{"dtype": "fp16", **fields}).resolve("cuda:0")


def ran(gpu: Gpu, factor: float = 1.0, **fields: Any) -> Result:
    """A run of what ``gpu`` would take, times ``factor``."""
    truth = spec(**fields)
    return Result(spec=truth, outcome=Outcome.OK, samples={"step_seconds": [predict(truth, gpu).step_seconds * factor]})


def test_two_runs_give_a_gpu_its_own_two_constants_and_a_narrower_range() -> None:
    card = Facts(gpu={"name": "NVIDIA GeForce RTX 4090"})
    anchored = anchor(SHEET, [dataclasses.replace(ran(TRUTH, **fields), environment=card) for fields in SEEN])
    assert anchored.gpu.fp16_products == pytest.approx(0.55, rel=0.05)
    assert max(map(abs, anchored.errors)) < 0.02
    for fields in UNSEEN:
        before, after, truth = (predict(spec(**fields), gpu) for gpu in (SHEET, anchored.gpu, TRUTH))
        assert after.step_seconds == pytest.approx(truth.step_seconds, rel=0.03)
        assert abs(before.step_seconds / truth.step_seconds - 1) > 0.1
        assert after.share < before.share


def test_one_run_is_met_and_what_two_constants_cannot_explain_keeps_the_wide_range() -> None:
    alone = anchor(SHEET, [ran(TRUTH, **SEEN[0])])
    assert abs(alone.errors[0]) < 0.02
    assert alone.gpu.errors == "anchored"
    free = anchor(dataclasses.replace(SHEET, kernel=0.0), [ran(TRUTH, **SEEN[0])])
    assert abs(free.errors[0]) < 0.02
    odd = anchor(SHEET, [ran(TRUTH, 2.5, **SEEN[0]), ran(TRUTH, 0.8, **SEEN[0])])
    assert odd.gpu.errors == "other"
    assert predict(spec(**SEEN[0]), odd.gpu).share == predict(spec(**SEEN[0]), SHEET).share


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome": Outcome.OOM}, "`--anchor` needs a finished run on a GPU, but OPT-1.3B .* is oom on cuda:0"),
        ({"spec": spec(model="OPT-1.3B").replace(device="cpu")}, "is ok on cpu; run one there"),
        ({"spec": spec(model="OPT-1.3B", engine="offload", tier="disk")}, "needs a run without a disk"),
        ({"environment": Facts(gpu={"name": "NVIDIA RTX A6000"})}, "ran on NVIDIA RTX A6000; name that GPU"),
    ],
)
def test_a_run_that_says_nothing_of_a_gpu_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anchor(SHEET, [dataclasses.replace(ran(TRUTH, **SEEN[0]), **changes)])
