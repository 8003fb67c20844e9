"""GPUs as data: every file is read, each number has a source, and a mistake is one line."""

import textwrap
from pathlib import Path

import pytest

from tests.support.files import written
from zobench.cost import hardware

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
